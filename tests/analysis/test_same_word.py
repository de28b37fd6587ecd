"""Check the share of choices that lead back to the same word, against a loop and in known cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynskip_jax.analysis.same_word import same_word


@settings(deadline=None)
@given(st.data())
def test_it_is_what_a_loop_finds(data):
    K, rows, time = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    words, actions = rng.integers(0, 3, (rows, time)), rng.integers(1, K + 1, (rows, time))
    counts = rng.random((rows, time)) < 0.7
    counts[0, 0] = True

    def same(row, t, k):
        return t - k >= 0 and words[row, t - k] == words[row, t]

    steps = [(row, t) for row in range(rows) for t in range(time) if counts[row, t]]
    shares = [
        np.mean([same(row, t, actions[row, t]) for row, t in steps]),
        np.mean([any(same(row, t, k) for k in range(1, K + 1)) for row, t in steps]),
        # Chance level: each step is paired with the choice of every step.
        np.mean([same(row, t, actions[other]) for row, t in steps for other in steps]),
    ]
    assert same_word(words, actions, counts, choices=np.arange(1, K + 1)) == pytest.approx(shares)


def test_the_ends_of_the_scale():
    words, everywhere = np.tile([4, 7, 9], 40)[None], np.ones((1, 120), bool)
    back = same_word(words, np.full((1, 120), 3), everywhere, choices=np.arange(1, 6))
    assert back.share == back.possible == back.by_chance == 117 / 120  # the first three have none before them
    assert (
        str(back) == "97.5% of words, by its rates alone 97.5%; 100.0% of those that stand within its reach"
    )
    never = same_word(np.arange(120)[None], np.full((1, 120), 3), everywhere, choices=np.array([3, 5]))
    assert never == (0, 0, 0) and str(never) == "0.0% of words, by its rates alone 0.0%"
