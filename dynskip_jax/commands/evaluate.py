"""The command `evaluate`: perplexity of language models with a neural cache."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from dynskip_jax.config.flags import Count, Rate, Weight
from dynskip_jax.data.language import LanguageCorpus
from dynskip_jax.errors import UserError
from dynskip_jax.runs.finished import FinishedRun
from dynskip_jax.runs.load import Trained
from dynskip_jax.runs.tables import cell, summary
from dynskip_jax.storage.files import write_atomically
from dynskip_jax.tasks.language import CachedLanguageModelling
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.terminal.console import print_table, say
from dynskip_jax.training.progress import Progress

_COLUMNS = ("dev", "test", "dev_with", "test_with")


def evaluate(
    run: FinishedRun,
    data: Path | None = None,
    cache: Count = 500,
    flatness: tuple[Weight, ...] = (0, 0.1, 0.2, 0.3, 0.5, 0.8),
    weight: tuple[Rate, ...] = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3),
) -> None:
    """Measure the perplexity of a language model with a neural cache (Grave et al. 2017).

    Of several values, separated by commas, the best on dev is used, by the mean perplexity over
    seeds. Test is then evaluated once. The numbers are also written into the run folder, as
    `evaluate-cache.json`.

    Args:
        data: Folder of the run's data; by default where the run found it.
        cache: N, number of words of the recent past that the cache makes likelier.
        flatness: θ of the cache: how much similar states count.
        weight: Weight of the cache in a prediction.
    """
    flags = dict(cache=cache, flatness=flatness, weight=weight)
    if run.of_seed is not None:
        raise UserError(
            "--of-seed has no effect, because the scores are means over all seeds: leave it out"
        )
    models = run.models("evaluate")
    read = next(iter(models.values())).data(data)  # all models of a folder have the same
    path = run.run_dir / "evaluate-cache.json"
    told = dict(data=read.name, flags=flags | {"models": [*models]})

    results = {}
    with Progress(2 * len(models), "evaluating") as progress:  # each model reads dev and test
        for name, model in models.items():
            learner = model.learner_with(read)
            results[name] = _with_the_best(model, learner, cache, flatness, weight, progress)

    _print_perplexities(cache, read.content, results)
    with run.warned():
        write_atomically(path, json.dumps(told | {"models": results}, indent=1) + "\n")
        say(f"written: {path}")


def _with_the_best(
    model: Trained,
    learner: Learner,
    size: int,
    flatness: tuple[float, ...],
    weight: tuple[float, ...],
    progress: Progress,
) -> dict[str, Any]:
    """Return the perplexities on dev and test with the values that are best on dev."""
    dev, dev_cached = perplexities(model, learner, "dev", size, flatness, weight)
    progress.advance(1)
    # What diverged is not the best.
    means = np.nan_to_num(dev_cached.mean(axis=0), nan=np.inf)
    i, j = np.unravel_index(means.argmin(), means.shape)
    chosen = flatness[i], weight[j]
    # Test is read with the chosen values only, so that nothing can be chosen on it.
    test, test_cached = perplexities(model, learner, "test", size, chosen[:1], chosen[1:])
    progress.advance(1)
    found = {
        "dev": dev,
        "test": test,
        "dev_with": dev_cached[:, i, j],
        "test_with": test_cached[:, 0, 0],
    }
    return {name: summary(values) for name, values in found.items()} | {"chosen": chosen}


def perplexities(
    model: Trained,
    learner: Learner,
    split: str,
    size: int,
    flatness: tuple[float, ...],
    weight: tuple[float, ...],
) -> tuple[Float[np.ndarray, " seeds"], Float[np.ndarray, "seeds flatness weight"]]:
    """Return the perplexity of each seed without a cache, and with one of each pair of values."""
    task = CachedLanguageModelling(learner.task, size=size, flatness=flatness, weight=weight)
    found = model.learner.evaluate(model.all_params, split, model.keys, batch_size=1, task=task)
    plain = found[f"{split}_perplexity"]
    cached = found[f"{split}_perplexity_cached"]
    return plain[model.seeds], cached[model.seeds]


def _print_perplexities(
    size: int, corpus: LanguageCorpus, results: Mapping[str, Mapping[str, Any]]
) -> None:
    """Print two rows for each model, without the cache and with it."""
    rows = []
    for name, found in results.items():
        dev, test, dev_with, test_with = (cell(found[column], ".2f") for column in _COLUMNS)
        flatness, weight = found["chosen"]
        rows.append([name, dev, test, ""])
        rows.append(["  + cache", dev_with, test_with, f"θ = {flatness:g}, weight = {weight:g}"])
    title = f"{corpus.name}, perplexity with a cache of {size} words"
    print_table(title, ["model", "dev", "test", "chosen on dev"], rows)
