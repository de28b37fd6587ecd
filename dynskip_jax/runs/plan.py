"""Decide a run once: its settings, its models, how each is trained, what is stored and shown."""

import dataclasses
import datetime
import importlib.metadata
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dynskip_jax.config.experiment import Dataset, Experiment
from dynskip_jax.config.settings import Devices, Resolved, Settings
from dynskip_jax.config.small_data import fit_to_size
from dynskip_jax.config.stored import to_config
from dynskip_jax.errors import UserError
from dynskip_jax.runs.learner import make_fit_settings, make_learner
from dynskip_jax.runs.load import Trained
from dynskip_jax.runs.pieces import check_names
from dynskip_jax.runs.spec import ModelSpec, make_spec, variant_of
from dynskip_jax.storage.folder import RunDir
from dynskip_jax.storage.results import learnt_rates
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.training.loop import FitSettings


class PlannedModel(NamedTuple):
    """A model: its specification, the learner that trains it, and how it is trained."""

    spec: ModelSpec
    learner: Learner
    fit: FitSettings
    variant: Mapping[str, Any]  # what distinguishes its row from others of its name


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run that is decided. Nothing in it changes while it runs."""

    experiment: Experiment
    settings: Settings
    data: Dataset
    models: tuple[PlannedModel, ...]
    preset: str  # its name, and where that comes from
    notes: Sequence[str]  # on settings that the data have changed
    config: Mapping[str, Any]  # of the run folder: what a resumed run must have, too
    may_grow: Sequence[str]  # names of settings in it that may be larger in a resumed run
    about: Mapping[str, Any]  # how the run was started, which is never compared
    published: tuple[list, str]  # rows to show beside the run's, and a line below them

    @property
    def names(self) -> list[str]:
        """Names of the models."""
        return [model.spec.name for model in self.models]

    @property
    def run_dir(self) -> Path | None:
        """The run folder; None for a new one."""
        return self.settings.run.run_dir

    @property
    def devices(self) -> Devices:
        """Where it runs."""
        return self.settings.devices

    def trained(self, model: PlannedModel, run: RunDir | None, params: Any) -> Trained:
        """Return a model with its trained parameters."""
        return Trained(
            run,
            self.experiment,
            self.settings,
            self.data.vocabulary,
            model.spec,
            model.learner,
            params,
        )


def with_files(experiment: Experiment, resolved: Resolved) -> Resolved:
    """Return the settings with those that files give: by word vectors, or a control's run."""
    for name, value in experiment.task_class.settings_of_files(resolved.settings).items():
        if resolved.sources[name] != "flag":
            resolved = resolved.changed("a file", **{name: value})
    control_of = resolved.settings.agent.control_of
    if isinstance(control_of, Path):
        rates = learnt_rates(control_of, experiment.name)
        resolved = resolved.changed("rates of that run", control_of=rates)
    return resolved


def read_data(experiment: Experiment, resolved: Resolved) -> tuple[Resolved, Dataset]:
    """Load the data, and return them with the settings that fit their size."""
    settings = resolved.settings
    check_names(settings.run.models(experiment.model), settings)
    data = experiment.task_class.load(settings)
    size = data.sizes.get("train", 0)
    return fit_to_size(resolved, size, experiment.least_updates), data


def plan(experiment: Experiment, resolved: Resolved, data: Dataset) -> Plan:
    """Return the run of these settings on these data; refuse what cannot be run."""
    settings = resolved.settings
    names = settings.run.models(experiment.model)
    specs = [make_spec(name, settings, may_import=True) for name in names]
    if isinstance(settings.agent.mix, tuple) and not any("mix" in s.values[0] for s in specs):
        raise UserError(f"{', '.join(names)} has no mix to be swept over: name a model that has")
    may_grow = ["models", "settings.training.patience"]
    # With --entropy-coef-final, which the last epoch reaches, more epochs would change those
    # already trained.
    if settings.agent.entropy_coef_final is None:
        may_grow.append(f"settings.training.{settings.training.length}")
    return Plan(
        experiment,
        settings,
        data,
        models=tuple(_plan_model(experiment, settings, spec, data) for spec in specs),
        preset=f"{settings.run.preset} ({resolved.sources['preset']})",
        notes=resolved.notes,
        config={
            "experiment": experiment.name,
            "dataset": {"name": data.name, "fingerprint": data.fingerprint},
            "settings": to_config(settings),
        },
        may_grow=may_grow,
        about=_about(settings, data),
        published=experiment.published_rows(settings, data, names),
    )


def _plan_model(
    experiment: Experiment, settings: Settings, spec: ModelSpec, data: Dataset
) -> PlannedModel:
    learner = make_learner(experiment, settings, spec, data, data.vocabulary)
    return PlannedModel(
        spec,
        learner,
        make_fit_settings(settings, spec, learner),
        variant_of(spec, settings),
    )


def _about(settings: Settings, data: Dataset) -> dict[str, Any]:
    """Return the command, the versions, the date and the paths of a run's start."""
    paths = {name: path for name, path in vars(settings.data).items() if isinstance(path, Path)}
    typed = getattr(sys, "orig_argv", sys.argv)
    return {
        "command": shlex.join([Path(sys.executable).name, *typed[1:]]),
        "commit": _commit(),
        "jax": importlib.metadata.version("jax"),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "source": data.source,
        "paths": {name: str(path.resolve()) for name, path in paths.items()},
    }


def _commit() -> str | None:
    """Return the commit of this checkout, with `-dirty` for changed Python files, or None."""
    how = dict(cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    try:
        commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], **how).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain", "--", "*.py"], **how).stdout
    except (OSError, subprocess.CalledProcessError):  # no git, or no checkout
        return None
    return f"{commit}-dirty" if changed else commit
