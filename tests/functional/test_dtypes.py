"""Check narrow dtypes of weights and states in both unrolls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import and_slow
from recurrences import HIDDEN, TRANSITIONS, assert_same, problem

from dynskip_jax import functional as F
from dynskip_jax.functional.deferred import activated
from dynskip_jax.functional.product import activate


def test_small_sigmoids_are_not_rounded_to_zero_in_bfloat16():
    x = jnp.linspace(-12, 12, 49, dtype=jnp.bfloat16).reshape(1, -1)
    for activations in (("sigmoid",), ("tanh",)):
        found = activated(x, activations).astype(np.float32)
        expected = activate(x.astype(jnp.float32), activations)
        np.testing.assert_allclose(found, expected, rtol=0.01)


@pytest.mark.parametrize("implementation", ["fused", "reference"])
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


@pytest.mark.parametrize("transition", and_slow(["lstm", "gru", "rhn", "peephole"], "lstm".__eq__))
def test_parameters_narrower_than_the_state_are_the_same_in_both(double_precision, transition):
    recurrence = F.Recurrence(F.Dynamic(3, 0.5), TRANSITIONS[transition])
    params = problem(recurrence, jnp.float32)[0]
    (end, _), _ = assert_same(recurrence, params, *problem(recurrence)[1:], rtol=2e-4)
    assert {leaf.dtype for leaf in end.slots} == {jnp.dtype(jnp.float64)}
