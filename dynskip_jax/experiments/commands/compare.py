"""The command `compare`: compare finished taggers on test with a paired bootstrap over sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dynskip_jax.errors import UserError
from dynskip_jax.experiments.command_line import Subcommand
from dynskip_jax.experiments.commands.flags import CodeFlags
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import path_setting, setting

if TYPE_CHECKING:
    from dynskip_jax.experiments import tagging
    from dynskip_jax.experiments.experiment import Experiment
    from dynskip_jax.experiments.loaded import FinishedModel

bootstrap = LazyModule("dynskip_jax.analysis.statistics")
compilation_cache = LazyModule("dynskip_jax.devices.compilation_cache")
consoles = LazyModule("dynskip_jax.experiments.console")
entity_score = LazyModule("dynskip_jax.tasks.entity_score")
jax = LazyModule("jax")
loading = LazyModule("dynskip_jax.experiments.loaded")
rich_table = LazyModule("rich.table")
step = LazyModule("dynskip_jax.training.step")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareFlags(CodeFlags):
    """Flags of `compare`."""

    run_dir: tuple[str, ...] = path_setting(
        help="Finished run folders, separated by commas, of one model or several."
    )
    data: str | None = path_setting(None, "Folder of the run's data; by default where the run found it.")
    samples: int = setting(10_000, "Number of bootstrap resamples.", at_least=1)


def compare(experiment: type[Experiment], flags: CompareFlags) -> None:
    """Tag test with the models of one or several runs, and print how their scores differ from the first.

    The score of a model is the mean over its seeds. Nothing is written into the run folders.

    Args:
        experiment: The experiment of the runs.
        flags: Flags of the command.

    Raises:
        UserError: There are fewer than two models, or the data is not that of the runs.
    """
    compilation_cache.keep_compiled_programs()
    models = _models(experiment, flags.run_dir)
    if len(models) < 2:
        raise UserError(
            f"{', '.join(flags.run_dir)} holds one model: name several run folders, separated by commas, or "
            "train several models with --compare a,b"
        )
    first = next(iter(models))
    read = _read(models, flags.data)
    data = read[first]
    counts = {name: _counts(model, read[name]) for name, model in models.items()}
    score = bootstrap.accuracy if data.corpus.scheme is None else bootstrap.f1
    table = rich_table.Table(title=f"{data.name}, test, beside {first}", title_justify="left")
    table.add_column("model", overflow="fold", min_width=12)  # long names of folders are folded, numbers not
    for heading in ("score", "difference", "95 % of resamples", "p", ""):
        table.add_column(heading, no_wrap=True, justify="right")
    table.add_row(first, f"{_mean(score, counts[first]):.2%}")
    for name in list(models)[1:]:
        found = bootstrap.paired_bootstrap(counts[first], counts[name], score, seed=0, samples=flags.samples)
        inside = found.low <= 0 <= found.high
        table.add_row(
            name,
            f"{_mean(score, counts[name]):.2%}",
            f"{100 * found.difference:+.2f}",
            f"{100 * found.low:+.2f} to {100 * found.high:+.2f}",
            f"{found.p:.3f}",
            "may be chance" if inside else "differs",
        )
    consoles.wide_console().print(table)


def _models(experiment: type[Experiment], folders: Sequence[str]) -> dict[str, FinishedModel]:
    """Return the models of all folders by name; with several folders, names begin with the folder."""
    found = {}
    for folder in dict.fromkeys(folders):
        for name, model in loading.finished_models(folder, experiment.name).items():
            found[name if len(folders) == 1 else f"{folder}: {name}"] = model
    return found


def _read(models: Mapping[str, FinishedModel], folder: str | None) -> dict[str, tagging.ReadCorpus]:
    """Return the data of each model, with its own columns and word vectors.

    Raises:
        UserError: If the data is not that of a run, or test has other words or tags for some of the models.
    """
    known: dict[str, tagging.ReadCorpus] = {}  # by fingerprint
    prints = {name: model.run.config()["dataset"]["fingerprint"] for name, model in models.items()}
    first = expected = None
    for name, model in models.items():
        if prints[name] in known:
            continue
        known[prints[name]] = data = loading.data_of(model, folder)
        test = [(sentence.words, sentence.tags) for sentence in data.corpus.splits["test"]]
        if first is None:
            first, expected = name, test
        elif test != expected:
            raise UserError(f"{name} has another test set than {first}: compare runs on one corpus")
    return {name: known[fingerprint] for name, fingerprint in prints.items()}


def _counts(model: FinishedModel, data: tagging.ReadCorpus) -> np.ndarray:
    """Return the counts from which the score on test is computed, (seeds, sentences, counts)."""
    learner = model.learner_with(data)
    keys = step.evaluation_keys(learner.seeds)
    found = learner.predictions(model.params, "test", keys)[model.members]
    gold = [sentence.tags for sentence in data.corpus.splits["test"]]
    count = entity_score.tag_counts if data.corpus.scheme is None else entity_score.entity_counts
    tags = model.vocabulary.tags
    return np.stack([count(gold, [[tags[k] for k in row] for row in of_seed]) for of_seed in found])


def _mean(score, counts: np.ndarray) -> float:
    return float(np.mean(score(jax.tree.map(np.asarray, counts).sum(axis=1))))


COMPARE = Subcommand(
    "Test by a paired bootstrap over sentences whether each model differs from the first one on test.",
    CompareFlags,
    compare,
)
