"""Check averages of iterates against loops and the published trigger, and plateaus by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynskip_jax.training.asgd import (
    ALL,
    average_start,
    average_update,
    averaging_rule,
    non_monotone_trigger,
)
from dynskip_jax.training.optimizer import decay_on_plateau

STEPS = 12
SEEDS = 3


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, STEPS), min_size=SEEDS, max_size=SEEDS))
@settings(deadline=None, max_examples=25)
def test_the_mean_of_each_seeds_iterates_since_its_trigger(seed, first_active):
    iterates = np.random.default_rng(seed).normal(size=(STEPS, SEEDS, 2, 3))
    # Iterates before the last one are forgotten.
    iterates[: min(first_active) - 1] = np.nan if seed % 2 else np.inf
    active = np.arange(STEPS)[:, None] >= np.array(first_active)
    with jax.enable_x64(True):
        update = jax.jit(jax.vmap(average_update))
        most = jnp.where(active, ALL, 1)
        state = jax.vmap(average_start)({"w": jnp.asarray(iterates[0])})
        for step in range(1, STEPS):
            state = update(state, {"w": jnp.asarray(iterates[step])}, most[step])
        for s in range(SEEDS):
            last_off = max(step for step in range(STEPS) if not active[step, s])
            assert state.count[s] == STEPS - last_off
            mean = iterates[last_off:, s].mean(0)
            np.testing.assert_allclose(state.mean["w"][s], mean, rtol=1e-12, atol=1e-14)


def test_a_moving_average_is_a_mean_until_it_is_full():
    iterates = np.random.default_rng(1).normal(size=(STEPS, 4))
    most = 5
    with jax.enable_x64(True):
        state = average_start(jnp.asarray(iterates[0]))
        for w in iterates[1:]:
            state = average_update(state, jnp.asarray(w), most)
    wanted = iterates[:most].mean(0)
    for w in iterates[most:]:
        wanted = 0.8 * wanted + 0.2 * w
    np.testing.assert_allclose(state.mean, wanted, rtol=1e-12)


def published_trigger(metrics, n):
    """Return whether averaging in the authors' main.py begins for one seed."""
    logs = []
    for v in metrics:
        if len(logs) > n and v > min(logs[: len(logs) - n]):
            return True
        logs.append(v)
    return False


@given(
    st.lists(st.lists(st.integers(0, 8), min_size=2, max_size=2), max_size=14), st.integers(0, 6)
)
@settings(deadline=None, max_examples=200)
def test_trigger_is_the_published_algorithm_for_each_seed(rows, n):
    history = np.array(rows, float).reshape(len(rows), 2)
    for epoch in range(len(rows) + 1):
        expected = [published_trigger(history[:epoch, s], n) for s in range(2)]
        assert non_monotone_trigger(history[:epoch], n).tolist() == expected


def test_diverged_epochs():
    nan = np.nan
    history = np.array([[nan, 50, 50], [70, 40, 40], [60, nan, np.inf], [65, 30, 30]])
    assert non_monotone_trigger(history, 0).tolist() == [True, False, True]
    assert not non_monotone_trigger(np.full((9, 2), nan)).any()


@pytest.mark.parametrize(
    ("kind", "after", "begins"),
    [
        ("always", 0, [0, 0]),
        ("ema", 3, [3, 3]),
        ("non_monotone", 0, [8, 7]),
        ("non_monotone", 8, [8, 8]),
    ],
)
def test_some_epochs_are_averaged_by_neither_rule(kind, after, begins):
    # Triggers after 8 and 7.
    history = np.array([[90, 90], *[[80, 80]] * 5, [79, 99], [85, 99]], float)
    averages = [averaging_rule(kind, after)(history[:epoch]) for epoch in range(len(history) + 1)]
    assert np.argmax(averages, axis=0).tolist() == begins
    assert np.max(averages) == (1000 if kind == "ema" else ALL)
    assert averaging_rule("none", after) is None and (averaging_rule(kind, 9)(history) == 1).all()


def test_plateau_counts_each_seeds_own_stalled_epochs():
    rate = decay_on_plateau(1.0, 0.5, threshold=1.0, floor=0.005)
    # Improvements of the first seed: 10, 0.5, -5, 6; of the second: 1, 0.9, 2, 0.
    epochs = [[100, 50], [90, 49], [89.5, 48.1], [94.5, 46.1], [88.5, 46.1]]
    expected = [[1, 1], [1, 1], [1, 1], [0.5, 0.5], [0.25, 0.5], [0.25, 0.25]]
    for epoch, wanted in enumerate(expected):
        history = np.array(epochs[:epoch], float).reshape(epoch, 2)
        np.testing.assert_allclose(rate(epoch, history), wanted, err_msg=f"epoch {epoch}")
    # No number, no plateau.
    np.testing.assert_allclose(rate(3, np.array([[90], [np.nan], [90]])), [1.0])
    np.testing.assert_allclose(rate(8, np.full((8, 1), 90.0)), [1 / 128])
    np.testing.assert_allclose(rate(9, np.full((9, 1), 90.0)), [0.005])
