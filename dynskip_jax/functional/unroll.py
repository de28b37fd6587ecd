"""The unroll of a skip LSTM over time: projections outside the loop, `jax.lax.scan` inside."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import ActionMode
from dynskip_jax.functional.cudnn import cudnn_unroll
from dynskip_jax.functional.fused import fused_unroll
from dynskip_jax.functional.sequence import flip_sequences, length_mask
from dynskip_jax.functional.time_skip import (
    SkipCarry,
    SkipLSTMParams,
    SkipOutput,
    TimeSkip,
    project_inputs,
    skip_lstm_step,
)

IMPLEMENTATIONS = ("fast", "readable", "cudnn")


def unroll(
    params: SkipLSTMParams,
    carry: SkipCarry,
    x: Float[Array, "batch time in"],
    skip: TimeSkip,
    *,
    seq_lengths: Int[Array, " batch"] | None = None,
    reverse: bool = False,
    keep_order: bool = False,
    actions: Int[Array, "batch time"] | None = None,
    mode: ActionMode = "sample",
    temperature: float | Float[Array, ""] = 1.0,
    mix: float | Float[Array, ""] | None = None,
    policy_mask: Bool[Array, "*batch_or_none K"] | None = None,
    scan_unroll: int = 1,
    implementation: str = "fast",
) -> tuple[SkipCarry, SkipOutput]:
    """Runs `skip_lstm_step` over all steps of a batch of sequences.

    Args:
        params: the layer's weights.
        carry: the state to start from.
        x: inputs, (batch, time, in).
        skip: which state enters each step.
        seq_lengths: true lengths, (batch,). Past its end a sequence changes no state and outputs zeros.
        reverse: run from each sequence's own last step to its first.
        keep_order: with `reverse`, return outputs in the order of the inputs (output t belongs to x(t));
            otherwise in the order in which they were computed.
        actions: k in 1..K to be replayed, (batch, time), in the order of the inputs; 0 on padding.
        mode: `sample`, `greedy` or a relaxation (`RELAXATIONS`), where no actions are given.
        temperature: τ of `relaxed_weights`, for attention and relaxations; may be traced.
        mix: λ, in place of `skip.mix`; may be traced.
        policy_mask: False for skips the agent may not choose, (K,) or (batch, K).
        scan_unroll: steps per iteration of the readable implementation's compiled loop.
        implementation: `fast` has a derivative of its own (see `fused.py`); `readable` scans
            `skip_lstm_step`, the definition, and can also be differentiated twice and in forward mode;
            `cudnn` is for the plain LSTM on NVIDIA GPUs.

    Returns:
        The last carry of each sequence, and the outputs of all steps, (batch, time, ...).

    Raises:
        UserError: there is no such implementation, or it cannot run this here.
    """
    if implementation not in IMPLEMENTATIONS:
        raise UserError(f"unknown implementation {implementation!r}: choose {' or '.join(IMPLEMENTATIONS)}")
    if reverse:
        x = flip_sequences(x, seq_lengths)
        actions = None if actions is None else flip_sequences(actions, seq_lengths)
    if implementation == "cudnn":
        carry, outputs = cudnn_unroll(params, carry, x, skip, seq_lengths=seq_lengths)
        return carry, _kept_order(outputs, seq_lengths) if reverse and keep_order else outputs
    valid = None if seq_lengths is None else length_mask(seq_lengths, x.shape[1])
    inputs = project_inputs(params, x, skip, action=actions, valid=valid)
    options = dict(mode=mode, temperature=temperature, mix=mix, policy_mask=policy_mask)
    if implementation == "fast":
        carry, outputs = fused_unroll(params, carry, inputs, skip, seq_lengths=seq_lengths, **options)
    else:
        time_major = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), inputs)
        step = partial(skip_lstm_step, params, skip=skip, **options)
        carry, outputs = jax.lax.scan(step, carry, time_major, unroll=scan_unroll)
        outputs = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), outputs)
    return carry, _kept_order(outputs, seq_lengths) if reverse and keep_order else outputs


def _kept_order(outputs: SkipOutput, seq_lengths: Int[Array, " batch"] | None) -> SkipOutput:
    """Turns the outputs of a reversed run back into the order of the inputs."""
    return jax.tree.map(lambda leaf: flip_sequences(leaf, seq_lengths), outputs)
