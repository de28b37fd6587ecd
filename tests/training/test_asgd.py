"""Check NT-ASGD: means against loops and torch.optim.ASGD, the trigger against the published algorithm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynskip_jax.training.asgd import average_start, average_update, averaging_rule, non_monotone_trigger

STEPS, SEEDS = 12, 3


def iterates_of(seed, steps=STEPS, seeds=SEEDS):
    rng = np.random.default_rng(seed)
    return {"w": rng.normal(size=(steps, seeds, 2, 3)), "b": {"c": rng.normal(size=(steps, seeds, 4))}}


def at(tree, *index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


def slow_mean(iterates, active):
    """Return one seed's mean of the iterates from the last inactive step on, and their number."""
    last_off = max(step for step, on in enumerate(active) if not on)
    return jax.tree.map(lambda leaf: leaf[last_off:].mean(0), iterates), len(active) - last_off


def averaged(iterates, active):
    """Return the averaging state of all seeds after all `iterates`, with a compiled update."""
    update = jax.jit(jax.vmap(average_update))
    state = jax.vmap(average_start)(jax.tree.map(jnp.asarray, at(iterates, 0)))
    for step in range(1, len(active)):
        state = update(state, jax.tree.map(jnp.asarray, at(iterates, step)), jnp.asarray(active[step]))
    return state


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, STEPS), min_size=SEEDS, max_size=SEEDS))
@settings(deadline=None, max_examples=25)
def test_the_mean_of_each_seeds_iterates_since_its_trigger(seed, first_active):
    iterates = iterates_of(seed)
    active = np.arange(STEPS)[:, None] >= np.array(first_active)
    with jax.enable_x64(True):
        state = averaged(iterates, active)
        for s in range(SEEDS):
            mean, count = slow_mean(at(iterates, slice(None), s), active[:, s])
            assert state.count[s] == count
            jax.tree.map(
                lambda found, wanted: np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14),
                at(state.mean, s),
                mean,
            )


def test_before_the_trigger_the_mean_is_the_parameters_bit_for_bit():
    iterates = iterates_of(0)
    iterates["w"][3], iterates["w"][4] = np.inf, np.nan  # iterates before the last one are forgotten
    state = averaged(iterates, np.zeros((STEPS, SEEDS), bool))
    wanted = at(iterates, -1)
    jax.tree.map(
        lambda found, wanted: np.testing.assert_array_equal(found, wanted.astype(np.float32)),
        state.mean,
        wanted,
    )
    assert (state.count == 1).all()


def test_the_mean_of_many_iterates_in_single_precision():
    """The number of iterates is that of ten epochs of Penn Treebank."""
    iterates = 1.0 + np.random.default_rng(2).normal(size=(6_640, 8)).astype(np.float32)
    state, _ = jax.lax.scan(
        lambda state, w: (average_update(state, w, True), None),
        average_start(jnp.asarray(iterates[0])),
        iterates[1:],
    )
    np.testing.assert_allclose(state.mean, iterates.astype(np.float64).mean(0), rtol=1e-5)
    assert state.count == len(iterates) and state.mean.dtype == jnp.float32


def test_start_and_parameters_can_both_be_given_away():
    params = {"w": jnp.ones(3), "b": jnp.zeros(2)}
    step = jax.jit(lambda params, state: (params, average_update(state, params, True)), donate_argnums=(0, 1))
    params, state = step(params, average_start(params))
    params, state = step(params, state)
    np.testing.assert_array_equal(state.mean["w"], np.ones(3))
    fresh = jnp.ones(3)
    assert average_start(fresh).mean.unsafe_buffer_pointer() != fresh.unsafe_buffer_pointer()


@pytest.mark.parametrize("t0", [0, 1, 4])
def test_torch_averages_the_same_but_begins_two_steps_after_the_trigger(t0):
    torch = pytest.importorskip("torch")
    matrix = np.random.default_rng(3).normal(size=(4, 4))
    # PyTorch keeps its rate and the weight of a new iterate in single precision, so this rate is exact there.
    theirs = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
    optimizer = torch.optim.ASGD([theirs], lr=1 / 32, lambd=0.0, alpha=0.0, t0=t0)
    with jax.enable_x64(True):
        w = jnp.ones(4)
        state = average_start(w)
        for step in range(1, 15):
            optimizer.zero_grad()
            (torch.tensor(matrix) @ theirs).square().sum().backward()
            optimizer.step()
            w = w - 1 / 32 * 2 * jnp.asarray(matrix.T @ matrix) @ w
            state = average_update(state, w, step > t0 + 2)
            np.testing.assert_allclose(w, theirs.detach().numpy(), rtol=1e-9)
            np.testing.assert_allclose(state.mean, optimizer.state[theirs]["ax"].numpy(), rtol=1e-5)
            assert state.count == max(1, step - t0 - 1)


def published_trigger(metrics, n):
    """Return whether Algorithm 1 of the paper, as in the authors' main.py, triggers for one seed."""
    logs = []
    for v in metrics:
        if len(logs) > n and v > min(logs[: len(logs) - n]):
            return True
        logs.append(v)
    return False


@given(
    st.lists(st.lists(st.integers(0, 8), min_size=2, max_size=2), max_size=14),
    st.integers(0, 6),
)
@settings(deadline=None, max_examples=200)
def test_trigger_is_the_published_algorithm_for_each_seed(rows, n):
    history = np.array(rows, float).reshape(len(rows), 2)
    found = non_monotone_trigger(history, n)
    assert found.shape == (2,) and found.dtype == bool
    assert found.tolist() == [published_trigger(history[:, s], n) for s in range(2)]
    # Once triggered, it stays triggered.
    so_far = np.array([non_monotone_trigger(history[:epoch], n) for epoch in range(len(rows) + 1)], int)
    assert (np.diff(so_far, axis=0) >= 0).all()


def test_diverged_epochs():
    nan = np.nan
    history = np.array([[nan, 50, 50], [70, 40, 40], [60, nan, np.inf], [65, 30, 30]])
    assert non_monotone_trigger(history, 0).tolist() == [True, False, True]
    assert not non_monotone_trigger(np.full((9, 2), nan)).any()
    assert non_monotone_trigger(np.zeros((0, 3))).tolist() == [False] * 3


def test_some_epochs_are_averaged_by_neither_rule():
    history = np.array([[90, 90], [80, 95], [85, 99], [86, 99]], float)  # triggers after epochs 3 and 2

    def begins(kind, after):
        rule = averaging_rule(kind, 0, after)
        return np.argmax([rule(history[:epoch]) for epoch in range(len(history) + 1)], axis=0).tolist()

    assert averaging_rule("none", 0, 2) is None
    assert begins("always", 0) == [0, 0] and begins("always", 3) == [3, 3]
    assert begins("non_monotone", 0) == [3, 2] and begins("non_monotone", 3) == [3, 3]
    assert begins("non_monotone", 4) == [4, 4] and not averaging_rule("always", 0, 5)(history).any()
