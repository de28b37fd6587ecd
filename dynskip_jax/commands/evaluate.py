"""The command `evaluate`: perplexity of language models with a neural cache or dynamic evaluation."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import numpy as np

from dynskip_jax.commands import check_unused
from dynskip_jax.config import Bounds
from dynskip_jax.console import print_table, say
from dynskip_jax.devices.host_memory import keep_freed_memory
from dynskip_jax.results import cell, summary
from dynskip_jax.tasks.dynamic_evaluation import DynamicEvaluation
from dynskip_jax.tasks.language import CachedLanguageModelling, CacheGrid
from dynskip_jax.trained import Trained, load_models
from dynskip_jax.training.files import write_atomically
from dynskip_jax.training.progress import Progress
from dynskip_jax.training.step import evaluation_keys

Count = Annotated[int, Bounds(at_least=1, at_most=1_000_000)]
Weight = Annotated[float, Bounds(at_least=0)]
Share = Annotated[float, Bounds(at_least=0, below=1)]
Grid = tuple[tuple[float, ...], tuple[float, ...]]
# Of a split, the values of two hyperparameters and `advance`: the perplexity without the method, (seeds,),
# and with it, (seeds, first hyperparameter, second hyperparameter).
Perplexities = Callable[[str, Grid, Callable[[], None]], tuple[np.ndarray, np.ndarray]]


def evaluate(
    run_dir: Path,
    method: Literal["cache", "dynamic"] = "cache",
    data: Path | None = None,
    cache: Count = 500,
    flatness: tuple[Weight, ...] = (0, 0.1, 0.2, 0.3, 0.5, 0.8),
    weight: tuple[Share, ...] = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3),
    samples: Count = 1,
    learning_rate: tuple[Weight, ...] = (0.00005, 0.0001),
    return_rate: tuple[Weight, ...] = (0.002,),
    steps: Count = 5,
    code: str | None = None,
) -> None:
    """Measure perplexity with a neural cache (Grave et al. 2017) or dynamic evaluation (Krause et al. 2018).

    Of several values, separated by commas, the best on dev is used, by the mean perplexity over seeds. Test
    is then evaluated once. The numbers are also written into the run folder, as `evaluate-METHOD.json`.

    Args:
        run_dir: A finished run folder, of one model or of several compared.
        method: cache: make words of the recent past likelier; dynamic: train on the text while reading it.
        data: Folder of the run's data; by default where the run found it.
        cache: N, number of words that the cache stores.
        flatness: θ of the cache: how much similar states count.
        weight: Weight of the cache in a prediction.
        samples: Average this many predictions with sampled choices (cache); 1: agents choose as in training.
        learning_rate: η of dynamic evaluation, the learning rate after each segment.
        return_rate: λ of dynamic evaluation: how fast parameters return to the trained ones.
        steps: Words of a segment of dynamic evaluation; parameters change after each.
        code: Import this module first: the one with your own skip or transition.
    """
    given = dict(locals())
    check_unused(evaluate, given, _FLAGS[_OTHER[method]], f"is for --method {_OTHER[method]}: leave it out")
    keep_freed_memory()
    models = load_models(run_dir, "evaluate")
    read = next(iter(models.values())).data(data)
    corpus = read.content
    for model in models.values():
        model.check_data(read)
    if method == "cache":
        signs, grid, size = ("θ", "share"), (flatness, weight), f"a cache of {cache} words"
        make = functools.partial(_cached, data=read, size=cache, samples=samples)
    else:
        signs, grid, size = ("η", "decay"), (learning_rate, return_rate), f"segments of {steps} words"
        make = functools.partial(_dynamic, data=read, steps=steps, grid=grid)
    made = {name: make(model) for name, model in models.items()}
    rows, results = [], {}
    with Progress(sum(work for work, _ in made.values()), "evaluating") as progress:
        for name, (_, perplexities) in made.items():
            found = results[name] = _select_on_dev(perplexities, grid, progress.advance)
            texts = {column: cell(found[column], ".2f") for column in found if column != "chosen"}
            rows.append([name, texts["dev"], texts["test"], ""])
            chosen = _chosen(found["chosen"], signs, grid)
            rows.append([f"  + {method}", texts["dev_with"], texts["test_with"], chosen])
    print_table(f"{corpus.name}, perplexity with {size}", ["model", "dev", "test", "chosen on dev"], rows)
    if corpus.text_sizes:
        powers = [
            f"{corpus.splits[split].size / corpus.text_sizes[split].words:.4f} on {split}"
            for split in ("dev", "test")
        ]
        say(f"Perplexities are per {corpus.vocabulary.unit}. Per word: to the power {', '.join(powers)}.")
    path = run_dir / f"evaluate-{method}.json"
    flags = {name: given[name] for name in _FLAGS[method]}
    try:
        told = {"data": corpus.name, "flags": flags, "models": results}
        write_atomically(path, json.dumps(told, indent=1) + "\n")
        say(f"written: {path}")
    except OSError as error:  # such as a read-only folder
        say(f"warning: {path} cannot be written ({error.strerror or error})")


_FLAGS = {
    "cache": ("cache", "flatness", "weight", "samples"),
    "dynamic": ("learning_rate", "return_rate", "steps"),
}
_OTHER = {"cache": "dynamic", "dynamic": "cache"}


def _cached(model: Trained, data: Any, size: int, samples: int) -> tuple[int, Perplexities]:
    """Return the evaluation with a neural cache, and how often it calls `advance` for dev and test."""
    learner, keys = model.learner, evaluation_keys(model.learner.seeds)
    how: dict[str, Any] = {}
    if samples > 1 and model.together.skip.is_stochastic:
        how = dict(mode="sample", samples=samples)

    def perplexities(split, grid, advance):
        kind = functools.partial(CachedLanguageModelling, cache=CacheGrid(size, *grid))
        task = model.task_with(data, kind)
        found = learner.evaluate(model.all_params, split, keys, batch_size=1, task=task, **how)
        advance()
        metric = f"{split}_perplexity"
        return found[metric][model.seeds], found[f"{metric}_cached"][model.seeds]

    return 2, perplexities


def _dynamic(model: Trained, data: Any, steps: int, grid: Grid) -> tuple[int, Perplexities]:
    """Return dynamic evaluation, and how often it calls `advance` for a grid on dev and one pair on test."""
    learner = model.learner_with(data, together=True)
    keys = evaluation_keys(learner.seeds)
    params, policy, own = jax.tree.map(
        lambda leaf: leaf[model.seeds], (model.all_params, learner.policy(), keys)
    )
    dynamic = DynamicEvaluation(learner, params, own, policy=policy, num_steps=steps)
    scale = functools.cache(dynamic.gradient_scale)  # computed on train, once for dev and test

    def perplexities(split, grid, advance):
        found = learner.evaluate(model.all_params, split, keys, batch_size=1)
        adapted = functools.partial(dynamic.perplexity, split, scale(advance), advance=advance)
        changed = [[adapted(learning_rate=rate, decay=decay) for decay in grid[1]] for rate in grid[0]]
        return found[f"{split}_perplexity"][model.seeds], np.moveaxis(np.array(changed), -1, 0)

    train, dev, test = map(dynamic.num_parts, ("train", "dev", "test"))
    return train + len(grid[0]) * len(grid[1]) * dev + test, perplexities


def _select_on_dev(perplexities: Perplexities, grid: Grid, advance: Callable[[], None]) -> dict[str, Any]:
    """Select the hyperparameters on dev, and evaluate test once with them.

    Returns:
        Summaries over seeds: `dev` and `test` without the method, `dev_with` and `test_with`, and `chosen`.
    """
    dev, dev_with = perplexities("dev", grid, advance)
    i, j = np.unravel_index(dev_with.mean(axis=0).argmin(), dev_with.shape[1:])
    best = grid[0][i], grid[1][j]
    test, test_with = perplexities("test", ((best[0],), (best[1],)), advance)
    columns = {"dev": dev, "test": test, "dev_with": dev_with[:, i, j], "test_with": test_with[:, 0, 0]}
    return {name: summary(values) for name, values in columns.items()} | {"chosen": best}


def _chosen(best: tuple[float, float], signs: tuple[str, str], grid: Grid) -> str:
    """Return the chosen values as text, and whether they are an end of three or more that were tried."""
    text = ", ".join(f"{sign} = {value:g}" for sign, value in zip(signs, best, strict=True))
    ends = [
        sign
        for sign, value, tried in zip(signs, best, grid, strict=True)
        if len(tried) > 2 and value in (min(tried), max(tried))
    ]
    return f"{text} ({', '.join(ends)}: an end of the grid)" if ends else text
