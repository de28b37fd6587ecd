"""Compute means over seeds, and paired differences of two models, with Student's t confidence intervals."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats


class Interval(NamedTuple):
    """A mean over seeds with a confidence interval of the expected value.

    Attributes:
        mean: Mean of the values; NaN without values.
        sd: Standard deviation (n - 1) of the values; NaN for fewer than two values.
        low: Lower end of the confidence interval; NaN for fewer than two values.
        high: Upper end of the confidence interval; NaN for fewer than two values.
        count: Number of values.
    """

    mean: float
    sd: float
    low: float
    high: float
    count: int


def t_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the mean of the values and its t interval, mean ± t sd / √n.

    The interval assumes independent and normally distributed values. If a value is NaN, so are the mean, the
    standard deviation and the interval.

    Args:
        values: One value for each seed.
        confidence: Confidence level of the interval.
    """
    given = np.asarray(values, np.float64)
    count = given.size
    if count == 0:
        return Interval(math.nan, math.nan, math.nan, math.nan, 0)
    mean = float(given.mean())
    if count == 1:
        return Interval(mean, math.nan, math.nan, math.nan, 1)
    sd = float(given.std(ddof=1))
    half = float(stats.t.ppf((1 + confidence) / 2, count - 1)) * sd / math.sqrt(count)
    return Interval(mean, sd, mean - half, mean + half, count)


def paired_difference(
    values: Mapping[int, float], baseline: Mapping[int, float], confidence: float = 0.95
) -> Interval:
    """Return the mean and t interval of `values - baseline` over the seeds that both have; see `t_interval`.

    Args:
        values: Value of each seed.
        baseline: Value of each seed to subtract.
        confidence: Confidence level of the interval.
    """
    return t_interval([values[seed] - baseline[seed] for seed in values if seed in baseline], confidence)
