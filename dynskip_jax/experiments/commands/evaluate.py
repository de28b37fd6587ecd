"""The command `evaluate` of `experiments.ptb`: perplexity with a neural cache or dynamic evaluation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from dynskip_jax.experiments.command_line import Subcommand
from dynskip_jax.experiments.commands.flags import CodeFlags
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import path_setting, setting

if TYPE_CHECKING:
    from dynskip_jax.data import LanguageCorpus
    from dynskip_jax.experiments.experiment import Experiment
    from dynskip_jax.experiments.loaded import FinishedModel

consoles = LazyModule("dynskip_jax.experiments.console")
dynamic_evaluation = LazyModule("dynskip_jax.tasks.dynamic_evaluation")
host_memory = LazyModule("dynskip_jax.devices.host_memory")
jax = LazyModule("jax")
loading = LazyModule("dynskip_jax.experiments.loaded")
neural_cache = LazyModule("dynskip_jax.tasks.neural_cache")
run_progress = LazyModule("dynskip_jax.training.progress")
rich_table = LazyModule("rich.table")
step = LazyModule("dynskip_jax.training.step")
tables = LazyModule("dynskip_jax.experiments.table")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateFlags(CodeFlags):
    """Flags of `evaluate`; of several values, separated by commas, the best on dev is used."""

    run_dir: str = path_setting(help="A finished run folder, of one model or of several compared.")
    data: str | None = path_setting(None, "Folder of the run's data; by default where the run found it.")
    method: Literal["cache", "dynamic"] = setting(
        "cache",
        "cache: make words of the recent past likelier (Grave et al. 2017); dynamic: train on the text while "
        "reading it (Krause et al. 2018).",
    )
    cache: int = setting(
        500, "N, number of words that the cache stores.", at_least=1, needs={"method": "cache"}
    )
    flatness: tuple[float, ...] = setting(
        (0, 0.1, 0.2, 0.3, 0.5, 0.8),
        "θ of the cache: how much similar states count.",
        at_least=0,
        needs={"method": "cache"},
    )
    weight: tuple[float, ...] = setting(
        (0.02, 0.05, 0.1, 0.15, 0.2, 0.3),
        "Weight of the cache in a prediction.",
        at_least=0,
        below=1,
        needs={"method": "cache"},
    )
    samples: int = setting(
        1,
        "Average this many predictions with sampled choices; 1: agents choose as in training.",
        at_least=1,
        needs={"method": "cache"},
    )
    learning_rate: tuple[float, ...] = setting(
        (0.00005, 0.0001),
        "η of dynamic evaluation, the learning rate after each segment.",
        at_least=0,
        needs={"method": "dynamic"},
    )
    return_rate: tuple[float, ...] = setting(
        (0.002,),
        "λ of dynamic evaluation: how fast parameters return to the trained ones.",
        at_least=0,
        needs={"method": "dynamic"},
    )
    steps: int = setting(
        5, "Words of a segment; parameters change after each.", at_least=1, needs={"method": "dynamic"}
    )


Grid = tuple[tuple[float, ...], tuple[float, ...]]


def evaluate(experiment: type[Experiment], flags: EvaluateFlags) -> None:
    """Print the perplexity of finished models with and without a neural cache or dynamic evaluation.

    Hyperparameters of the method are selected on dev for each model, by the mean perplexity over its seeds.
    Test is then evaluated once. Nothing is written into the run folder.

    Args:
        experiment: The experiment of the run.
        flags: Flags of the command.
    """
    host_memory.keep_freed_memory()
    models = loading.finished_models(flags.run_dir, experiment.name)
    corpus = loading.data_of(next(iter(models.values())), flags.data)
    for model in models.values():
        loading.check_data(model, corpus)
    make = {"cache": _cached, "dynamic": _dynamic}[flags.method]
    methods = [make(model, corpus, flags) for model in models.values()]
    size = {"cache": f"a cache of {flags.cache} words", "dynamic": f"segments of {flags.steps} words"}
    table = rich_table.Table(
        title=f"{corpus.name}, perplexity with {size[flags.method]}", title_justify="left"
    )
    for heading in ("model", "dev", "test", "chosen on dev"):
        table.add_column(heading, no_wrap=True, justify="right" if heading in ("dev", "test") else "left")
    with run_progress.Progress(sum(method.work for method in methods), "evaluating") as progress:
        for name, method in zip(models, methods, strict=True):
            without, with_method, chosen = _measured(method, progress.advance)
            table.add_row(name, *without)
            table.add_row(f"  + {flags.method}", *with_method, chosen)
    console = consoles.PlainConsole()
    console.print(table)
    if corpus.text_sizes:
        console.print(_per_word(corpus))


def _per_word(corpus: LanguageCorpus) -> str:
    """Return a line of text with the exponents that convert perplexities per token into those per word."""
    powers = [
        f"{corpus.splits[split].size / corpus.text_sizes[split].words:.4f} on {split}"
        for split in ("dev", "test")
    ]
    return f"Perplexities are per {corpus.vocabulary.unit}. Per word: to the power {', '.join(powers)}."


class _Method(NamedTuple):
    """The evaluation of one model with a cache or with dynamic evaluation.

    Attributes:
        signs: Names of the two hyperparameters that are selected on dev.
        grid: Values of each hyperparameter to try.
        work: Number of times that `perplexities` calls `advance`, for the grid on dev and one pair on test.
        perplexities: Function of a split, a grid and `advance`. It returns the perplexity without the method,
            (seeds,), and with it, (seeds, first hyperparameter, second hyperparameter).
    """

    signs: tuple[str, str]
    grid: Grid
    work: int
    perplexities: Callable[[str, Grid, Callable[[], None]], tuple[np.ndarray, np.ndarray]]


def _cached(model: FinishedModel, corpus: LanguageCorpus, flags: EvaluateFlags) -> _Method:
    learner, keys = model.learner, step.evaluation_keys(model.learner.seeds)
    how: dict[str, Any] = {}
    if flags.samples > 1 and model.spec.skip.is_stochastic:
        how = dict(mode="sample", samples=flags.samples)

    def perplexities(split, grid, advance):
        kind = functools.partial(
            neural_cache.CachedLanguageModelling, cache=neural_cache.CacheGrid(flags.cache, *grid)
        )
        task = model.experiment.task(model.spec, corpus, corpus.vocabulary, kind)
        found = learner.evaluate(model.params, split, keys, batch_size=1, task=task, **how)
        advance()
        metric = f"{split}_perplexity"
        return found[metric][model.members], found[f"{metric}_cached"][model.members]

    return _Method(("θ", "share"), (flags.flatness, flags.weight), 2, perplexities)


def _dynamic(model: FinishedModel, corpus: LanguageCorpus, flags: EvaluateFlags) -> _Method:
    params, keys = model.params, step.evaluation_keys(model.learner.seeds)
    learner = model.learner_with(corpus)

    def own(tree):
        return jax.tree.map(lambda leaf: leaf[model.members], tree)

    policy = own(learner.policy())
    dynamic = dynamic_evaluation.DynamicEvaluation(
        learner, own(params), keys[model.members], policy=policy, num_steps=flags.steps
    )
    grid = flags.learning_rate, flags.return_rate
    train, dev, test = map(dynamic.num_parts, ("train", "dev", "test"))
    scale = functools.cache(dynamic.gradient_scale)  # computed on train, once for dev and test

    def perplexities(split, grid, advance):
        without = learner.evaluate(params, split, keys, batch_size=1)[f"{split}_perplexity"][model.members]
        adapted = functools.partial(dynamic.perplexity, split, scale(advance), advance=advance)
        found = [[adapted(learning_rate=rate, decay=decay) for decay in grid[1]] for rate in grid[0]]
        return without, np.moveaxis(np.array(found), -1, 0)

    return _Method(("η", "decay"), grid, train + len(grid[0]) * len(grid[1]) * dev + test, perplexities)


def _measured(method: _Method, advance: Callable[[], None]) -> tuple[list[str], list[str], str]:
    """Select the hyperparameters on dev and evaluate them on test.

    Returns:
        The table cells for dev and test without the method, those with it, and the selected hyperparameters
        as text.
    """
    firsts, seconds = method.grid
    dev, dev_with = method.perplexities("dev", method.grid, advance)
    i, j = np.unravel_index(dev_with.mean(axis=0).argmin(), dev_with.shape[1:])
    test, test_with = method.perplexities("test", ((firsts[i],), (seconds[j],)), advance)
    without, with_method = (
        [tables.cell(tables.summary(column), ".2f") for column in columns]
        for columns in ((dev, test), (dev_with[:, i, j], test_with[:, 0, 0]))
    )
    first, second = method.signs
    chosen = f"{first} = {firsts[i]:g}, {second} = {seconds[j]:g}"
    # With two values or fewer, each is an end of the grid, so there is nothing to report.
    at_end = [
        name
        for name, n, tried in ((first, i, firsts), (second, j, seconds))
        if len(tried) > 2 and tried[n] in (min(tried), max(tried))
    ]
    if at_end:
        chosen += f" ({', '.join(at_end)}: an end of the grid)"
    return without, with_method, chosen


EVALUATE = Subcommand(
    "Measure perplexity with a neural cache or with dynamic evaluation.",
    EvaluateFlags,
    evaluate,
)
