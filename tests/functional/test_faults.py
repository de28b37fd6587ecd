"""Check faults that users met: strict promotion, empty inputs, the sLSTM's normaliser, keys,
meshes.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import drawn
from flax import nnx
from recurrences import problem

from dynskip_jax import functional as F
from dynskip_jax.nn import SkipCell, SkipLSTM

KEY = jax.random.key(0)


def test_strict_promotion(dtype=jnp.bfloat16):
    """Initialization, dropout, sampling, relaxation and gradients mix no dtypes."""
    skips = [F.LSTMJump(), F.Dynamic(3), F.Attention(3)]

    def loss(key):
        how = dict(skip=skips, depth_skip=F.Highway(), dropout=0.1, param_dtype=dtype)
        graph, state = nnx.split(SkipLSTM(4, 4, **how, rngs=nnx.Rngs(key)))
        x, lengths = jnp.ones((2, 5, 4), dtype), jax.device_put(np.array([5, 3]))

        def total(state, mode):
            out = nnx.merge(graph, state)(x, rngs=KEY, policy=F.Policy(mode), seq_lengths=lengths)
            parts = (out.h, out.decisions[1].log_prob)
            return sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in parts)

        return [jax.grad(total)(state, mode) for mode in ("sample", "reinmax")]

    with jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(loss, KEY)


@pytest.mark.parametrize("shape", [(0, 5, 4), (2, 0, 4)], ids=["batch", "time"])
def test_empty_inputs_of_attention_over_layers(shape):
    """Regression: it divided by zero."""
    options = dict(num_layers=3, depth_skip=F.AttentionToOutput())
    stack = drawn(lambda: SkipLSTM(4, 4, **options, rngs=nnx.Rngs(0)))
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    assert jax.eval_shape(lambda x: stack(x).h, x).shape == shape


@pytest.mark.parametrize("implementation", ["fused", "reference"])
def test_the_gradient_of_an_slstm_normaliser_that_is_zero(double_precision, implementation):
    """It is that of the paper's c and n, in which f scales n(t-1). differences go right."""
    recurrence = F.Recurrence(transition=F.SLSTM())
    params, carry, x, _ = problem(recurrence)
    carry = carry._replace(ring=carry.ring._replace(n=jnp.zeros_like(carry.ring.n)))

    def total(n):
        start = carry._replace(ring=carry.ring._replace(n=n))
        return jnp.sum(
            F.unroll(params, start, x, recurrence, implementation=implementation)[1].h[:, :2] ** 2
        )

    total = jax.jit(total)
    gradient = jax.jit(jax.grad(total))(carry.ring.n)
    for place in ((0, 0, 0), (1, 0, 2), (2, 0, 3)):
        moved = carry.ring.n.at[place].set(1e-7)
        np.testing.assert_allclose(
            gradient[place], (total(moved) - total(carry.ring.n)) / 1e-7, rtol=1e-5
        )


@pytest.mark.parametrize("skip", [F.Fixed(2, 0.5), F.Mean(3, 0.7), F.Attention(3, 1.0)], ids=str)
def test_the_gradient_of_an_initial_slstm_normaliser_that_a_skip_mixes(double_precision, skip):
    """Regression: the average of states whose n is 0 had no stabiliser, and the gradient of n was
    0.
    """
    recurrence = F.Recurrence(skip, F.SLSTM())
    params, carry, x, _ = problem(recurrence)
    newest = carry.state

    @jax.jit
    def total(n):
        start = F.initial_carry(carry.key, recurrence, newest._replace(n=n))
        return jnp.sum(F.unroll(params, start, x, recurrence)[1].h[:, :3] ** 2)

    zeros = jnp.zeros_like(newest.n)
    gradient = jax.jit(jax.grad(total))(zeros)
    for place in ((0, 0), (1, 2), (2, 3)):
        difference = (total(zeros.at[place].set(1e-7)) - total(zeros)) / 1e-7
        assert abs(difference) > 1e-6
        np.testing.assert_allclose(gradient[place], difference, rtol=1e-4)


def test_one_rate_of_zoneout_keeps_the_normaliser_of_an_slstm():
    make = lambda zoneout: (
        SkipCell(2, 3, transition=F.SLSTM(), zoneout=zoneout, rngs=nnx.Rngs(0)).zoneout
    )
    assert make(0.5) == (0.5, 0.5, 0.0, 0.0) and make((0.1, 0.2, 0.3, 0.4)) == (0.1, 0.2, 0.3, 0.4)


def test_a_key_for_each_sequence_is_used_as_it_is():
    """One call with a key for each sequence equals `jax.vmap` of the call for one sequence and its
    key.
    """
    options = dict(skip=F.Dynamic(3, 0.5), bidirectional=True, dropout=0.5)
    rnn = drawn(lambda: SkipLSTM(4, 4, **options, rngs=nnx.Rngs(0)))
    x, keys = (
        np.random.default_rng(0).normal(size=(3, 6, 4)).astype(np.float32),
        jax.random.split(KEY, 3),
    )
    graph, state = nnx.split(rnn)
    one = lambda x, key: nnx.merge(graph, state)(x, rngs=key).h
    np.testing.assert_allclose(jax.jit(one)(x, keys), jax.jit(jax.vmap(one))(x, keys), atol=1e-6)
