"""Follow chains of skips back from the last state of each sequence."""

import numpy as np
from jaxtyping import Bool, Int


def visited(actions: Int[np.ndarray, "examples time"]) -> Bool[np.ndarray, "examples time"]:
    """Return which positions lie on the chain of skips that leads to the last state of each example.

    The chain starts at the last position, which counts as visited. It continues from position t to t - k with
    k = actions[:, t] and ends when t - k is before the first position. A k below 1 (padding) also ends it.

    Args:
        actions: Skip k chosen at each position, (examples, time).

    Returns:
        True at visited positions, (examples, time).
    """
    reached = np.zeros(actions.shape, bool)
    reached[:, -1:] = True
    for t in reversed(range(actions.shape[1])):
        before = t - actions[:, t].astype(np.int64)
        (rows,) = np.nonzero(reached[:, t] & (before >= 0) & (before < t))
        reached[rows, before[rows]] = True
    return reached
