"""Check statistics against enumeration, loops and SciPy, and in limits where they are known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dynskip_jax.analysis.statistics import paired_difference, t_interval, visited


def test_intervals_are_those_of_scipy():
    values = [3.0, 4.5, 3.7, 5.1]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert t_interval(values) == pytest.approx(
        (np.mean(values), np.std(values, ddof=1), low, high, 4)
    )
    assert math.isnan(t_interval([]).mean) and t_interval([2.0])[0::4] == (2.0, 1)
    assert math.isnan(t_interval([2.0]).low) and math.isnan(t_interval([1.0, math.nan]).mean)
    paired = paired_difference({0: 1.0, 1: 3.0, 5: 9.0}, {1: 2.0, 0: 1.5, 2: 7.0})
    assert paired == pytest.approx(t_interval([-0.5, 1.0]))


@settings(deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 4),
    st.integers(0, 30),
    st.sampled_from([np.int8, np.int32]),
)
def test_a_walk_back_from_the_end(seed, examples, time, dtype):
    actions = np.random.default_rng(seed).integers(0, time + 4, (examples, time)).astype(dtype)
    for row, found in zip(actions.tolist(), visited(actions), strict=True):
        seen = set()
        t = time - 1
        while t >= 0:
            seen.add(t)
            t = t - row[t] if row[t] else -1
        assert set(np.flatnonzero(found)) == seen
