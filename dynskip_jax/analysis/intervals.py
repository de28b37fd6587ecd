"""Means over seeds with Student's confidence interval, and differences of two models seed by seed."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats


class Interval(NamedTuple):
    """A mean over seeds, and where its expectation may lie.

    Attributes:
        mean: of the values.
        sd: standard deviation (n - 1) of the values; NaN for fewer than two.
        low: lower end of the confidence interval; NaN for fewer than two values.
        high: upper end.
        count: how many values there are.
    """

    mean: float
    sd: float
    low: float
    high: float
    count: int


def t_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Returns mean and interval of values that are taken for independent and normal: mean ± t sd / √n.

    A value that is not a number makes all of them NaN.

    Args:
        values: one for each seed.
        confidence: with which the interval holds the expectation.
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
    """Returns mean and interval of the differences at the seeds that both have; see `t_interval`.

    Args:
        values: by seed.
        baseline: is subtracted, by seed.
        confidence: with which the interval holds the expected difference.
    """
    return t_interval([values[seed] - baseline[seed] for seed in values if seed in baseline], confidence)
