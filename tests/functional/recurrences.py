"""Helpers for tests of recurrent layers: configurations, random problems, outputs and gradients."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from compiled import on_device

from dynskip_jax import functional as F

BATCH, TIME, INPUT, HIDDEN, UNITS = 3, 7, 2, 4, 5
LENGTHS = (TIME, 0, 1)  # full, none, one

TRANSITIONS = {
    "lstm": F.LSTM(),
    "lstm-no-output-gate": F.LSTM(output_gate=False),
    "peephole": F.Peephole(),
    "full-gate": F.FullGateRecurrence(),
    "plstm": F.PLSTM(),
    "plstm-no-output-gate": F.PLSTM(output_gate=False),
    "ulstm": F.ULSTM(),
    "ulstm-no-output-gate": F.ULSTM(output_gate=False),
    "gru": F.GRU(),
    "gru-before": F.GRU("before"),
    "rhn": F.RecurrentHighway(3),
    "min-lstm": F.MinLSTM(),
    "min-gru": F.MinGRU(),
    "ind-rnn": F.IndRNN(),
    "skim-lstm": F.SkimLSTM(2),
    "slstm": F.SLSTM(),
}
TIME_SKIPS = {
    "previous": F.Previous(),
    "fixed": F.Fixed(3, 0.5),
    "attention": F.Attention(3, 0.5),
    "content": F.Attention(3, 0.5, agent="content"),
    "followed": F.Attention(3, 0.5, agent="content", agent_keys="followed"),
    "dynamic": F.Dynamic(3, 0.5),
    "dynamic-content": F.Dynamic(3, 0.5, agent="content"),
    "dynamic-both": F.Dynamic(3, 0.5, agent="both"),
    "dynamic-followed": F.Dynamic(3, 0.5, agent="content", agent_keys="followed"),
    "mean": F.Mean(3, 0.5),
    "random": F.Random(3, 0.5, rates=(1.0, 0.0, 3.0)),
    "skip-rnn": F.SkipRNN(update_bias=0.0),
    "log-attention": F.Attention(5, 0.5, agent="content", among=F.LogSpaced()),
    "log-dynamic": F.Dynamic(5, 0.5, among=F.LogSpaced()),
    "segment-attention": F.Attention(5, 0.5, among=F.Segments(2), agent="content"),
    "segment-dynamic": F.Dynamic(5, 0.5, among=F.Segments(2), agent="content"),
    "sparse": F.SparseAttention(5, 0.5, top=2),
    "skim-rnn": F.SkimRNN(),
    "lstm-jump": F.LSTMJump(max_jump=2, read_steps=1, max_jumps=3),
}
OPTIONS = {
    "lstm-mixed": F.Fixed(1, 0.3),
    "attention mean": F.Attention(3, 0.5, agent_input="mean"),
    "content carried": F.Attention(3, 0.5, first_step="carried", agent="content"),
    "dynamic:1": F.Dynamic(1, 0.5),
    "dynamic mean": F.Dynamic(3, 0.5, agent_input="mean"),
    "dynamic masked": F.Dynamic(4, 0.5, empty_slots="masked"),
    "dynamic strided": F.Dynamic(5, 0.5, among=F.Every(2), empty_slots="masked"),
    "dynamic by content": F.Dynamic(4, 0.5, agent="content", empty_slots="masked"),
    "followed masked": F.Dynamic(
        4, 0.5, agent="content", agent_keys="followed", empty_slots="masked"
    ),
    "both, followed, masked": F.Dynamic(
        4, 0.5, agent="both", agent_keys="followed", empty_slots="masked"
    ),
    "both, log": F.Attention(5, 0.5, agent="both", among=F.LogSpaced()),
    "nothing moved": F.Dynamic(4, 0.0, empty_slots="masked"),
    "nothing moved, by content": F.Dynamic(4, 0.0, agent="content"),
    "dynamic carried": F.Dynamic(3, 0.5, first_step="carried"),
    "fixed carried": F.Fixed(3, 0.5, first_step="carried"),
    "log masked": F.Dynamic(7, 0.5, empty_slots="masked", agent="content", among=F.LogSpaced()),
    "log carried": F.Attention(
        7, 0.5, first_step="carried", agent_input="mean", among=F.LogSpaced()
    ),
    "segments masked": F.Attention(
        7, 0.5, among=F.Segments(3), empty_slots="masked", agent="content"
    ),
    "segments carried": F.Dynamic(7, 0.5, among=F.Segments(2), first_step="carried"),
    "sparse masked": F.SparseAttention(6, 0.5, top=2, among=F.Segments(2), empty_slots="masked"),
    "sparse, all": F.SparseAttention(3, 0.5, top=4, first_step="carried"),
    "log, far": F.Dynamic(512, among=F.LogSpaced()),
    "released": F.Dynamic(4, 1.0, agent_input="mean", first_step="carried"),
}
DEPTH_SKIPS = {
    "none": None,
    "gates": F.ToGates(),
    "gates-linear": F.ToGates(mapping="linear"),
    "internal": F.ToInternal(),
    "gated-internal": F.ToInternal(gated=True),
    "output": F.ToOutput(mapping="linear"),
    "gated-output": F.ToOutput(gated=True),
    "gated-output-sigmoid": F.ToOutput(gated=True, mapping="sigmoid"),
    "highway": F.Highway(),
    "dense": F.DenseToGates(),
    "attention": F.AttentionToOutput(),
}


def problem(recurrence, dtype=jnp.float64, seed=0, steps=0):
    """Return random parameters, a carry whose slots all differ, inputs, and the outputs of layers
    below.

    NumPy draws all numbers, so that nothing is compiled here. The carry has already taken `steps`
    steps.
    """
    rng = np.random.default_rng(seed)
    depth_skip = recurrence.depth_skip
    width = 2 * HIDDEN if depth_skip is not None and depth_skip.all_below else HIDDEN

    def draw(*shape):
        return jax.device_put(rng.normal(size=shape).astype(dtype))  # `jnp.asarray` compiles

    def shapes(key):
        init = F.Initializers(dtype=dtype)
        zeros = F.zero_state(recurrence.transition, (BATCH, HIDDEN), dtype)
        carry = F.initial_carry(jax.random.split(key, BATCH), recurrence, zeros, INPUT)
        params = recurrence.init(key, INPUT, HIDDEN, below=width, agent_features=UNITS, init=init)
        return params, carry.ring, carry.inputs

    key = jax.random.key(seed)
    params, ring, inputs = jax.tree.map(lambda leaf: draw(*leaf.shape), jax.eval_shape(shapes, key))
    skip_state = recurrence.time_skip.init_skip_state((BATCH,), dtype)
    step = jax.device_put(np.full(BATCH, steps, np.int32))
    # Each example is at a row of its own, and some began a few steps ago.
    K = recurrence.time_skip.max_skip
    position, filled = jax.device_put((np.arange(BATCH) % K, np.clip([K, 1, 3], 1, K)))
    carry = F.SkipCarry(
        ring,
        position.astype(np.int32),
        filled.astype(np.int32),
        step,
        jax.random.split(key, BATCH),
        skip_state,
        inputs=inputs,
    )
    below = None if depth_skip is None else draw(BATCH, TIME, width)
    return params, carry, draw(BATCH, TIME, INPUT), below


def aligned(carry):
    """Return the carry with its rows in order: those of equal carries are equal."""
    return carry.with_slots(carry.slots)


def differentiated(
    ways, recurrence, params, carry, x, below=None, policy=None, zoneout_mask=None, **options
):
    """Return a compiled function and its arguments.

    For each implementation in `ways` the function returns all outputs of the unroll, and the
    gradients of a loss that depends on every output, with respect to every argument except
    `zoneout_mask`. Call it with other values of the same shapes, too.
    """
    policy = policy or F.Policy(temperature=1.0)
    allowed, policy = on_device(policy.mask), dataclasses.replace(policy, mask=None)
    options = on_device(dict(return_cell_state=True) | options)

    def loss(way, params, ring, mask, x, below, policy, inputs, zoneout_mask):
        policy = dataclasses.replace(policy, mask=allowed)
        start = carry._replace(ring=ring, recurrent_mask=mask, inputs=inputs)
        settings = dict(below=below, policy=policy, zoneout_mask=zoneout_mask, implementation=way)
        end, out = F.unroll(params, start, x, recurrence, **settings, **options)
        end = aligned(end)
        parts = jax.tree.leaves(
            (out.h, out.decision, out.cell_state, end.ring, end.skip_state, end.inputs)
        )
        parts = [part for part in parts if jnp.issubdtype(part.dtype, jnp.floating)]
        rng = np.random.default_rng(9)  # constants: drawing them would be half of the program
        total = sum(
            jnp.sum(rng.normal(size=part.shape).astype(part.dtype) * jnp.sin(part))
            for part in parts
        )
        return total, (end._replace(key=jax.random.key_data(end.key)), out)

    arguments = [
        params,
        carry.ring,
        carry.recurrent_mask,
        x,
        below,
        policy,
        carry.inputs,
        zoneout_mask,
    ]
    wanted = [i for i, a in enumerate(arguments[:-1]) if a is not None]

    def function(*arguments):
        results = []
        for way in ways:
            gradient = jax.value_and_grad(partial(loss, way), argnums=wanted, has_aux=True)
            (_, outputs), gradients = gradient(*arguments)
            results.append((outputs, gradients))
        return results

    return jax.jit(function), arguments


def everything(*problem, **options):
    """Return the outputs and gradients of `differentiated`, of all ways in one program."""
    function, arguments = differentiated(*problem, **options)
    return function(*arguments)


def assert_equal(fused, reference, rtol=1e-9):
    """Check that outputs and gradients are finite and equal, with the same dtypes."""
    for (path, a), b in zip(
        jax.tree.leaves_with_path(fused), jax.tree.leaves(reference), strict=True
    ):
        name = jax.tree_util.keystr(path)
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and np.isfinite(a).all(), name
        scale = max(1.0, float(np.abs(b).max())) if a.size else 1.0
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * scale, err_msg=name)


def assert_same(recurrence, *problem, rtol=1e-9, **options):
    """Check that the fused unroll equals the reference; return the outputs and gradients of the
    fused one.
    """
    fused, reference = everything(("fused", "reference"), recurrence, *problem, **options)
    assert_equal(fused, reference, rtol)
    return fused
