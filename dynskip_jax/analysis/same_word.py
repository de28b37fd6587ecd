"""Measure how often an agent chooses the state after an earlier occurrence of the current word."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int


class SameWord(NamedTuple):
    """Fractions of the steps of a text at which a state after the same word, x(t-k) = x(t), is chosen.

    Attributes:
        share: Fraction of steps at which the chosen state follows the same word.
        possible: Fraction of steps at which any of the states that may be chosen follows the same word.
        by_chance: Expected `share` of an agent that samples each k with the frequency of the agent's choices,
            independently of the text.
    """

    share: float
    possible: float
    by_chance: float

    def __str__(self) -> str:
        text = f"{self.share:.1%} of words, by its rates alone {self.by_chance:.1%}"
        if self.possible:
            text += f"; {self.share / self.possible:.1%} of those that stand within its reach"
        return text


def same_word(
    words: Int[np.ndarray, "rows time"],
    actions: Int[np.ndarray, "rows time"],
    counts: Bool[np.ndarray, "rows time"],
    *,
    choices: Int[np.ndarray, " choices"],
) -> SameWord:
    """Return how often choices lead back to the current word.

    If a step has fewer than k words before it, h(t-k) follows no word.

    Args:
        words: Token ids x(t). Each row is a text from its beginning.
        actions: k of each step: h(t-k), the state after x(t-k), was chosen.
        counts: True for steps that count; there is at least one.
        choices: Values of k that may be chosen.
    """
    rates = np.bincount(actions[counts], minlength=choices.max() + 1) / counts.sum()
    taken, within, expected = (np.zeros(words.shape, dtype) for dtype in (bool, bool, float))
    for k in choices:
        same = np.zeros(words.shape, bool)
        same[:, k:] = words[:, k:] == words[:, :-k]
        taken |= same & (actions == k)
        within |= same
        expected += rates[k] * same
    return SameWord(*(float(of[counts].mean()) for of in (taken, within, expected)))
