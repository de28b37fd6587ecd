"""Check that outputs and gradients of layers on several devices equal those on one device.

The layers run with explicit and automatic sharding, with `shard_map` and checked types, and with `pmap`.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import drawn
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from dynskip_jax import functional as F
from dynskip_jax.nn import SkipLSTM

DEVICES, ROWS, TIME, INPUT, HIDDEN = 4, 8, 5, 3, 4
X = np.random.default_rng(0).normal(size=(ROWS, TIME, INPUT)).astype(np.float32)
LENGTHS = np.array([5, 4, 3, 1, 5, 0, 2, 5], np.int32)
SKIPS = {
    "previous": F.Previous(),
    "fixed": F.Fixed(3),
    "mean": F.Mean(3),
    "random": F.Random(3),
    "dynamic": F.Dynamic(4, 0.5, empty_slots="masked"),
    "content": F.Dynamic(4, agent="content"),
    "sees the mean": F.Dynamic(3, agent_input="mean"),
    "first step carried": F.Dynamic(3, first_step="carried"),
    "attention": F.Attention(4),
    "skip_rnn": F.SkipRNN(),
    "lstm_jump": F.LSTMJump(),
}


def layers(skip, implementation):
    options = dict(dropout=0.2, recurrent_dropout=0.2, zoneout=0.1, learnable_carry=True)
    make = lambda: SkipLSTM(
        *(INPUT, HIDDEN),
        skip=[F.Previous(), SKIPS[skip]],
        bidirectional=skip == "dynamic",
        implementation=implementation,
        rngs=nnx.Rngs(0),
        **options,
    )
    return nnx.split(drawn(make))


def loss_of(graphdef, state, x, lengths, keys):
    out = nnx.merge(graphdef, state)(x, seq_lengths=lengths, rngs=keys)
    trace = out.decisions[-1]
    return jnp.sum(out.h**2) + jnp.sum(trace.log_prob), (out.h, trace.action)


@functools.cache
def on_one_device(skip, implementation):
    graphdef, state = layers(skip, implementation)
    keys = jax.random.split(jax.random.key(1), ROWS)
    gradient = jax.jit(jax.grad(functools.partial(loss_of, graphdef), has_aux=True))
    return jax.device_get(gradient(state, X, LENGTHS, keys))


def on_a_mesh(kind, graphdef, state, keys):
    """Return the gradients and outputs of a batch that is divided over a mesh."""
    mesh = jax.make_mesh((DEVICES,), ("batch",), axis_types=(kind,), devices=jax.devices()[:DEVICES])
    with jax.set_mesh(mesh):
        arrays = jax.device_put((X, LENGTHS, keys), NamedSharding(mesh, P("batch")))
        state = jax.device_put(state, NamedSharding(mesh, P()))
        return jax.jit(jax.grad(functools.partial(loss_of, graphdef), has_aux=True))(state, *arrays)


def in_shard_map(graphdef, state, keys):
    mesh = jax.make_mesh((DEVICES,), ("batch",), devices=jax.devices()[:DEVICES])

    def total(state, *arrays):
        loss, aux = loss_of(graphdef, state, *arrays)
        return jax.lax.psum(loss, "batch"), aux

    with jax.set_mesh(mesh):
        arrays = jax.device_put((X, LENGTHS, keys), NamedSharding(mesh, P("batch")))
        specs = dict(in_specs=(P(), *(P("batch"),) * 3), out_specs=(P(), P("batch")), check_vma=True)
        return jax.jit(jax.grad(jax.shard_map(total, **specs), has_aux=True))(state, *arrays)


def in_pmap(graphdef, state, keys):
    def gradient(state, *arrays):
        grads, aux = jax.grad(functools.partial(loss_of, graphdef), has_aux=True)(state, *arrays)
        return jax.lax.psum(grads, "batch"), aux

    parts = jax.tree.map(lambda leaf: leaf.reshape(DEVICES, -1, *leaf.shape[1:]), (X, LENGTHS, keys))
    mapped = jax.pmap(gradient, "batch", in_axes=(None, 0, 0, 0), devices=jax.devices()[:DEVICES])
    grads, aux = mapped(state, *parts)
    joined = jax.tree.map(lambda leaf: leaf.reshape(ROWS, *leaf.shape[2:]), aux)
    return jax.tree.map(lambda leaf: leaf[0], grads), joined


WAYS = {
    "explicit": functools.partial(on_a_mesh, AxisType.Explicit),
    "auto": functools.partial(on_a_mesh, AxisType.Auto),
    "shard_map": in_shard_map,
    "pmap": in_pmap,
}


@pytest.mark.parametrize(
    ("way", "skip", "implementation"),
    [*itertools.product(WAYS, SKIPS, ["fused"]), *((way, "dynamic", "reference") for way in WAYS)],
)
@pytest.mark.slow  # test_shardings.py has cheaper cases
def test_several_devices_compute_what_one_does(way, skip, implementation):
    graphdef, state = layers(skip, implementation)
    keys = jax.random.split(jax.random.key(1), ROWS)
    grads, (h, action) = jax.device_get(WAYS[way](graphdef, state, keys))
    expected, (expected_h, expected_action) = on_one_device(skip, implementation)
    np.testing.assert_array_equal(action, expected_action)
    np.testing.assert_allclose(h, expected_h, rtol=1e-6, atol=1e-6)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
