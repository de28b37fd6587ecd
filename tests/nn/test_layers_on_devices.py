"""Check layers and unrolls on a sharded batch, in `shard_map` and in `pmap` against one device."""

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
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.nn import SkipLSTM

DEVICES = 4
ROWS = 8
TIME = 5
INPUT = 3
HIDDEN = 4
X = np.random.default_rng(0).normal(size=(ROWS, TIME, INPUT)).astype(np.float32)
LENGTHS = np.array([5, 4, 3, 1, 5, 0, 2, 5], np.int32)
KEYS = jax.random.split(jax.random.key(1), ROWS)
SKIPS = {
    "mean": F.Mean(3),
    "random": F.Random(3),
    "dynamic": F.Dynamic(4, 0.5, empty_slots="masked"),
    "content": F.Dynamic(4, agent="content"),
    "sees the mean": F.Dynamic(3, agent_input="mean", first_step="carried"),
    "attention": F.Attention(4),
    "far": F.Dynamic(40, 0.5),
    "sparse": F.SparseAttention(5, 0.5, top=2),
    "log": F.Attention(5, agent="content", among=F.LogSpaced()),
    "followed": F.Dynamic(4, agent="content", agent_keys="followed"),
    "both": F.Dynamic(4, agent="both", agent_keys="followed"),
    "skip_rnn": F.SkipRNN(),
    "lstm_jump": F.LSTMJump(),
}
# Unrolls, whose initial state is made without `like=`, compile faster than layers.
UNROLLS = {"unroll, lstm": F.Recurrence(), "unroll, dynamic": F.Recurrence(F.Dynamic(3, 0.5))}


def layer(skip, implementation):
    """Return a layer's state, and a function of it and a batch: loss, and (h, actions)."""
    options = dict(dropout=0.2, recurrent_dropout=0.2, zoneout=0.1, learnable_carry=True)
    options |= dict(bidirectional=skip == "dynamic", implementation=implementation)
    skips = [F.Previous(), SKIPS[skip]]
    graphdef, state = nnx.split(
        drawn(lambda: SkipLSTM(INPUT, HIDDEN, skip=skips, rngs=nnx.Rngs(0), **options))
    )

    def loss(state, x, lengths, keys):
        out = nnx.merge(graphdef, state)(x, seq_lengths=lengths, rngs=keys)
        trace = out.decisions[-1]
        return jnp.sum(out.h**2) + jnp.sum(trace.log_prob), (out.h, trace.action)

    return state, loss


def unroll(name, implementation):
    recurrence = UNROLLS[name]
    params = recurrence.init(jax.random.key(0), INPUT, HIDDEN, agent_features=5)
    how = dict(recurrence=recurrence, implementation=implementation)

    def loss(params, x, lengths, keys):
        carry = F.initial_carry(
            keys, recurrence, F.zero_state(recurrence.transition, (len(x), HIDDEN))
        )
        end, out = F.unroll(params, carry, x, seq_lengths=lengths, **how)
        total = (
            jnp.sum(jnp.sin(out.h)) + jnp.sum(out.decision.log_prob) + jnp.sum(end.slots[0] ** 2)
        )
        return total, (out.h, out.decision.action)

    return jax.tree.map(lambda leaf: leaf + 0.3, params), loss


@functools.cache
def problem(name, implementation):
    """Return a network's state, its loss, and the gradients and outputs on one device."""
    state, loss = (unroll if name in UNROLLS else layer)(name, implementation)
    return (
        state,
        loss,
        jax.device_get(jax.jit(jax.grad(loss, has_aux=True))(state, X, LENGTHS, KEYS)),
    )


def on_a_mesh(kind, loss, state):
    """Return the gradients and outputs of a batch that is divided over a mesh."""
    mesh = jax.make_mesh(
        (DEVICES,), ("batch",), axis_types=(kind,), devices=jax.devices()[:DEVICES]
    )
    with jax.set_mesh(mesh):
        arrays = jax.device_put((X, LENGTHS, KEYS), NamedSharding(mesh, P("batch")))
        state = jax.device_put(state, NamedSharding(mesh, P()))
        found = jax.jit(jax.grad(loss, has_aux=True))(state, *arrays)
        assert found[1][0].sharding.spec[0] == "batch"
        return found


def in_shard_map(loss, state):
    mesh = jax.make_mesh((DEVICES,), ("batch",), devices=jax.devices()[:DEVICES])

    def total(state, *arrays):
        part, aux = loss(state, *arrays)
        return jax.lax.psum(part, "batch"), aux

    with jax.set_mesh(mesh):
        arrays = jax.device_put((X, LENGTHS, KEYS), NamedSharding(mesh, P("batch")))
        specs = dict(
            in_specs=(P(), *(P("batch"),) * 3), out_specs=(P(), P("batch")), check_vma=True
        )
        return jax.jit(jax.grad(jax.shard_map(total, **specs), has_aux=True))(state, *arrays)


def in_pmap(loss, state):
    def gradient(state, *arrays):
        grads, aux = jax.grad(loss, has_aux=True)(state, *arrays)
        return jax.lax.psum(grads, "batch"), aux

    parts = jax.tree.map(
        lambda leaf: leaf.reshape(DEVICES, -1, *leaf.shape[1:]), (X, LENGTHS, KEYS)
    )
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
CASES = [
    *itertools.product(WAYS, [*UNROLLS, *SKIPS], ["fused"]),
    *itertools.product(WAYS, [*UNROLLS, "dynamic"], ["reference"]),
]
BY_DEFAULT = [
    ("explicit", "unroll, lstm", "fused"),
    *(("shard_map", "unroll, lstm", implementation) for implementation in ("fused", "reference")),
    ("pmap", "unroll, dynamic", "fused"),
]


@pytest.mark.parametrize(
    ("way", "name", "implementation"), and_slow(CASES, lambda *case: case in BY_DEFAULT)
)
def test_several_devices_compute_what_one_does(way, name, implementation):
    state, loss, (expected, (expected_h, expected_action)) = problem(name, implementation)
    grads, (h, action) = jax.device_get(WAYS[way](loss, state))
    np.testing.assert_array_equal(action, expected_action)
    np.testing.assert_allclose(h, expected_h, rtol=1e-6, atol=1e-6)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
