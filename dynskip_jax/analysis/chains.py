"""Chains of skips: which states the last one was computed from."""

import numpy as np
from jaxtyping import Bool, Int


def visited(actions: Int[np.ndarray, "examples time"]) -> Bool[np.ndarray, "examples time"]:
    """Which positions lie on the chain of states that leads to the last one.

    The chain starts at the last position, which counts as visited, and goes on from position t to t - k with
    k = actions[:, t], until that is before the first. A k below 1, which stands at padding, ends it too.

    Args:
      actions: the skips k chosen at each position.
    """
    reached = np.zeros(actions.shape, bool)
    reached[:, -1:] = True
    for t in reversed(range(actions.shape[1])):
        before = t - actions[:, t].astype(np.int64)
        (rows,) = np.nonzero(reached[:, t] & (before >= 0) & (before < t))
        reached[rows, before[rows]] = True
    return reached
