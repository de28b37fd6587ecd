"""Check that every time skip can be traced, with its gradient, for a batch on several devices.

Nothing is compiled: `tests/nn/test_layers_on_devices.py` compares values. Tracing finds
operations that have no rule for a sharded batch, also those that only another platform would run.
"""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from recurrences import BATCH, TIME, TIME_SKIPS, problem

from dynskip_jax import functional as F

# A TPU compares the slots of up to 32 states, and indexes more of them.
SKIPS = TIME_SKIPS | {"far": F.Dynamic(40, 0.5)}
IDS = np.repeat([[0, 0, 0, 1, 1, 2, 2]], BATCH, axis=0)
# Regression: on an explicit mesh the first six raised: JAX could not infer the sharding of an
# indexed read, and the state of a skip in a new sequence of a packed row had none.
CASES = [("explicit", name, False) for name in ("far", "log-attention", "log-dynamic", "sparse")]
CASES += [("explicit", "skip-rnn", True), ("explicit", "dynamic-followed", True)]
CASES += [("shard_map", "sparse", False)]


@pytest.mark.parametrize(("way", "name", "is_packed"), CASES)
def test_a_skip_is_traced_for_several_devices(way, name, is_packed):
    kinds = (AxisType.Explicit if way == "explicit" else AxisType.Auto,)
    mesh = jax.make_mesh((BATCH,), ("batch",), axis_types=kinds, devices=jax.devices()[:BATCH])
    recurrence = F.Recurrence(SKIPS[name])
    params, carry, x, _ = problem(recurrence, np.float32)
    lengths = np.array([TIME, 0, 1], np.int32)
    ids = IDS if is_packed else None
    # Gradients of the whole numbers and the keys of a carry are not asked for.
    ring, carry = carry.ring, carry._replace(ring=None)

    def loss(params, x, ring, carry, lengths, ids):
        start = carry._replace(ring=ring)
        end, out = F.unroll(params, start, x, recurrence, seq_lengths=lengths, segment_ids=ids)
        resets = None if ids is None else ids[:, :1] == 0
        end, _ = F.unroll(params, end, x[:, :1], recurrence, resets=resets)  # one step of the ring
        if way == "explicit":
            assert jax.typeof(out.h).sharding.spec[0] == "batch"
            assert jax.typeof(end.slots[0]).sharding.spec[0] == "batch"
        total = jnp.sum(jnp.sin(out.h)) + jnp.sum(out.decision.log_prob)
        return total + jnp.sum(jnp.sin(end.slots[0]))

    def of_all(params, *rows):
        return jax.lax.psum(loss(params, *rows), "batch")

    rows = (x, ring, carry, lengths, ids)
    with jax.set_mesh(mesh):
        rows = jax.device_put(rows, NamedSharding(mesh, P("batch")))
        params = jax.device_put(params, NamedSharding(mesh, P()))
        run = loss
        if way == "shard_map":
            run = jax.shard_map(of_all, in_specs=(P(), *(P("batch"),) * 5), out_specs=P())
        gradients = jax.eval_shape(jax.grad(run, argnums=(0, 1, 2)), params, *rows)
    jax.tree.map(
        lambda a, b: np.testing.assert_equal(a.shape, b.shape), gradients, (params, x, ring)
    )


SPECS = [P("batch", None, "features"), P(None, None, "features"), None]
FOLLOWED = F.Dynamic(3, agent="both", agent_keys="followed")


@pytest.mark.parametrize("params_on_mesh", [True, False], ids=["parameters on it", "not on it"])
@pytest.mark.parametrize("mesh_is_set", [True, False], ids=["set", "not set"])
@pytest.mark.parametrize("skip", [F.Fixed(3), FOLLOWED, F.Attention(3)], ids=str)
def test_inputs_and_parameters_may_be_on_a_mesh_of_two_axes_or_not(
    skip, mesh_is_set, params_on_mesh
):
    """Regression: an agent that compares inputs met sharded features, and arrays on the mesh met
    others.
    """
    kinds = (AxisType.Explicit,) * 2
    mesh = jax.make_mesh((2, 2), ("batch", "features"), kinds, devices=jax.devices()[:4])
    recurrence = F.Recurrence(skip)
    params = recurrence.init(jax.random.key(0), 4, 8)
    carry = F.initial_carry(
        jax.random.key(1), recurrence, F.zero_state(F.LSTM(), (4, 8)), in_features=4
    )
    x = jnp.zeros((4, 6, 4))
    if params_on_mesh:
        params = jax.device_put(params, NamedSharding(mesh, P()))

    def loss(params, x):
        _, out = F.unroll(params, carry, x, recurrence)
        return jnp.sum(out.h) + jnp.sum(out.decision.log_prob)

    set_or_not = jax.set_mesh(mesh) if mesh_is_set else contextlib.nullcontext()
    with set_or_not:
        for spec in SPECS:
            rows = x
            if spec is not None:
                rows = jax.device_put(x, NamedSharding(mesh, spec))
            gradients = jax.eval_shape(jax.grad(loss, (0, 1)), params, rows)
            assert gradients[1].shape == x.shape
