"""What a finished model makes of one text, for `predict`, `explain` and notebooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class TextReading(NamedTuple):
    """What a model makes of a text.

    Attributes:
        words: the words as the model reads them.
        unknown: the words of the text that the model does not know.
        skips: the top layer's `connections`; 0 without choices to show.
        probabilities: of what is predicted, or of the words themselves; NaN where there is no prediction.
        prediction: the prediction in one line.
        backward: k of the layer that reads from the end, where the model reads in both directions.
        weights: return how probable each k was to the agent of the top layer, or how heavy to its attention,
            (words, K); None where it has neither.
        backward_weights: the same of the layer that reads from the end.
    """

    words: list[str]
    unknown: list[str]
    skips: list[int]
    probabilities: list[float]
    prediction: str
    backward: list[int] | None = None
    weights: Callable[[], Float[np.ndarray, "words K"] | None] = lambda: None
    backward_weights: Callable[[], Float[np.ndarray, "words K"] | None] = lambda: None
