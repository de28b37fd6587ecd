"""Whether finished taggers differ on test: the command `compare`, a paired bootstrap over sentences."""

import jax
import numpy as np
from rich.table import Table

from dynskip_jax.analysis.bootstrap import accuracy, f1, paired_bootstrap
from dynskip_jax.devices.compilation_cache import keep_compiled_programs
from dynskip_jax.errors import UserError
from dynskip_jax.tasks.entity_score import entity_counts, tag_counts
from dynskip_jax.training.step import evaluation_keys
from experiments.command_line import Command
from experiments.console import wide_console
from experiments.tagger import ReadCorpus
from experiments.tagger_settings import CompareFlags
from experiments.trained import Finished, data_of, finished_models


def compare(command: Command, flags: CompareFlags) -> None:
    """Tags test with each model of a run, over its seeds, and says of the others how they differ from the
    first; nothing is written into the run folder."""
    keep_compiled_programs()
    models = finished_models(flags.run_dir, command.name)
    if len(models) < 2:
        raise UserError(f"{flags.run_dir} holds one model: --compare a,b trains several into one folder")
    data = data_of(next(iter(models.values())), flags.data)
    counts = {name: _counts(model, data) for name, model in models.items()}
    score = accuracy if data.corpus.scheme is None else f1
    first = next(iter(models))
    table = Table(title=f"{data.name}, test, beside {first}", title_justify="left")
    for heading in ("model", "score", "difference", "95 % of resamples", "p", ""):
        table.add_column(heading, no_wrap=True, justify="left" if heading == "model" else "right")
    table.add_row(first, f"{_mean(score, counts[first]):.2%}")
    for name in list(models)[1:]:
        found = paired_bootstrap(counts[first], counts[name], score, seed=0, samples=flags.samples)
        inside = found.low <= 0 <= found.high
        table.add_row(
            name,
            f"{_mean(score, counts[name]):.2%}",
            f"{100 * found.difference:+.2f}",
            f"{100 * found.low:+.2f} to {100 * found.high:+.2f}",
            f"{found.p:.3f}",
            "may be chance" if inside else "differs",
        )
    wide_console().print(table)


def _counts(model: Finished, data: ReadCorpus) -> np.ndarray:
    """What the score of each sentence of test is made of, (seeds, sentences, counts)."""
    experiment, name = model.experiment, model.name
    learner = experiment.learner(name, data, model.vocabulary)
    keys = evaluation_keys(learner.seeds)
    found = learner.predictions(model.params, "test", keys)[model.members]
    gold = [sentence.tags for sentence in data.corpus.splits["test"]]
    count = tag_counts if data.corpus.scheme is None else entity_counts
    tags = model.vocabulary.tags
    return np.stack([count(gold, [[tags[k] for k in row] for row in of_seed]) for of_seed in found])


def _mean(score, counts: np.ndarray) -> float:
    return float(np.mean(score(jax.tree.map(np.asarray, counts).sum(axis=1))))
