"""Check unrolls on a sharded batch and in `shard_map` against one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from dynskip_jax import functional as F

DEVICES = 4
ROWS = 8
TIME = 5
INPUT = 3
HIDDEN = 4
X = np.random.default_rng(0).normal(size=(ROWS, TIME, INPUT)).astype(np.float32)
LENGTHS = np.array([5, 4, 3, 1, 5, 0, 2, 5], np.int32)
KEYS = jax.random.split(jax.random.key(1), ROWS)
UNROLLS = {"unroll, lstm": F.Recurrence(), "unroll, dynamic": F.Recurrence(F.Dynamic(3, 0.5))}


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
    state, loss = unroll(name, implementation)
    return (
        state,
        loss,
        jax.device_get(jax.jit(jax.grad(loss, has_aux=True))(state, X, LENGTHS, KEYS)),
    )


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


def on_a_mesh(loss, state):
    """Return the gradients and outputs of a batch that is divided over an explicit mesh."""
    kinds = (AxisType.Explicit,)
    mesh = jax.make_mesh((DEVICES,), ("batch",), kinds, devices=jax.devices()[:DEVICES])
    with jax.set_mesh(mesh):
        arrays = jax.device_put((X, LENGTHS, KEYS), NamedSharding(mesh, P("batch")))
        state = jax.device_put(state, NamedSharding(mesh, P()))
        found = jax.jit(jax.grad(loss, has_aux=True))(state, *arrays)
        assert found[1][0].sharding.spec[0] == "batch"
        return found


@pytest.mark.parametrize(
    ("way", "name", "implementation"),
    [
        (on_a_mesh, "unroll, lstm", "fused"),
        (in_shard_map, "unroll, lstm", "reference"),
        (in_shard_map, "unroll, dynamic", "fused"),
    ],
)
def test_several_devices_compute_what_one_does(way, name, implementation):
    state, loss, (expected, (expected_h, expected_action)) = problem(name, implementation)
    grads, (h, action) = jax.device_get(way(loss, state))
    np.testing.assert_array_equal(action, expected_action)
    np.testing.assert_allclose(h, expected_h, rtol=1e-6, atol=1e-6)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
