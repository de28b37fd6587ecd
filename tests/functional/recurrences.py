"""What tests of recurrent layers share: all choices, a problem of each, outputs and gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from dynskip_jax import functional as F

BATCH, TIME, INPUT, HIDDEN, UNITS = 3, 7, 2, 4, 5
LENGTHS = (TIME, 0, 1)  # full, none, one

TRANSITIONS = {
    "lstm": F.LSTM(),
    "lstm-no-output-gate": F.LSTM(output_gate=False),
    "peephole": F.Peephole(),
    "peephole-full-no-output-gate": F.Peephole(output_gate=False, full=True),
    "peephole-full": F.Peephole(full=True),
    "full-gate": F.FullGateRecurrence(),
    "full-gate-full-no-output-gate": F.FullGateRecurrence(output_gate=False, full=True),
    "plstm": F.PLSTM(),
    "plstm-full-no-output-gate": F.PLSTM(output_gate=False, full=True),
    "ulstm": F.ULSTM(),
    "ulstm-no-output-gate": F.ULSTM(output_gate=False),
    "gru": F.GRU(),
    "gru-before": F.GRU("before"),
    "rhn": F.RecurrentHighway(3),
}
TIME_SKIPS = {
    "previous": F.Previous(),
    "fixed": F.Fixed(3, 0.5),
    "attention": F.Attention(3, 0.5),
    "content": F.ContentAttention(3, 0.5),
    "dynamic": F.Dynamic(3, 0.5),
    "dynamic-content": F.Dynamic(3, 0.5, agent="content"),
    "mean": F.Mean(3, 0.5),
    "random": F.Random(3, 0.5, rates=(1.0, 0.0, 3.0)),
    "skip-rnn": F.SkipRNN(update_bias=0.0),
    "lstm-jump": F.LSTMJump(max_jump=2, read_steps=1, max_jumps=3),
}
DEPTH_SKIPS = {
    "none": None,
    "gates": F.ToGates(),
    "gates-linear": F.ToGates(mapping="linear"),
    "internal": F.ToInternal(),
    "gated-internal": F.GatedToInternal(gate_sees="below"),
    "output": F.ToOutput(mapping="linear"),
    "gated-output": F.GatedToOutput(),
    "gated-output-sigmoid": F.GatedToOutput(mapping="sigmoid"),
    "highway": F.Highway(),
}


def normal(key, shape, dtype):
    return jax.random.normal(key, shape, dtype)


def problem(recurrence, dtype=jnp.float64, seed=0, steps=0):
    """Weights, a carry whose slots all differ, inputs, and what comes from below (or None)."""
    init = F.Initializers(kernel=normal, recurrent=normal, bias=normal, dtype=dtype)
    params = recurrence.init(jax.random.key(seed), INPUT, HIDDEN, agent_features=UNITS, init=init)
    keys = iter(jax.random.split(jax.random.key(seed + 100), 20))
    draw = lambda *shape: normal(next(keys), shape, dtype)
    zeros = F.zero_state(recurrence.transition, (BATCH, HIDDEN), dtype)
    carry = F.initial_carry(jax.random.split(next(keys), BATCH), recurrence, zeros)
    slots = jax.tree.map(lambda array: draw(*array.shape), carry.slots)
    carry = carry._replace(slots=slots, step=jnp.full(BATCH, steps, jnp.int32))
    below = None if recurrence.depth_skip is None else draw(BATCH, TIME, HIDDEN)
    return params, carry, draw(BATCH, TIME, INPUT), below


def everything(
    implementation,
    recurrence,
    params,
    carry,
    x,
    below=None,
    policy=None,
    kept=None,
    return_memory=True,
    **options,
):
    """Outputs, and the gradients of all that has one, of a loss in which every output takes part."""

    policy = policy or F.Policy(temperature=1.0)
    allowed, policy = policy.mask, dataclasses.replace(policy, mask=None)
    if isinstance(policy.mix, int | float):  # static: no argument of the program
        static, policy = policy.mix, dataclasses.replace(policy, mix=None)
    else:
        static = None

    def loss(params, slots, mask, x, below, policy):
        mix = policy.mix if static is None else static
        policy = dataclasses.replace(policy, mix=mix, mask=allowed)
        start = carry._replace(slots=slots, recurrent_mask=mask)
        settings = dict(below=below, policy=policy, kept=kept, implementation=implementation)
        end, out = F.unroll(params, start, x, recurrence, return_memory=return_memory, **settings, **options)
        parts = jax.tree.leaves((out.h, out.decision, out.memory, end.slots, end.own))
        parts = [part for part in parts if jnp.issubdtype(part.dtype, jnp.floating)]
        rng = np.random.default_rng(9)  # constants: drawn by the program they would be half of it
        total = sum(jnp.sum(rng.normal(size=part.shape).astype(part.dtype) * jnp.sin(part)) for part in parts)
        return total, (end._replace(key=jax.random.key_data(end.key)), out)

    arguments = [params, carry.slots, carry.recurrent_mask, x, below, policy]
    wanted = [i for i, a in enumerate(arguments) if a is not None]
    (_, outputs), grads = jax.jit(jax.value_and_grad(loss, argnums=wanted, has_aux=True))(*arguments)
    return outputs, grads


def assert_same(recurrence, *problem, rtol=1e-9, **options):
    """Holds the fused unroll to the reference; returns the fused one's outputs and gradients."""
    fused = everything("fused", recurrence, *problem, **options)
    reference = everything("reference", recurrence, *problem, **options)
    for (path, a), b in zip(jax.tree.leaves_with_path(fused), jax.tree.leaves(reference), strict=True):
        name = jax.tree_util.keystr(path)
        assert a.dtype == b.dtype and np.isfinite(a).all(), name
        scale = max(1.0, float(np.abs(b).max())) if a.size else 1.0
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * scale, err_msg=name)
    return fused
