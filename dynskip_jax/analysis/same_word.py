"""How often an agent goes back to the state of an earlier occurrence of the word that is read."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int


class SameWord(NamedTuple):
    """Of the steps of a text at which an agent chose among its last states; shares of them.

    Attributes:
        share: at which the state chosen is the one after the same word, x(t-k) = x(t).
        possible: at which one of the states that may be chosen is.
        by_chance: that share if the agent drew from its own rates, whatever it reads.
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
    """Returns how often choices lead back to the word that is being read.

    Where the text has fewer than k words before a step, h(t-k) is no word's state.

    Args:
        words: x(t), token ids; each row is a text from its beginning.
        actions: k of each step: h(t-k), the state after x(t-k), was chosen.
        counts: whether a step counts; at least one does.
        choices: each k that may be chosen.
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
