"""The command `evaluate`: perplexity with a neural cache or dynamic evaluation."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from dynskip_jax.config import Count, Rate, Weight, flag
from dynskip_jax.console import print_table, say
from dynskip_jax.data.files import read_file
from dynskip_jax.data.language import LanguageCorpus
from dynskip_jax.devices.host_memory import keep_freed_memory
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import Dataset
from dynskip_jax.finished import FinishedRun
from dynskip_jax.results import cell, summary
from dynskip_jax.tasks.dynamic_evaluation import DynamicEvaluation
from dynskip_jax.tasks.language import CachedLanguageModelling
from dynskip_jax.trained import Trained
from dynskip_jax.training.files import write_atomically
from dynskip_jax.training.progress import Progress

_MOST_BYTES = 2**26  # of what an earlier evaluation wrote

# A function of a split and the values of two hyperparameters: the perplexity without the method,
# (seeds,), and with it, (seeds, first hyperparameter, second hyperparameter).
Perplexities = Callable[..., tuple[np.ndarray, np.ndarray]]

# The hyperparameters of each method: its size, then the two that are chosen on dev.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "cache": dict(
        cache=500, flatness=(0, 0.1, 0.2, 0.3, 0.5, 0.8), weight=(0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
    ),
    "dynamic": dict(steps=5, learning_rate=(0.00005, 0.0001), return_rate=(0.002,)),
}
_COLUMNS = ("dev", "test", "dev_with", "test_with")


def evaluate(
    run: FinishedRun,
    method: Literal["cache", "dynamic"] = "cache",
    data: Path | None = None,
    cache: Count | None = None,
    flatness: tuple[Weight, ...] | None = None,
    weight: tuple[Rate, ...] | None = None,
    steps: Count | None = None,
    learning_rate: tuple[Weight, ...] | None = None,
    return_rate: tuple[Weight, ...] | None = None,
) -> None:
    """Measure the perplexity of a language model with a neural cache or dynamic evaluation.

    The cache is that of Grave et al. (2017), dynamic evaluation that of Krause et al. (2018).

    Of several values, separated by commas, the best on dev is used, by the mean perplexity over
    seeds. Test is then evaluated once. The numbers are also written into the run folder, as
    `evaluate-METHOD.json`, which is not replaced by those of other flags.

    Args:
        method: cache: make words of the recent past likelier; dynamic: train on the text while
            reading it.
        data: Folder of the run's data; by default where the run found it.
        cache: N, number of words that the cache stores (500).
        flatness: θ of the cache: how much similar states count (0 to 0.8).
        weight: Weight of the cache in a prediction (0.02 to 0.3).
        steps: Words of a segment of dynamic evaluation; parameters change after each (5).
        learning_rate: η of dynamic evaluation, the learning rate after each segment (0.00005 and
            0.0001).
        return_rate: λ of dynamic evaluation: how fast parameters return to the trained ones
            (0.002).
    """
    given = {name: value for name, value in locals().items() if value is not None}
    flags = _flags_of(method, given)
    if run.of_seed is not None:
        raise UserError(
            "--of-seed has no effect, because the scores are means over all seeds: leave it out"
        )
    keep_freed_memory()
    models = run.models("evaluate")
    read = next(iter(models.values())).data(data)  # all models of a folder have the same
    path = run.run_dir / f"evaluate-{method}.json"
    told = dict(data=read.name, flags=flags | {"models": [*models]})
    begin = json.dumps(told, indent=1)[:-2]  # of the file
    if path.exists() and not read_file(path, _MOST_BYTES).decode("utf-8", "replace").startswith(
        begin
    ):
        raise UserError(f"{path} has an evaluation with other flags: move it away")

    size, first, second = flags.values()
    reads = 2  # of a split, by each model
    start = _cached
    if method == "dynamic":
        reads += len(first) * len(second)
        start = _dynamic
    results = {}
    with Progress(reads * len(models), "evaluating") as progress:
        for name, model in models.items():
            perplexities = start(model, read, size, progress.advance)
            results[name] = _with_the_best(perplexities, first, second)

    _print_perplexities(method, size, read.content, results)
    with run.warned():
        write_atomically(path, json.dumps(told | {"models": results}, indent=1) + "\n")
        say(f"written: {path}")


def _flags_of(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of a method: its size, and values of two to choose from."""
    for other in _DEFAULTS.keys() - {method}:
        for name in _DEFAULTS[other].keys() & given:
            raise UserError(f"{flag(name)} is for --method {other}: leave it out")
    return {name: given.get(name, default) for name, default in _DEFAULTS[method].items()}


def _with_the_best(
    perplexities: Perplexities, first: Sequence[float], second: Sequence[float]
) -> dict[str, Any]:
    """Return the perplexities on dev and test with the values that are best on dev."""
    dev, dev_with = perplexities("dev", first, second)
    # What diverged is not the best.
    means = np.nan_to_num(dev_with.mean(axis=0), nan=np.inf)
    i, j = np.unravel_index(means.argmin(), means.shape)
    chosen = first[i], second[j]
    # Test is read with the chosen values only, so that nothing can be chosen on it.
    test, test_with = perplexities("test", chosen[:1], chosen[1:])
    found = {
        "dev": dev,
        "test": test,
        "dev_with": dev_with[:, i, j],
        "test_with": test_with[:, 0, 0],
    }
    return {name: summary(values) for name, values in found.items()} | {"chosen": chosen}


def _print_perplexities(
    method: str, size: int, corpus: LanguageCorpus, results: Mapping[str, Mapping[str, Any]]
) -> None:
    """Print two rows for each model, without the method and with it."""
    signs = ("θ", "weight")
    title = f"a cache of {size} words"
    if method == "dynamic":
        signs = ("η", "λ")
        title = f"segments of {size} words"
    rows = []
    for name, found in results.items():
        dev, test, dev_with, test_with = (cell(found[column], ".2f") for column in _COLUMNS)
        chosen = zip(signs, found["chosen"], strict=True)
        best = ", ".join(f"{sign} = {value:g}" for sign, value in chosen)
        rows.append([name, dev, test, ""])
        rows.append([f"  + {method}", dev_with, test_with, best])
    print_table(
        f"{corpus.name}, perplexity with {title}", ["model", "dev", "test", "chosen on dev"], rows
    )
    if corpus.text_sizes:
        powers = [
            f"{corpus.splits[split].size / corpus.text_sizes[split].words:.4f} on {split}"
            for split in ("dev", "test")
        ]
        per_word = f"Per word: to the power {', '.join(powers)}."
        say(f"Perplexities are per {corpus.vocabulary.unit}. {per_word}")


def _cached(
    model: Trained, data: Dataset, size: int, advance: Callable[[float], None]
) -> Perplexities:
    """Return the evaluation with a neural cache."""
    task = model.learner_with(data).task

    def perplexities(split, flatness, weight):
        caches = dict(size=size, flatness=flatness, weight=weight)
        cached = CachedLanguageModelling.of(task, **caches)
        how = dict(batch_size=1, task=cached)
        found = model.learner.evaluate(model.all_params, split, model.keys, **how)
        advance(1)
        return tuple(found[f"{split}_perplexity{kind}"][model.seeds] for kind in ("", "_cached"))

    return perplexities


def _dynamic(
    model: Trained, data: Dataset, size: int, advance: Callable[[float], None]
) -> Perplexities:
    """Return dynamic evaluation, whose gradients are scaled by those on train."""
    learner = model.learner_with(data)
    together = (model.all_params, model.keys, learner.policy())
    selected = jax.tree.map(lambda leaf: leaf[model.seeds], together)
    dynamic = DynamicEvaluation(learner, *selected, size)
    scale = dynamic.gradient_scale(advance)

    def perplexities(split, learning_rate, return_rate):
        found = learner.evaluate(model.all_params, split, model.keys, batch_size=1)
        adapted = functools.partial(dynamic.perplexity, split, scale, advance=advance)
        changed = [
            [adapted(learning_rate=r, decay=decay) for decay in return_rate] for r in learning_rate
        ]
        return found[f"{split}_perplexity"][model.seeds], np.moveaxis(np.array(changed), -1, 0)

    return perplexities
