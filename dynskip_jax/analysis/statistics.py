"""Compare models over seeds, and describe choices; NumPy only."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

# --- Seeds ---


class Interval(NamedTuple):
    """A mean over seeds, its standard deviation (n - 1) and interval; NaN where undefined."""

    mean: float
    sd: float
    low: float
    high: float
    count: int


def t_interval(values: Sequence[float]) -> Interval:
    """Return the mean of a value per seed, and Student's t interval of 95 %, mean ± t sd / √n."""
    from scipy.special import stdtrit  # scipy.stats would cost a second of start-up

    given = np.asarray(values, np.float64)
    count = given.size
    mean = float(given.mean()) if count else math.nan
    if count < 2:
        return Interval(mean, math.nan, math.nan, math.nan, count)
    sd = float(given.std(ddof=1))
    half = float(stdtrit(count - 1, 0.975)) * sd / math.sqrt(count)
    return Interval(mean, sd, mean - half, mean + half, count)


def paired_difference(values: Mapping[int, float], baseline: Mapping[int, float]) -> Interval:
    """Return the mean and t interval of `values - baseline` over the seeds that both have."""
    return t_interval([values[seed] - baseline[seed] for seed in values if seed in baseline])


# --- Choices ---


def visited(actions: Int[np.ndarray, "examples time"]) -> Bool[np.ndarray, "examples time"]:
    """Return which positions lie on the chain of skips back from the last state of each example.

    The chain continues from t to t - k with k = actions[:, t], and ends at a k below 1 (padding).
    """
    reached = np.zeros(actions.shape, bool)
    reached[:, -1:] = True
    for t in reversed(range(actions.shape[1])):
        before = t - actions[:, t].astype(np.int64)
        (rows,) = np.nonzero(reached[:, t] & (before >= 0) & (before < t))
        reached[rows, before[rows]] = True
    return reached
