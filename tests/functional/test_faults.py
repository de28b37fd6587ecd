"""Check faults that users met: strict promotion, empty inputs, the sLSTM's normaliser, keys,
meshes.
"""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import drawn
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from marks import and_slow
from recurrences import DEPTH_SKIPS, TIME, TIME_SKIPS, TRANSITIONS, problem

from dynskip_jax import functional as F
from dynskip_jax.nn import SkipCell, SkipLSTM

KEY = jax.random.key(0)
PIECES = [(f"skip {name}", dict(skip=skip)) for name, skip in TIME_SKIPS.items()]
PIECES += [(name, dict(transition=piece, skip=F.Dynamic(3))) for name, piece in TRANSITIONS.items()]
PIECES += [(f"depth {name}", dict(depth_skip=piece)) for name, piece in DEPTH_SKIPS.items()]
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]
USUAL = {("skip lstm-jump", jnp.float16), ("skip dynamic", jnp.bfloat16)}


@pytest.mark.parametrize(
    ("name", "options", "dtype"),
    and_slow(
        [(*piece, dtype) for piece in PIECES for dtype in DTYPES],
        lambda name, _, dtype: (name, dtype) in USUAL,
    ),
)
def test_strict_promotion(name, options, dtype):
    """Initialization, sampling, relaxation and gradients mix no dtypes."""

    def loss(key):
        how = dict(num_layers=3, dropout=0.1, param_dtype=dtype, rngs=nnx.Rngs(key))
        graph, state = nnx.split(SkipLSTM(4, 4, **how, **options))
        x, lengths = jnp.ones((2, 5, 4), dtype), jax.device_put(np.array([5, 3]))

        def total(state, mode):
            out = nnx.merge(graph, state)(x, rngs=KEY, policy=F.Policy(mode), seq_lengths=lengths)
            return sum(
                jnp.sum(leaf.astype(jnp.float32)) for leaf in (out.h, out.decisions[-1].log_prob)
            )

        return [jax.grad(total)(state, mode) for mode in ("sample", "reinmax")]

    with jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(loss, KEY)


@pytest.mark.parametrize("shape", [(0, 5, 4), (2, 0, 4)], ids=["batch", "time"])
@pytest.mark.parametrize("name", and_slow(DEPTH_SKIPS, "attention".__eq__))
def test_empty_inputs_of_every_depth_skip(name, shape):
    """Regression: attention over lower layers divided by zero."""
    stack = drawn(
        lambda: SkipLSTM(4, 4, num_layers=3, depth_skip=DEPTH_SKIPS[name], rngs=nnx.Rngs(0))
    )
    assert (
        jax.eval_shape(lambda x: stack(x).h, jax.ShapeDtypeStruct(shape, jnp.float32)).shape
        == shape
    )


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


@pytest.mark.parametrize("implementation", ["fused", "reference"])
@pytest.mark.parametrize("skip", [F.Fixed(2, 0.5), F.Mean(3, 0.7), F.Attention(3, 1.0)], ids=str)
def test_the_gradient_of_an_initial_slstm_normaliser_that_a_skip_mixes(
    double_precision, implementation, skip
):
    """Regression: the average of states whose n is 0 had no stabiliser, and the gradient of n was
    0.
    """
    recurrence = F.Recurrence(skip, F.SLSTM())
    params, carry, x, _ = problem(recurrence)
    newest = carry.state

    @jax.jit
    def total(n):
        start = F.initial_carry(carry.key, recurrence, newest._replace(n=n))
        return jnp.sum(
            F.unroll(params, start, x, recurrence, implementation=implementation)[1].h[:, :3] ** 2
        )

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


ON_MESH = itertools.product(
    ("previous", "dynamic", "attention"), ("fused", "reference"), (False, True)
)


@pytest.mark.parametrize(
    ("skip", "implementation", "is_compiled"),
    and_slow(ON_MESH, lambda *case: case == ("dynamic", "fused", True)),
)
def test_inputs_on_a_mesh_that_is_not_set(skip, implementation, is_compiled):
    """The mesh is that of the inputs: `jax.set_mesh` is not needed. Gradients are those of one
    device.

    JAX itself takes no gradient of a sum outside `jit` there, so that case has values alone.
    """
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    options = dict(skip=TIME_SKIPS[skip], implementation=implementation)
    graph, state = nnx.split(drawn(lambda: SkipLSTM(4, 4, **options, rngs=nnx.Rngs(0))))
    x = jax.device_put(np.random.default_rng(0).normal(size=(4, TIME, 4)).astype(np.float32))

    def loss(state, x):
        h = nnx.merge(graph, state)(
            x, rngs=KEY, seq_lengths=jax.device_put(np.array([7, 3, 0, 5]))
        ).h
        return jnp.sum(jnp.sin(h)), h

    run = (
        jax.jit(jax.value_and_grad(loss, has_aux=True))
        if is_compiled
        else lambda *args: (loss(*args), 0)
    )
    found = run(state, jax.device_put(x, NamedSharding(mesh, PartitionSpec("data"))))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, run(state, x))
    assert jax.typeof(found[0][1]).sharding.spec[0] == "data"
