"""The output of a finished model for one text, for `predict`, `explain` and notebooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class TextReading(NamedTuple):
    """A model's prediction for a text, and its choices at each word.

    Attributes:
        words: Words as the model reads them.
        unknown: Words of the text that are not in the vocabulary.
        skips: `connections` of the top layer that reads from the start, at each word; 0 if there are no
            choices to show.
        probabilities: Probability of each prediction, or of each word; NaN where there is none.
        prediction: The prediction as one line.
        backward: `connections` of the top layer that reads from the end: k leads to word t + k. None if there
            is no such layer, or if it has no choices to show.
        weights: Function that returns the probability of each k for the agent of the layer of `skips`, or the
            weight of each k for its attention, (words, K). It returns None if the layer has neither.
        backward_weights: The same function for the layer of `backward`.
        is_of_predictions: Whether `probabilities` are those of the model's own predictions, instead of those
            of the words of the text.
    """

    words: list[str]
    unknown: list[str]
    skips: list[int]
    probabilities: list[float]
    prediction: str
    backward: list[int] | None = None
    weights: Callable[[], Float[np.ndarray, "words K"] | None] = lambda: None
    backward_weights: Callable[[], Float[np.ndarray, "words K"] | None] = lambda: None
    is_of_predictions: bool = False
