"""The unroll of a recurrent layer over time: projections outside the loop, `jax.lax.scan` inside."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynskip_jax.errors import UserError
from dynskip_jax.functional.checks import valid_lengths
from dynskip_jax.functional.cudnn import cudnn_unroll
from dynskip_jax.functional.fused import fused_unroll
from dynskip_jax.functional.policy import Policy
from dynskip_jax.functional.recurrence import (
    LayerParams,
    Recurrence,
    SkipCarry,
    SkipOutput,
    check_call,
    project_inputs,
    recurrent_step,
)
from dynskip_jax.functional.sequence import flip_sequences, length_mask, segment_starts

IMPLEMENTATIONS = ("fused", "reference", "cudnn")


def unroll(
    params: LayerParams,
    carry: SkipCarry,
    x: Float[Array, "batch time in"],
    recurrence: Recurrence,
    *,
    below: Float[Array, "batch time below"] | None = None,
    seq_lengths: Int[Array, " batch"] | None = None,
    reverse: bool = False,
    keep_order: bool = False,
    segment_ids: Int[Array, "batch time"] | None = None,
    initial: Any = None,
    zoneout_mask: Any = None,
    actions: Int[Array, "batch time"] | None = None,
    policy: Policy = Policy(),  # noqa: B008 (immutable)
    return_cell_state: bool = False,
    scan_unroll: int = 1,
    implementation: str = "fused",
) -> tuple[SkipCarry, SkipOutput]:
    """Runs `recurrent_step` over all steps of a batch of sequences.

    Args:
        params: the layer's weights.
        carry: the state to start from.
        x: inputs, (batch, time, in).
        recurrence: what the layer computes.
        below: what the skip over depth brings, (batch, time, below), in the order of the inputs.
        seq_lengths: true lengths, (batch,), 0 to time. Past its end a sequence changes no state and outputs
            zeros, and its inputs have no effect.
        reverse: run from each sequence's own last step to its first.
        keep_order: with `reverse`, return outputs in the order of the inputs (output t belongs to x(t));
            otherwise in the order in which they were computed.
        segment_ids: of several sequences packed in one row, (batch, time): where the number changes another
            sequence begins, from the initial state, and its steps see nothing of those before. The first of a
            row goes on from the carry. Takes the reference unroll, whatever `implementation` says.
        initial: that initial state, each array (batch, hidden); by default zeros.
        zoneout_mask: (batch, time, hidden) for each array of the state, in the order of the steps; see
            `functional.zoneout`.
        actions: to be replayed, (batch, time), in the order of the inputs; k in 1..K of a dynamic skip; 0 on
            padding.
        policy: how choices are made, where no actions are given.
        return_cell_state: put the internal state of each step into the outputs (`SkipOutput.cell_state`).
        scan_unroll: steps per iteration of the reference's compiled loop.
        implementation: `fused` has a derivative of its own (see `fused.py`); `reference` scans
            `recurrent_step`, the definition, and can also be differentiated in forward mode;
            `cudnn` is for the plain LSTM on NVIDIA GPUs.

    Returns:
        The last carry of each sequence, and the outputs of all steps, (batch, time, ...).

    Raises:
        UserError: there is no such implementation, it cannot run this here, or a value that is known before
            the program runs makes no sense. Traced lengths and actions beyond their range count as its ends.
    """
    if implementation not in IMPLEMENTATIONS:
        raise UserError(f"unknown implementation {implementation!r}: choose {' or '.join(IMPLEMENTATIONS)}")
    time = x.shape[1]
    given = dict(seq_lengths=seq_lengths, segment_ids=segment_ids, actions=actions)
    check_call(recurrence, carry, x, policy=policy, below=below, **given)
    if seq_lengths is not None:
        seq_lengths = valid_lengths(seq_lengths, time)
    flip = partial(flip_sequences, seq_lengths=seq_lengths)
    if reverse:
        x, below, actions, segment_ids = jax.tree.map(flip, (x, below, actions, segment_ids))
    if implementation == "cudnn":
        if segment_ids is not None or zoneout_mask is not None:
            raise UserError("implementation 'cudnn' has neither segment_ids nor zoneout: use 'fused'")
        if return_cell_state:
            raise UserError("implementation 'cudnn' keeps no internal states of all steps: use 'fused'")
        carry, outputs = cudnn_unroll(params, carry, x, recurrence, seq_lengths=seq_lengths)
        return carry, jax.tree.map(flip, outputs) if reverse and keep_order else outputs
    valid = None if seq_lengths is None else length_mask(seq_lengths, time)
    inputs = project_inputs(params, x, recurrence, below=below, action=actions, valid=valid)
    inputs = inputs._replace(zoneout_mask=zoneout_mask)
    if segment_ids is not None:
        inputs = inputs._replace(restart=segment_starts(segment_ids))
    options = dict(policy=policy, return_cell_state=return_cell_state)
    if implementation == "fused" and time > 0 and segment_ids is None:
        carry, outputs = fused_unroll(
            params, carry, inputs, recurrence, seq_lengths=seq_lengths, scan_unroll=scan_unroll, **options
        )
    else:
        time_major = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), inputs)
        step = partial(recurrent_step, params, recurrence=recurrence, initial=initial, **options)
        carry, outputs = jax.lax.scan(step, carry, time_major, unroll=scan_unroll)
        outputs = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), outputs)
    return carry, jax.tree.map(flip, outputs) if reverse and keep_order else outputs
