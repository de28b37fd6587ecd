"""Check the chain of skips against a walk in plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynskip_jax.analysis.chains import visited


def walk(row):
    """Return the visited positions of one example, from the last one back."""
    t = len(row) - 1
    seen = []
    while t >= 0:
        seen.append(t)
        if row[t] < 1:
            break
        t -= row[t]
    return seen


def positions(row):
    return np.flatnonzero(row).tolist()


@st.composite
def batches(draw):
    examples, time = draw(st.integers(0, 6)), draw(st.integers(1, 30))
    largest = draw(st.integers(1, time + 3))
    row = st.lists(st.integers(0, largest), min_size=time, max_size=time)
    rows = draw(st.lists(row, min_size=examples, max_size=examples))
    return np.array(rows, draw(st.sampled_from([np.int8, np.int32, np.int64]))).reshape(examples, time)


@settings(max_examples=300, deadline=None)
@given(batches())
def test_a_walk_back_from_the_end(actions):
    before = actions.copy()
    found = visited(actions)
    assert found.shape == actions.shape and found.dtype == bool
    assert [positions(row) for row in found] == [sorted(walk(row)) for row in actions.tolist()]
    np.testing.assert_array_equal(actions, before)


def test_by_hand():
    #                    0  1  2  3  4  5
    actions = np.array([[1, 1, 1, 1, 1, 1], [9, 1, 2, 4, 1, 3], [1, 1, 1, 1, 1, 6], [1, 1, 1, 0, 1, 2]])
    assert [positions(row) for row in visited(actions)] == [[0, 1, 2, 3, 4, 5], [0, 2, 5], [5], [3, 5]]


def test_long_sequences_of_small_numbers():
    actions = np.full((2, 501), 100, np.int8)
    assert positions(visited(actions)[1]) == [0, 100, 200, 300, 400, 500]


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_nothing_to_visit(shape):
    assert visited(np.ones(shape, np.int32)).tolist() == np.ones(shape, bool).tolist()
