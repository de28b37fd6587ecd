"""The unroll of a recurrent layer over time: projections outside the loop, `jax.lax.scan` inside."""

import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynskip_jax.errors import UserError
from dynskip_jax.functional.checks import valid_lengths
from dynskip_jax.functional.cudnn import cudnn_unroll, fits
from dynskip_jax.functional.fused import fused_unroll
from dynskip_jax.functional.fused_step import ProductsOutOfReach
from dynskip_jax.functional.parallel import check_fits, parallel_unroll
from dynskip_jax.functional.parallel import fits as runs_in_parallel
from dynskip_jax.functional.policy import Policy
from dynskip_jax.functional.recurrence import (
    LayerParams,
    Recurrence,
    SkipCarry,
    SkipOutput,
    StepInputs,
    check_call,
    check_dtypes,
    project_inputs,
    recurrent_step,
)
from dynskip_jax.functional.sequence import flip_sequences, length_mask, segment_starts
from dynskip_jax.functional.sharding import match_batch, vary_along, varying_axes

IMPLEMENTATIONS = ("auto", "fused", "reference", "cudnn", "parallel")


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
    implementation: str = "auto",
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
        scan_unroll: steps per iteration of the compiled loops.
        implementation: `auto` is `cudnn` or `parallel` where it fits (on a CPU neither), otherwise `fused`.
            `fused` has reverse-mode derivatives of its own (see `fused_unroll`), to which forward mode can be
            applied (`jax.hessian`). `reference` scans `recurrent_step`, the definition, and has derivatives
            in any mode. `cudnn` is for the plain LSTM on NVIDIA GPUs. `parallel` is for minLSTM and minGRU
            without a skip over time: one scan in log₂(time) rounds, or `fused` where the length is unknown.

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
    check_dtypes(params, carry)
    if seq_lengths is not None:
        seq_lengths = valid_lengths(seq_lengths, time)
    refused = dict(zoneout_mask=zoneout_mask, segment_ids=segment_ids, return_cell_state=return_cell_state)
    implementation = _choose_implementation(implementation, params, carry, x, recurrence, **refused)
    flip = partial(flip_sequences, seq_lengths=seq_lengths) if reverse else lambda array: array
    flip_back = flip if keep_order else lambda array: array
    # All arrays of the loop are typed as the inputs are: sharded alike, varying along the same axes.
    rows = (carry, x, below, seq_lengths, actions, segment_ids, initial, zoneout_mask)
    rows = match_batch(rows, x)
    axes = varying_axes((params, rows, policy))
    params, rows, policy = vary_along((params, rows, policy), axes)
    carry, x, below, seq_lengths, actions, segment_ids, initial, zoneout_mask = rows
    x, below, actions, segment_ids = jax.tree.map(flip, (x, below, actions, segment_ids))
    if implementation == "cudnn":
        carry, outputs = cudnn_unroll(params, carry, x, recurrence, seq_lengths=seq_lengths, **refused)
        return carry, jax.tree.map(flip_back, outputs)
    valid = None if seq_lengths is None else length_mask(seq_lengths, time)
    inputs = project_inputs(params, x, recurrence, below=below, action=actions, valid=valid)
    inputs = inputs._replace(zoneout_mask=zoneout_mask)
    options = dict(policy=policy, return_cell_state=return_cell_state, scan_unroll=scan_unroll)
    result = None
    if implementation == "parallel" and time > 0:
        lengths_and_states = dict(seq_lengths=seq_lengths, return_cell_state=return_cell_state)
        result = parallel_unroll(carry, inputs, recurrence, **lengths_and_states)
    if implementation == "fused" and time > 0 and segment_ids is None:
        result = _try_fused(params, carry, inputs, recurrence, seq_lengths=seq_lengths, **options)
    if result is None:
        if segment_ids is not None:
            inputs = inputs._replace(restart=segment_starts(segment_ids))
        result = reference_unroll(params, carry, inputs, recurrence, initial=initial, **options)
    carry, outputs = result
    return carry, jax.tree.map(flip_back, outputs)


def reference_unroll(
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    recurrence: Recurrence,
    *,
    initial: Any = None,
    policy: Policy = Policy(),  # noqa: B008 (immutable)
    return_cell_state: bool = False,
    scan_unroll: int = 1,
) -> tuple[SkipCarry, SkipOutput]:
    """Scan `recurrent_step` over the steps of `inputs`, (batch, time, ...)."""
    options = dict(policy=policy, initial=initial, return_cell_state=return_cell_state)
    step = partial(recurrent_step, params, recurrence=recurrence, **options)
    time_major = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), inputs)
    carry, outputs = jax.lax.scan(step, carry, time_major, unroll=scan_unroll)
    return carry, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), outputs)


def _choose_implementation(
    implementation: str,
    params: LayerParams,
    carry: SkipCarry,
    x: Float[Array, "batch time in"],
    recurrence: Recurrence,
    *,
    zoneout_mask: Any,
    segment_ids: Any,
    return_cell_state: bool,
) -> str:
    """Return the implementation that runs: resolve `auto`, and check that `parallel` fits."""
    not_linear = dict(zoneout_mask=zoneout_mask, segment_ids=segment_ids)
    if implementation == "auto":
        options = dict(**not_linear, return_cell_state=return_cell_state)
        implementation = "cudnn" if fits(params, carry, x, recurrence, **options) else "fused"
        # A scan in parallel does more arithmetic than a loop, which a CPU does not hide.
        if jax.default_backend() != "cpu" and runs_in_parallel(recurrence, **not_linear):
            implementation = "parallel"
    elif implementation == "parallel":
        check_fits(recurrence, **not_linear)
    is_symbolic = not isinstance(x.shape[1], int)  # JAX scans a symbolic length only one by one
    return "fused" if implementation == "parallel" and is_symbolic else implementation


def _try_fused(*args: Any, **options: Any) -> tuple[SkipCarry, SkipOutput] | None:
    """Return what the fused unroll returns; None, with a warning, for a transition that it cannot run."""
    try:
        return fused_unroll(*args, **options)
    except ProductsOutOfReach:
        recurrence = args[3]
        warnings.warn(
            f"{type(recurrence.transition).__name__}.step calls dense inside jax.checkpoint, jax.lax.scan or "
            "jax.jit, where the fused unroll cannot keep its results: using implementation='reference'",
            stacklevel=3,
        )
        return None
