"""Perplexity of finished language models that go on learning: the command `evaluate` of `experiments.ptb`."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from dynskip_jax.data import find_language_corpus
from dynskip_jax.devices.host_memory import keep_freed_memory
from dynskip_jax.errors import UserError
from dynskip_jax.runs.progress import Progress
from dynskip_jax.tasks.dynamic_evaluation import DynamicEvaluation
from dynskip_jax.tasks.language_modelling import CacheGrid, LanguageModelling
from dynskip_jax.training.step import evaluation_keys
from experiments.cli import Folder, Text
from experiments.experiment import cell, summary
from experiments.ptb_runs import FinishedModel, finished_models
from experiments.settings import numbers

Numbers = Annotated[str, tyro.conf.arg(metavar="FLOAT,…")]
Grid = tuple[tuple[float, ...], tuple[float, ...]]


@dataclasses.dataclass(frozen=True)
class EvaluateFlags:
    """Flags of `evaluate`; of several values, separated by commas, the best on dev is taken."""

    run_dir: str
    """A finished run folder, of one model or of several compared."""
    data: Folder = None
    """Folder of the data that the run was trained on."""
    dataset: Text = None
    """Or its name, as when it was trained."""
    method: Literal["cache", "dynamic"] = "cache"
    """cache: words of the recent past are likelier (Grave et al. 2017); dynamic: parameters follow the text
    (Krause et al. 2018)."""
    cache: int = 500
    """N, how many words the cache keeps."""
    flatness: Numbers = "0,0.1,0.2,0.3,0.5,0.8"
    """θ of the cache, how much alike states count."""
    weight: Numbers = "0.02,0.05,0.1,0.15,0.2,0.3"
    """λ of the cache, its share in a prediction."""
    samples: int = 1
    """With the cache, predictions that are averaged, their agents' choices sampled; 1: agents choose as in
    training."""
    learning_rate: Numbers = "0.00005,0.0001"
    """η of dynamic evaluation, how far parameters follow each segment."""
    decay: Numbers = "0.002"
    """λ of dynamic evaluation, how far they return."""
    steps: int = 5
    """Words of a segment, after each of which parameters change."""

    def check(self) -> None:
        """Checks the values.

        Raises:
            UserError: a value makes no sense.
        """
        for name in ("cache", "samples", "steps"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} must be at least 1, got {getattr(self, name)}")
        for name in ("flatness", "learning_rate", "decay"):
            if not min(self.values(name)) >= 0:
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} takes values of at least 0, got {getattr(self, name)}")
        if not 0 <= min(self.values("weight")) <= max(self.values("weight")) < 1:
            raise UserError(f"--weight takes values from 0 to below 1, got {self.weight}")

    def values(self, name: str) -> tuple[float, ...]:
        """Returns the values to be tried of a flag that takes several."""
        return numbers(f"--{name.replace('_', '-')}", getattr(self, name), float)


def evaluate(arguments: Sequence[str]) -> None:
    """Measures the perplexity of finished models that go on learning from the text they are evaluated on.

    What the method needs is chosen on dev for each model, over its seeds; test is then read once. Nothing is
    written into the run folder.
    """
    flags = tyro.cli(
        EvaluateFlags,
        args=arguments,
        prog="python -m experiments.ptb evaluate",
        description=evaluate.__doc__,
    )
    flags.check()
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
    make = {"cache": _cached, "dynamic": _dynamic}[flags.method]
    methods = [make(m, LanguageModelling(corpus, m.task_settings()), flags) for m in models.values()]
    size = {"cache": f"a cache of {flags.cache} words", "dynamic": f"segments of {flags.steps} words"}
    table = Table(title=f"{corpus.name}, perplexity with {size[flags.method]}", title_justify="left")
    for heading in ("model", "dev", "test", "chosen on dev"):
        table.add_column(heading, no_wrap=True, justify="right" if heading in ("dev", "test") else "left")
    with Progress(sum(method.work for method in methods), "evaluating") as progress:
        for name, method in zip(models, methods, strict=True):
            without, with_method, chosen = _measured(method, progress.advance)
            table.add_row(name, *without)
            table.add_row(f"  + {flags.method}", *with_method, chosen)
    Console().print(table)


class _Method(NamedTuple):
    """How one model is evaluated.

    Attributes:
        signs: what the two numbers that are chosen on dev are called.
        grid: their values to be tried.
        work: how often `perplexities` advances for the grid on dev and one pair of it on test.
        perplexities: from a split, a grid and `advance` to the perplexity without, (seeds,), and with,
            (seeds, first number, second number).
    """

    signs: tuple[str, str]
    grid: Grid
    work: int
    perplexities: Callable[[str, Grid, Callable[[], None]], tuple[np.ndarray, np.ndarray]]


def _cached(model: FinishedModel, task: LanguageModelling, flags: EvaluateFlags) -> _Method:
    params, keys = model.params(), evaluation_keys(model.settings.all_seeds(model.name))
    how: dict[str, Any] = {}
    if flags.samples > 1 and model.settings.skip(model.name).is_stochastic:
        how = dict(mode="sample", samples=flags.samples)

    def perplexities(split, grid, advance):
        found = task.evaluate(params, split, keys, batch_size=1, cache=CacheGrid(flags.cache, *grid), **how)
        advance()
        metric = f"{split}_perplexity"
        return found[metric][model.members], found[f"{metric}_cached"][model.members]

    return _Method(("θ", "λ"), (flags.values("flatness"), flags.values("weight")), 2, perplexities)


def _dynamic(model: FinishedModel, task: LanguageModelling, flags: EvaluateFlags) -> _Method:
    params, keys = model.params(), evaluation_keys(model.settings.all_seeds(model.name))

    def own(tree):
        return jax.tree.map(lambda leaf: leaf[model.members], tree)

    policy = own(task.policy(len(keys)))
    dynamic = DynamicEvaluation(task, own(params), keys[model.members], policy=policy, num_steps=flags.steps)
    grid = flags.values("learning_rate"), flags.values("decay")
    train, dev, test = map(dynamic.num_parts, ("train", "dev", "test"))
    scale = functools.cache(dynamic.gradient_scale)  # of train, once for dev and test

    def perplexities(split, grid, advance):
        without = task.evaluate(params, split, keys, batch_size=1)[f"{split}_perplexity"][model.members]
        adapted = functools.partial(dynamic.perplexity, split, scale(advance), advance=advance)
        found = [[adapted(learning_rate=rate, decay=decay) for decay in grid[1]] for rate in grid[0]]
        return without, np.moveaxis(np.array(found), -1, 0)

    return _Method(("η", "λ"), grid, train + len(grid[0]) * len(grid[1]) * dev + test, perplexities)


def _measured(method: _Method, advance: Callable[[], None]) -> tuple[list[str], list[str], str]:
    """Dev and test without, the same with, and what was chosen for it."""
    firsts, seconds = method.grid
    dev, dev_with = method.perplexities("dev", method.grid, advance)
    i, j = np.unravel_index(dev_with.mean(axis=0).argmin(), dev_with.shape[1:])
    test, test_with = method.perplexities("test", ((firsts[i],), (seconds[j],)), advance)
    without, with_method = (
        [cell(summary(column), ".2f") for column in columns]
        for columns in ((dev, test), (dev_with[:, i, j], test_with[:, 0, 0]))
    )
    first, second = method.signs
    return without, with_method, f"{first} = {firsts[i]:g}, {second} = {seconds[j]:g}"
