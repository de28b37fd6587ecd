"""Perplexity of finished language models with a neural cache: the command `evaluate` of `experiments.ptb`."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from dynskip_jax.data import LanguageCorpus, find_language_corpus
from dynskip_jax.errors import UserError
from dynskip_jax.training.experiment import cell, summary
from dynskip_jax.training.host_memory import keep_freed_memory
from dynskip_jax.training.language_modelling import CacheGrid, LanguageModelling
from dynskip_jax.training.loop import evaluation_keys
from dynskip_jax.training.progress import Progress
from experiments.cli import Folder, Text
from experiments.ptb_runs import FinishedModel, finished_models
from experiments.settings import numbers

Numbers = Annotated[str, tyro.conf.arg(metavar="FLOAT,…")]


@dataclasses.dataclass(frozen=True)
class EvaluateFlags:
    """Flags of `evaluate`."""

    run_dir: str
    """A finished run folder, of one model or of several compared."""
    data: Folder = None
    """Folder of the data that the run was trained on."""
    dataset: Text = None
    """Or its name, as when it was trained."""
    cache: int = 500
    """N, how many words the neural cache keeps."""
    flatness: Numbers = "0,0.1,0.2,0.3,0.5,0.8"
    """θ, how much alike states count; of several values, separated by commas, the best on dev is taken."""
    weight: Numbers = "0.02,0.05,0.1,0.15,0.2,0.3"
    """λ, the share of the cache in a prediction; likewise."""
    samples: int = 1
    """Predictions that are averaged, their agents' choices sampled; 1: agents choose as in training."""

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            UserError: a value makes no sense.
        """
        for name in ("cache", "samples"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} must be at least 1, got {getattr(self, name)}")
        grid = self.grid()
        if not min(grid.flatness) >= 0:
            raise UserError(f"--flatness takes values of at least 0, got {self.flatness}")
        if not 0 <= min(grid.weight) <= max(grid.weight) < 1:
            raise UserError(f"--weight takes values from 0 to below 1, got {self.weight}")

    def grid(self) -> CacheGrid:
        """Returns the caches to be tried."""
        flatness, weight = (
            numbers("--flatness", self.flatness, float),
            numbers("--weight", self.weight, float),
        )
        return CacheGrid(self.cache, flatness, weight)


def evaluate(arguments: Sequence[str]) -> None:
    """Measures the perplexity of finished models with and without a neural cache (Grave et al. 2017).

    The cache's θ and λ are chosen on dev for each model, over its seeds; test is then read once. Nothing is
    written into the run folder.
    """
    flags = tyro.cli(
        EvaluateFlags,
        args=arguments,
        prog="python -m experiments.ptb evaluate",
        description=evaluate.__doc__,
    )
    keep_freed_memory()
    models = finished_models(flags.run_dir)
    corpus = find_language_corpus(flags.data, flags.dataset)
    for model in models.values():
        trained_on = model.run.config()["dataset"]
        if trained_on["fingerprint"] != corpus.fingerprint:
            raise UserError(
                f"{model.run.path} was trained on other data ({trained_on['name']}) than {corpus.source}: "
                "name its folder with --data"
            )
    table = Table(
        title=f"{corpus.name}, perplexity with a cache of {flags.cache} words", title_justify="left"
    )
    table.add_column("model", no_wrap=True)
    for heading in ("dev", "dev, cache", "test", "test, cache", "θ", "λ"):
        table.add_column(heading, justify="right")
    with Progress(2 * len(models), "evaluating") as progress:
        for name, model in models.items():
            table.add_row(name, *_row(model, corpus, flags, progress))
    Console().print(table)


def _row(model: FinishedModel, corpus: LanguageCorpus, flags: EvaluateFlags, progress: Progress) -> list[str]:
    task, params = LanguageModelling(corpus, model.task_settings()), model.params()
    keys = evaluation_keys(model.settings.all_seeds(model.name))
    is_sampled = flags.samples > 1 and model.settings.skip(model.name).is_stochastic

    def perplexities(split: str, grid: CacheGrid) -> tuple[np.ndarray, np.ndarray]:
        found = task.evaluate(
            params,
            split,
            keys,
            mode="sample" if is_sampled else None,
            batch_size=1,
            samples=flags.samples if is_sampled else 1,
            cache=grid,
        )
        progress.advance()
        metric = f"{split}_perplexity"
        return found[metric][model.members], found[f"{metric}_cached"][model.members]

    grid = flags.grid()
    dev, dev_cached = perplexities("dev", grid)
    best = np.unravel_index(dev_cached.mean(axis=0).argmin(), dev_cached.shape[1:])
    flatness, weight = grid.flatness[best[0]], grid.weight[best[1]]
    test, test_cached = perplexities("test", CacheGrid(flags.cache, (flatness,), (weight,)))
    columns = (dev, dev_cached[:, *best], test, test_cached[:, 0, 0])
    return [*(cell(summary(column), ".2f") for column in columns), f"{flatness:g}", f"{weight:g}"]
