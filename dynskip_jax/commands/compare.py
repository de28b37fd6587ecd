"""The command `compare`: compare taggers on test with a paired bootstrap over sentences."""

from pathlib import Path
from typing import Any

import numpy as np

from dynskip_jax.analysis import statistics
from dynskip_jax.config import Count
from dynskip_jax.console import print_table
from dynskip_jax.errors import UserError
from dynskip_jax.finished import FinishedRun
from dynskip_jax.tasks.label_score import sentence_counts
from dynskip_jax.trained import Trained


def compare(
    run_dir: tuple[Path, ...],
    data: Path | None = None,
    samples: Count = 10_000,
    code: str | None = None,
) -> None:
    """Test by a paired bootstrap over sentences of test whether models differ from the first one.

    The score of a model is the mean over its seeds. Nothing is written into the run folders.

    Args:
        run_dir: Finished run folders, separated by commas, of one model or several.
        data: Folder of the run's data; by default where the run found it.
        samples: Number of bootstrap resamples.
        code: Import this module first: the one with your own skip or transition.
    """
    found = {}
    tests = {}
    for folder in dict.fromkeys(run_dir):
        models = FinishedRun(run_dir=folder).models("compare")
        read = next(iter(models.values())).data(data)  # all models of a folder have the same
        for name, model in models.items():
            label = name if len(run_dir) == 1 else f"{folder}: {name}"
            tests[label] = [
                (sentence.words, sentence.tags) for sentence in read.content.splits["test"]
            ]
            found[label] = model, read
    if len(found) < 2:
        raise UserError(
            f"{', '.join(map(str, run_dir))} holds one model: name several run folders, separated "
            "by commas, or train several models with --compare a,b"
        )
    first, *others = found
    for name in others:  # before anything is predicted
        if tests[name] != tests[first]:
            raise UserError(f"{name} has another test set than {first}: compare runs on one corpus")
    # Counts of each sentence, so that a resample costs a sum and no prediction.
    counts = {name: _counts(*of) for name, of in found.items()}
    # F1 is of the sums over sentences, not a mean of sentences; then a mean over seeds.
    means = {name: float(np.mean(statistics.f1(each.sum(axis=1)))) for name, each in counts.items()}
    rows = [[first, f"{means[first]:.2%}"]]
    for name in others:
        gain = statistics.paired_bootstrap(counts[first], counts[name], samples)
        difference, low, high = (f"{100 * number:+.2f}" for number in gain[:3])
        says = "may be chance" if gain.low <= 0 <= gain.high else "differs"
        rows.append(
            [name, f"{means[name]:.2%}", difference, f"{low} to {high}", f"{gain.p:.3f}", says]
        )
    headings = ["model", "score", "difference", "95 % of resamples", "p", ""]
    print_table(f"{found[first][1].name}, test, beside {first}", headings, rows)


def _counts(model: Trained, data: Any) -> np.ndarray:
    """Return the counts from which the score on test is computed, (seeds, sentences, counts)."""
    learner = model.learner_with(data)
    found = learner.predictions(model.all_params, "test", model.keys)[model.seeds]
    gold = [sentence.tags for sentence in data.content.splits["test"]]
    how = dict(has_entities=data.content.scheme is not None)
    tags = model.vocabulary.tags
    predicted = [[[tags[k] for k in row] for row in of_seed] for of_seed in found]
    return np.stack([sentence_counts(gold, of_seed, **how) for of_seed in predicted])
