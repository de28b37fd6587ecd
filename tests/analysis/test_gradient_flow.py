"""Check gradient norms of states against finite differences and in limits where they are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.analysis.gradient_flow import normalized, state_gradient_norms
from dynskip_jax.errors import UserError

TIME, HIDDEN = 6, 3
SKIPS = {"previous": F.Previous(), "fixed": F.Fixed(3, mix=0.5), "dynamic": F.Dynamic(3, mix=0.5)}


def layer(time_skip, transition=None):
    transition = transition or F.LSTM()
    recurrence = F.Recurrence(time_skip, transition)

    @jax.jit
    def start():
        params = recurrence.init(jax.random.key(1), 2, HIDDEN)
        x = jax.random.normal(jax.random.key(2), (2, TIME, 2))
        state = F.zero_state(transition, (2, HIDDEN))
        return params, F.initial_carry(jax.random.key(3), recurrence, state), x

    return recurrence, *start()


def squares(h):
    return (h**2).sum(axis=1)


@pytest.mark.parametrize(
    ("name", "of"),
    and_slow(
        [(name, of) for name in SKIPS for of in ("h", "c")],
        lambda *case: case == ("dynamic", "h"),
    ),
)
def test_norms_are_those_of_finite_differences(name, of):
    with jax.enable_x64(True):
        recurrence, params, carry, x = _double(layer(SKIPS[name]))
        found = state_gradient_norms(params, carry, x, recurrence, squares, of=of)

        @jax.jit
        @jax.vmap
        def loss(nudges):
            """Return the loss of each sequence after adding `nudges[t]` to the state of each step t."""
            now = carry
            for t in range(TIME):
                inputs = F.project_inputs(params, x[:, t], recurrence)
                now, _ = F.recurrent_step(params, now, inputs, recurrence, F.Policy("greedy"))
                slots = getattr(now.slots, of).at[:, 0].add(nudges[t])
                now = now._replace(slots=now.slots._replace(**{of: slots}))
            return squares(now.state.h)

        each = 1e-5 * jnp.eye(TIME * HIDDEN).reshape(-1, TIME, HIDDEN)
        derivative = (loss(each) - loss(-each)).reshape(TIME, HIDDEN, -1) / 2e-5
        np.testing.assert_allclose(found.T, jnp.linalg.norm(derivative, axis=1), rtol=1e-6)


def _double(given):
    recurrence, *arrays = given

    def cast(leaf):
        return leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return recurrence, *jax.tree.map(cast, arrays)


@pytest.mark.slow
def test_a_skip_that_passes_states_by_leaves_them_without_gradient():
    """With λ = 1 and a fixed skip of 3, only every third state influences the last one."""
    recurrence, params, carry, x = layer(F.Fixed(3, mix=1.0))
    norms = state_gradient_norms(params, carry, x, recurrence, squares)
    assert (np.asarray(norms)[:, [0, 1, 3, 4]] == 0).all()
    assert (np.asarray(norms)[:, [2, 5]] > 0).all()


def test_shares_add_up_to_one():
    share = normalized(np.array([[1.0, 3.0], [3.0, 1.0]]))
    np.testing.assert_allclose(share, [0.5, 0.5])


def test_what_does_not_fit_is_said():
    recurrence, params, carry, x = layer(F.Previous(), F.GRU())
    with pytest.raises(UserError, match="GRU has h, no c"):
        state_gradient_norms(params, carry, x, recurrence, squares, of="c")
