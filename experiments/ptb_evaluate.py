"""Perplexity of finished language models that go on learning: the command `evaluate` of `experiments.ptb`."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from dynskip_jax.data import LanguageCorpus
from dynskip_jax.devices.host_memory import keep_freed_memory
from dynskip_jax.runs.progress import Progress
from dynskip_jax.tasks.dynamic_evaluation import DynamicEvaluation
from dynskip_jax.tasks.neural_cache import CachedLanguageModelling, CacheGrid
from dynskip_jax.training.step import evaluation_keys
from experiments.command_line import Command
from experiments.ptb import EvaluateFlags
from experiments.table import cell, summary
from experiments.trained import Finished, check_data, data_of, finished_models

Grid = tuple[tuple[float, ...], tuple[float, ...]]


def evaluate(command: Command, flags: EvaluateFlags) -> None:
    """Measures the perplexity of finished models that go on learning from the text they are evaluated on.

    What the method needs is chosen on dev for each model, over its seeds; test is then read once. Nothing is
    written into the run folder.
    """
    keep_freed_memory()
    models = finished_models(flags.run_dir, command.name)
    corpus = data_of(next(iter(models.values())), flags.data)
    for model in models.values():
        check_data(model, corpus)
    make = {"cache": _cached, "dynamic": _dynamic}[flags.method]
    methods = [make(model, corpus, flags) for model in models.values()]
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


def _cached(model: Finished, corpus: LanguageCorpus, flags: EvaluateFlags) -> _Method:
    learner, keys = model.learner, evaluation_keys(model.learner.seeds)
    how: dict[str, Any] = {}
    if flags.samples > 1 and model.experiment.skip(model.name).is_stochastic:
        how = dict(mode="sample", samples=flags.samples)

    def perplexities(split, grid, advance):
        kind = functools.partial(CachedLanguageModelling, cache=CacheGrid(flags.cache, *grid))
        task = model.experiment.task(model.name, corpus, corpus.vocabulary, kind)
        found = learner.evaluate(model.params, split, keys, batch_size=1, task=task, **how)
        advance()
        metric = f"{split}_perplexity"
        return found[metric][model.members], found[f"{metric}_cached"][model.members]

    return _Method(("θ", "share"), (flags.flatness, flags.weight), 2, perplexities)


def _dynamic(model: Finished, corpus: LanguageCorpus, flags: EvaluateFlags) -> _Method:
    params, keys = model.params, evaluation_keys(model.learner.seeds)
    learner = model.experiment.learner(model.name, corpus, corpus.vocabulary)

    def own(tree):
        return jax.tree.map(lambda leaf: leaf[model.members], tree)

    policy = own(learner.policy())
    dynamic = DynamicEvaluation(
        learner, own(params), keys[model.members], policy=policy, num_steps=flags.steps
    )
    grid = flags.learning_rate, flags.decay
    train, dev, test = map(dynamic.num_parts, ("train", "dev", "test"))
    scale = functools.cache(dynamic.gradient_scale)  # of train, once for dev and test

    def perplexities(split, grid, advance):
        without = learner.evaluate(params, split, keys, batch_size=1)[f"{split}_perplexity"][model.members]
        adapted = functools.partial(dynamic.perplexity, split, scale(advance), advance=advance)
        found = [[adapted(learning_rate=rate, decay=decay) for decay in grid[1]] for rate in grid[0]]
        return without, np.moveaxis(np.array(found), -1, 0)

    return _Method(("η", "decay"), grid, train + len(grid[0]) * len(grid[1]) * dev + test, perplexities)


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
    chosen = f"{first} = {firsts[i]:g}, {second} = {seconds[j]:g}"
    # Of two, each is an end.
    at_end = [
        name
        for name, n, tried in ((first, i, firsts), (second, j, seconds))
        if len(tried) > 2 and tried[n] in (min(tried), max(tried))
    ]
    if at_end:
        chosen += f" ({', '.join(at_end)}: an end of the grid)"
    return without, with_method, chosen
