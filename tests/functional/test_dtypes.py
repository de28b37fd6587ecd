"""Check narrow dtypes of weights and states in both unrolls, and that incompatible dtypes are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import unroll
from marks import and_slow
from recurrences import BATCH, HIDDEN, TRANSITIONS, problem

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.deferred import activated as _activated
from dynskip_jax.functional.product import activate

IMPLEMENTATIONS = ("fused", "reference")


def test_small_sigmoids_are_not_rounded_to_zero_in_bfloat16():
    x = jnp.linspace(-12, 12, 49, dtype=jnp.bfloat16).reshape(1, -1)
    for activations in (("sigmoid",), ("tanh",)):
        found = _activated(x, activations).astype(np.float32)
        expected = activate(x.astype(jnp.float32), activations)
        np.testing.assert_allclose(found, expected, rtol=0.01)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gates_that_are_almost_closed_have_a_slope_in_bfloat16(implementation):
    """With a bias of -8 the input gate and its derivative are about 3e-4."""
    recurrence = F.Recurrence()
    params, carry, x, _ = problem(recurrence, jnp.bfloat16)
    small = jax.tree.map(lambda w: 0.1 * w, params.transition)
    params = params._replace(transition=small._replace(b=small.b.at[HIDDEN : 2 * HIDDEN].set(-8)))

    def loss(params):
        out = F.unroll(params, carry, x, recurrence, implementation=implementation)[1]
        return jnp.sum(out.h.astype(jnp.float32) ** 2)

    slopes = jax.jit(jax.grad(loss))(params).transition.b[HIDDEN : 2 * HIDDEN]
    assert (slopes.astype(np.float32) != 0).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("skip", [F.Previous(), F.Dynamic(3, 0.5)], ids=["lstm", "dynamic"])
def test_parameters_wider_than_the_state_are_refused_in_one_line(implementation, skip):
    with jax.enable_x64(True):
        recurrence = F.Recurrence(skip)
        params, _, x, _ = problem(recurrence, jnp.float64)
        _, carry, _, _ = problem(recurrence, jnp.float32)
        message = "no wider than the state, which is float32, got float64 in params.*make the carry in"
        with pytest.raises(UserError, match=message):
            F.unroll(params, carry, x, recurrence, implementation=implementation)


@pytest.mark.parametrize("transition", and_slow(["lstm", "gru", "rhn", "peephole"], "lstm".__eq__))
def test_parameters_narrower_than_the_state_are_the_same_in_both(transition):
    with jax.enable_x64(True):
        recurrence = F.Recurrence(F.Dynamic(3, 0.5), TRANSITIONS[transition])
        params, _, _, _ = problem(recurrence, jnp.float32)
        _, carry, x, _ = problem(recurrence, jnp.float64)
        found = []
        for implementation in IMPLEMENTATIONS:

            def loss(params, x, implementation=implementation):
                end, out = unroll(params, carry, x, recurrence, implementation=implementation)
                return jnp.sum(out.h**2), (end.slots, out)

            found.append(jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, x))
        assert {leaf.dtype for leaf in found[0][0][1][0]} == {jnp.dtype(jnp.float64)}
        for a, b in zip(*map(jax.tree.leaves, found), strict=True):
            assert a.dtype == b.dtype and len(a) == len(b) if a.ndim else True
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)
        assert found[0][0][1][1].h.shape[0] == BATCH
