"""Check statistics against enumeration, loops and SciPy, and in limits where they are known."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dynskip_jax.analysis.statistics import (
    f1,
    paired_bootstrap,
    paired_difference,
    paired_gain,
    same_word,
    seed_agreement,
    t_interval,
    visited,
)

# (correct, predicted, gold) of four sentences.
A = np.array([[2, 3, 3], [0, 1, 2], [1, 1, 1], [1, 2, 1]])
B = np.array([[3, 3, 3], [1, 1, 2], [1, 2, 1], [0, 1, 1]])
SAMPLES = 20_000


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


def test_the_bootstrap_is_the_share_of_all_resamples():
    places = map(list, itertools.product(range(4), repeat=4))
    exact = np.array([f1(B[i].sum(axis=0)) - f1(A[i].sum(axis=0)) for i in places])
    observed = f1(B.sum(axis=0)) - f1(A.sum(axis=0))
    p = np.mean(np.abs(exact - observed) >= abs(observed) - 1e-12)
    found = paired_bootstrap(A, B, SAMPLES)
    assert found.difference == pytest.approx(observed, abs=1e-12)
    assert 0.1 < p < 0.9 and abs(found.p - p) < 4 * np.sqrt(p * (1 - p) / SAMPLES)
    # Quantiles of a discrete distribution jump, so the test checks the shares on both sides of
    # them.
    for bound, share in ((found.low, 0.025), (found.high, 0.975)):
        assert (
            np.mean(exact < bound - 1e-9) - 0.01 <= share <= np.mean(exact <= bound + 1e-9) + 0.01
        )


def test_the_bootstrap_pairs_sentences_and_averages_seeds():
    forth = paired_bootstrap(A, B, 300, seed=3)
    back = paired_bootstrap(B, A, 300, seed=3)
    assert forth == pytest.approx((-back.difference, -back.high, -back.low, back.p))
    assert paired_bootstrap(A, A, 100) == (0.0, 0.0, 0.0, 1.0)
    words = np.full(200, 10)  # the difference is the same in each sentence
    a, b = (np.stack([words - wrong, words, words], axis=1) for wrong in (3, 1))
    assert paired_bootstrap(a, b, 99) == pytest.approx((0.2, 0.2, 0.2, 0.01))
    seeds = paired_bootstrap(np.stack([A, A]), B[None], 300)
    assert seeds == pytest.approx(paired_bootstrap(A, B, 300))


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_the_margin_knows_that_neighbouring_steps_are_alike(rho):
    """An AR(1) series has a mean with (1 + ρ) / (1 - ρ) times the variance of independent steps."""
    rng = np.random.default_rng(1)
    steps = 20_000
    noise = rng.normal(size=steps)
    series = np.zeros(steps)
    for t in range(steps):
        series[t] = noise[t] + (rho * series[t - 1] if t else 0.0)
    margin = paired_gain(series, np.zeros(steps)).margin
    expected = 1.96 * np.sqrt((1 + rho) / (1 - rho) / (1 - rho**2) / steps)
    # Blocks of 50 steps miss a part of the correlation, here at most 20 % of the margin.
    assert 0.8 * expected < margin < 1.2 * expected


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.integers(1, 4)] * 3), min_size=1))
def test_seeds_agree_as_in_all_pairs(rows):
    shares = []
    chances = []
    for a, b in itertools.combinations(range(3), 2):
        shares.append(sum(row[a] == row[b] for row in rows) / len(rows))
        chances.append(sum(one[a] == other[b] for one in rows for other in rows) / len(rows) ** 2)
    found = seed_agreement(np.array(rows))
    assert found == pytest.approx((np.mean(shares), np.mean(chances)))
    # Renaming the choices does not change the agreement.
    assert seed_agreement(np.array([0, 70, 3, 200, 5])[np.array(rows)]) == pytest.approx(found)


def test_kappa_is_one_for_equal_choices_and_undefined_for_constant_ones():
    assert seed_agreement(np.array([[1, 1], [2, 2], [1, 1]])).kappa == 1
    assert seed_agreement(np.array([[1, 1], [1, 2], [2, 1], [2, 2]])).kappa == 0
    assert np.isnan(seed_agreement(np.ones((3, 2), int)).kappa)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_the_same_word_is_what_a_loop_finds(K, rows, time, seed):
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 3, (rows, time))
    actions = rng.integers(1, K + 1, (rows, time))
    counts = rng.random((rows, time)) < 0.7
    counts[0, 0] = True

    def same(row, t, k):
        return t - k >= 0 and words[row, t - k] == words[row, t]

    steps = np.argwhere(counts)
    shares = [
        np.mean([same(row, t, actions[row, t]) for row, t in steps]),
        np.mean([any(same(row, t, k) for k in range(1, K + 1)) for row, t in steps]),
        # Chance level: each step is paired with the choice of every step.
        np.mean([same(row, t, actions[tuple(other)]) for row, t in steps for other in steps]),
    ]
    assert same_word(words, actions, counts, choices=np.arange(1, K + 1)) == pytest.approx(shares)


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
