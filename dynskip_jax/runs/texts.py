"""Read texts with a trained model, and write its predictions: what experiments do by default."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from dynskip_jax.analysis.reading import Reading
from dynskip_jax.errors import UserError
from dynskip_jax.runs.load import Trained
from dynskip_jax.tasks.task import Task


def described(task: Task, predicted: Any, probability: float) -> str:
    """Return a prediction, and the probability of the least certain of its classes."""
    if task.class_names:
        shown = task.class_names[int(predicted)]
    else:
        shown = " ".join(map(str, np.atleast_1d(predicted)))
    return f"{shown}  ({probability:.3f})"


def read_text(
    trained: Trained, text: str, describe: Callable[[Task, Any, float], str] = described
) -> Reading:
    """Read a text with a trained model, and return its prediction and its choices."""
    task = trained.learner.task
    inputs, words = task.encode(text)
    found, predicted = trained.learner.read(trained.params, inputs, len(words), trained.policy)
    certain = np.exp(np.atleast_1d(np.asarray(found.log_probs).max(axis=-1)))
    # A text may be longer than the model reads, so `words` may be shorter.
    typed = zip(task.split(text), words, strict=False)
    return Reading(
        words,
        unknown=[word for word, known in typed if word != known],
        probabilities=[math.nan] * (len(words) - len(certain)) + certain.tolist(),
        prediction=describe(task, predicted, float(certain.min())),
        **trained.choices(found.decisions, found.observations, len(words)),
    )


def predict_lines(
    trained: Trained, lines: Iterable[str], format: str
) -> Iterator[tuple[str, bool]]:
    """Yield what `predict` writes for each text, and whether the text has no words."""
    if format != "text":
        raise UserError("--format is for taggers: leave it out")
    for line in lines:
        # An empty line has an empty prediction, so that lines of input and output agree.
        if trained.split(line):
            yield f"{trained.read(line).prediction}\n", False
        else:
            yield "\n", True
