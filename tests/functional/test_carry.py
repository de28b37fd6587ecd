"""Check that a step writes one row of the carry in place, and what flows into the carry."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import and_slow
from recurrences import BATCH, HIDDEN, TIME, aligned, problem

from dynskip_jax import functional as F

K = 17  # no other axis has this size
SKIPS = {
    "previous": F.Previous(),
    "fixed": F.Fixed(K),
    "dynamic, carried": F.Dynamic(K, first_step="carried"),
    "both, followed": F.Dynamic(K, agent="both", agent_keys="followed"),
    "attention": F.Attention(K, 0.5),
    "mean": F.Mean(K),
}
USUAL = {"dynamic, carried", "both, followed"}


def stepped(recurrence, params, carry, x, resets, valid=None, **options):
    """Scan `recurrent_step` over x, (batch, time, in)."""
    steps = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), (x, resets, valid))

    def step(carry, given):
        x, restart, valid = given
        inputs = F.project_inputs(params, x, recurrence, valid=valid)._replace(restart=restart)
        initial = F.zero_state(recurrence.transition, (BATCH, HIDDEN), x.dtype)
        return F.recurrent_step(params, carry, inputs, recurrence, initial=initial, **options)

    return jax.lax.scan(step, carry, steps)


@pytest.mark.parametrize("mode", and_slow(["sample", "soft"], "sample".__eq__))
@pytest.mark.parametrize(
    "name", and_slow(SKIPS, {"dynamic, carried", "both, followed"}.__contains__)
)
def test_a_scan_of_steps_copies_no_states(name, mode):
    """XLA copies an array that a loop writes while its old version is still read."""
    recurrence = F.Recurrence(SKIPS[name])
    params, carry, x, _ = problem(recurrence, jnp.float32)
    flags = np.ones((BATCH, TIME), bool)
    policy = F.Policy(mode)

    @jax.jit
    def scan(params, carry, x, resets, valid):
        carry, output = stepped(recurrence, params, carry, x, resets, valid, policy=policy)
        return carry, output.h

    program = scan.lower(params, carry, x, flags, flags).compile().as_text()
    loops = re.sub(r"^ENTRY .*?^}", "", program, flags=re.MULTILINE | re.DOTALL)
    ring = rf"f32\[{BATCH},{recurrence.time_skip.max_skip},\d+\]\S* "
    assert " while(" in program and re.search(ring, loops)
    assert not re.findall(rf".*= {ring}copy\(.*", loops)


@pytest.mark.parametrize("implementation", ["fused", "reference"])
def test_log_probabilities_send_no_gradient_into_the_inputs_of_a_carry(implementation):
    """Regression: they did, though an agent that samples sends none into the network."""
    recurrence = F.Recurrence(F.Dynamic(3, agent="both", agent_keys="followed"))
    params, carry, x, _ = problem(recurrence, jnp.float32)
    read = partial(F.unroll, recurrence=recurrence, implementation=implementation)

    @jax.jit
    @jax.grad
    def gradient(inputs):
        decision = read(params, carry._replace(inputs=inputs), x)[1].decision
        return jnp.sum(decision.log_prob) + jnp.sum(decision.entropy)

    assert not np.asarray(gradient(carry.inputs)).any()


def test_a_carry_of_one_mapped_example_is_that_of_the_batch():
    recurrence = F.Recurrence(F.Dynamic(4, agent="both", agent_keys="followed"))
    params, carry, x, _ = problem(recurrence, jnp.float32)
    resets = np.arange(TIME)[None] == np.array([[0], [2], [9]])
    whole, of_whole = jax.jit(partial(stepped, recurrence, params))(carry, x, resets)

    def one(carry, x, restart):
        inputs = F.project_inputs(params, x, recurrence)._replace(restart=restart)
        initial = F.zero_state(recurrence.transition, (HIDDEN,), x.dtype)
        return F.recurrent_step(params, carry, inputs, recurrence, initial=initial)

    def mapped(carry, given):
        return jax.vmap(one)(carry, *given)

    steps = (jnp.moveaxis(x, 1, 0), resets.T)
    end, of_each = jax.jit(partial(jax.lax.scan, mapped))(carry, steps)
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    floats = lambda carry: aligned(carry)._replace(key=None)
    jax.tree.map(close, (floats(end), of_each), (floats(whole), of_whole))
