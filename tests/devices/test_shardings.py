"""Check both unrolls on batches that are sharded or mapped over devices against one device.

The slow tests of test_layers_on_devices.py have all skips.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from marks import and_slow

from dynskip_jax import functional as F

BATCH, TIME, INPUT, HIDDEN, DEVICES = 8, 5, 3, 4, 4
CASES = {"lstm": F.Recurrence(), "dynamic": F.Recurrence(F.Dynamic(3, 0.5))}


def problem(recurrence):
    key = jax.random.key(0)
    params = recurrence.init(key, INPUT, HIDDEN, agent_features=5)
    params = jax.tree.map(lambda leaf: leaf + 0.3, params)
    x = jax.random.normal(key, (BATCH, TIME, INPUT))
    return params, x, jax.random.split(key, BATCH), np.arange(BATCH, dtype=np.int32) % (TIME + 1)


def gradient(recurrence, implementation, params, x, keys, lengths):
    """Return outputs and gradients; the initial state is made without `like=`, unlike in the layers."""

    def loss(params, x):
        state = F.zero_state(recurrence.transition, (x.shape[0], HIDDEN))
        carry = F.initial_carry(keys, recurrence, state)
        end, out = F.unroll(params, carry, x, recurrence, seq_lengths=lengths, implementation=implementation)
        total = jnp.sum(jnp.sin(out.h)) + jnp.sum(out.decision.log_prob) + jnp.sum(end.slots[0] ** 2)
        return total, (out.h, out.decision.action, end.step)

    (_, outputs), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, x)
    return outputs, gradients


@functools.cache
def on_one_device(name, implementation):
    recurrence = CASES[name]
    return jax.jit(functools.partial(gradient, recurrence, implementation))(*problem(recurrence))


def assert_close(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6, atol=1e-6)


def mesh(axis_type):
    return jax.make_mesh((DEVICES,), ("data",), axis_types=(axis_type,), devices=jax.devices()[:DEVICES])


@pytest.mark.parametrize(
    ("axis_type", "name", "implementation"),
    and_slow(
        itertools.product(("Explicit", "Auto"), CASES, ("fused", "reference")),
        lambda *case: case == ("Explicit", "lstm", "fused"),
    ),
)
def test_sharded_batch_equals_one_device(axis_type, name, implementation):
    axis_type, recurrence = AxisType[axis_type], CASES[name]
    with jax.set_mesh(mesh(axis_type)):
        params, *rows = problem(recurrence)
        rows = jax.device_put(rows, NamedSharding(mesh(axis_type), PartitionSpec("data")))
        params = jax.device_put(params, NamedSharding(mesh(axis_type), PartitionSpec()))
        found = jax.jit(functools.partial(gradient, recurrence, implementation))(params, *rows)
        assert found[1][1].sharding.spec[0] == "data"
        found = jax.device_get(found)
    assert_close(found, on_one_device(name, implementation))


@pytest.mark.parametrize("implementation", ["fused", "reference"])
@pytest.mark.parametrize("name", and_slow(list(CASES), {"dynamic"}.__contains__))
def test_shard_map_equals_one_device(name, implementation):
    recurrence = CASES[name]
    batch, whole = PartitionSpec("data"), PartitionSpec()
    function = jax.shard_map(
        functools.partial(gradient, recurrence, implementation),
        mesh=mesh(AxisType.Auto),
        in_specs=(whole, batch, batch, batch),
        out_specs=((batch, batch, batch), (whole, batch)),
    )
    assert_close(jax.jit(function)(*problem(recurrence)), on_one_device(name, implementation))


@pytest.mark.parametrize("implementation", ["fused", "reference"])
def test_mapped_batch_equals_one_device(implementation):
    recurrence = CASES["dynamic"]
    params, *rows = problem(recurrence)
    parts = jax.tree.map(lambda leaf: leaf.reshape(DEVICES, BATCH // DEVICES, *leaf.shape[1:]), rows)
    function = functools.partial(gradient, recurrence, implementation)
    found = jax.pmap(function, in_axes=(None, 0, 0, 0), devices=jax.devices()[:DEVICES])(params, *parts)
    outputs, (of_params, of_x) = jax.device_get(found)
    outputs, of_x = jax.tree.map(lambda leaf: leaf.reshape(BATCH, *leaf.shape[2:]), (outputs, of_x))
    summed = jax.tree.map(lambda leaf: leaf.sum(0), of_params)
    assert_close((outputs, (summed, of_x)), on_one_device("dynamic", implementation))
