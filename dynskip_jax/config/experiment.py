"""The value `Experiment`: what surrounds a task, without JAX."""

import dataclasses
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynskip_jax.config.flags import listed, short
from dynskip_jax.config.settings import Settings, get
from dynskip_jax.config.small_data import UPDATES
from dynskip_jax.data.dataset import Dataset
from dynskip_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Published:
    """Rows of published results, shown beside a run on the same data."""

    dataset: str
    metrics: Sequence[str]
    # Model beside which a row is shown ("": any), name, and the value of each metric or None.
    rows: Sequence[tuple]
    # Sizes of the data, beside which alone they are shown, and values of settings, several each.
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    when: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    note: str = ""  # line below the table


def columns_of(metric: str, heading: str, form: str) -> dict[str, tuple[str, str]]:
    """Return the columns of the table for one metric; those without a value are left out."""
    return {
        f"dev_{metric}": (f"dev {heading}", form),
        f"test_{metric}": (f"test {heading}", form),
        f"test_{metric}_greedy": ("test, greedy", form),
        f"test_{metric}_sampled": ("test, sampled", form),
        f"test_{metric}_averaged": ("test, averaged", form),
    }


# Columns of all tasks that are scored by accuracy.
ACCURACY = columns_of("accuracy", "accuracy", ".2%") | {
    "test_exact_decisions": ("exact decisions", ".2%"),
    "test_sentence_accuracy": ("whole sentences", ".2%"),
    "test_read_fraction": ("words read", ".1%"),
    "test_macro_f1": ("test macro F1", ".2%"),
}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One task with its settings, its presets, and what is shown beside its results."""

    name: str
    about: str | None  # text of `--help`; the first line is shown in the list of experiments
    # Class derived from `dynskip_jax.tasks.task.Task`; or where it is, `module:Class`, which is not
    # imported for `--help`.
    task: Any
    # Class derived from `dynskip_jax.tasks.learner.Learner` that trains and evaluates the models.
    learner: str = "dynskip_jax.tasks.learner:Learner"
    settings: type[Settings] = Settings
    # Values of each preset, by the names of preset and setting; the first is the default.
    presets: Mapping[str, Mapping[str, Any]] = dataclasses.field(
        default_factory=lambda: {"default": {}}
    )
    model: str = "dynamic:5"  # trained by default
    # Heading and format of each metric in the printed table, by the metric's name.
    columns: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=lambda: ACCURACY)
    # Commands that read a finished run; `NAME.command` is a module beside the experiment NAME.
    commands: tuple[str, ...] = ("predict", "explain")
    # Functions of a `Trained`, or where they are, `module:function`: the `Reading` of a text; what
    # `predict` writes for each line; more metrics, each (seeds,); and pictures.
    read: Any = "dynskip_jax.runs.texts:read_text"
    write: Any = "dynskip_jax.runs.texts:predict_lines"
    measure: Any = None
    draw: Any = "dynskip_jax.runs.pictures:draw_positions"
    published: tuple[Published, ...] = ()
    sample_text: str | None = None  # read by `explain` by default
    samples: int = 16  # number of predictions that are averaged in the final evaluation
    least_updates: int = UPDATES  # that presets make, in more epochs if the data are small
    final_rows: int | None = None  # rows in a batch of the final evaluation; None: the task's
    # Function of the flags that are given to the preset that is used, if not the first.
    default_preset: Callable[[Mapping[str, Any]], str] | None = None

    @property
    def task_class(self) -> Any:
        """The class of the task, which is imported now if need be."""
        return imported(self.task)

    @property
    def learner_class(self) -> Any:
        """The class of the learner, which is imported now."""
        return imported(self.learner)

    def published_rows(
        self, settings: Settings, data: Dataset, models: Sequence[str]
    ) -> tuple[list[tuple[str, Mapping[str, float]]], str]:
        """Return the published rows to show beside these models, and a line below the table."""
        for found in self.published:
            fits = all(get(settings, name) in values for name, values in found.when.items())
            if found.dataset != data.name or not fits:
                continue
            differs = ", ".join(
                f"{name} has {data.sizes.get(name, 0):,} instead of {size:,}"
                for name, size in found.sizes.items()
                if data.sizes.get(name) != size
            )
            if differs:
                note = f"Published rows are left out: this is another corpus ({differs})."
                return [], note
            rows = [
                (name, {m: v for m, v in zip(found.metrics, values, strict=True) if v is not None})
                for model, name, *values in found.rows
                if model in ("", *models)
            ]
            return rows, found.note if rows else ""
        names = {found.dataset for found in self.published}
        is_own = settings.data.data is not None and data.name not in names
        if not names or is_own:
            return [], ""
        return [], f"{data.name}: no published results to compare with"


def imported(place: Any) -> Any:
    """Return what is at `module:name`, which is imported now; what is no text, as it is."""
    if not isinstance(place, str):
        return place
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


# Module of each experiment of this package, by name; it has the experiment as `EXPERIMENT`.
MODULES = {
    path.parent.name: f"dynskip_jax.experiments.{path.parent.name}.config"
    for path in sorted(Path(__file__).parents[1].glob("experiments/*/config.py"))
}
NAMES = tuple(MODULES)


def find_experiment(name: str) -> Experiment:
    """Return an experiment of this package, or the `EXPERIMENT` of an imported module."""
    if name in MODULES:
        return importlib.import_module(MODULES[name]).EXPERIMENT
    for module in list(sys.modules.values()):
        found = getattr(module, "__dict__", {}).get("EXPERIMENT")
        if isinstance(found, Experiment) and found.name == name:
            return found
    raise UserError(
        f"there is no experiment {short(name)} among {listed(NAMES)}, and reading a run "
        "imports no code that it names: import yours first (report: --code MODULE)"
    )


def experiment_of(config: Mapping[str, Any], path: Path) -> Experiment:
    """Return the experiment that a run folder belongs to, by its configuration."""
    try:
        return find_experiment(config.get("experiment", ""))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
