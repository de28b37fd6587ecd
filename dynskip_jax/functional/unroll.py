"""Unroll a recurrent layer over time, with the implementation that the caller selects."""

import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynskip_jax.errors import UserError
from dynskip_jax.functional import cudnn, parallel
from dynskip_jax.functional.checks import (
    check_below,
    check_call,
    check_dtypes,
    check_implementation,
    check_inputs,
    naming_reference,
    valid_lengths,
)
from dynskip_jax.functional.deferred import OutOfReach
from dynskip_jax.functional.policy import Policy
from dynskip_jax.functional.scan import fused_unroll
from dynskip_jax.functional.sequence import flip_sequences, length_mask, segment_starts
from dynskip_jax.functional.sharding import match_batch, on_mesh_of, vary_along, varying_axes
from dynskip_jax.functional.step import (
    LayerParams,
    Recurrence,
    SkipCarry,
    SkipOutput,
    StepInputs,
    project_inputs,
    recurrent_step,
)


def unroll(
    params: LayerParams,
    carry: SkipCarry,
    x: Float[Array, "batch time in"],
    recurrence: Recurrence,
    *,
    below: Float[Array, "batch time below"] | None = None,
    seq_lengths: Int[Array, " batch"] | None = None,
    reverse: bool = False,
    segment_ids: Int[Array, "batch time"] | None = None,
    initial: Any = None,
    zoneout_mask: Any = None,
    actions: Int[Array, "batch time"] | None = None,
    policy: Policy = Policy(),  # noqa: B008 (immutable)
    return_cell_state: bool = False,
    implementation: str = "auto",
) -> tuple[SkipCarry, SkipOutput]:
    """Run `recurrent_step` over all steps of a batch of sequences.

    Traced lengths and actions out of range are clipped; known ones raise a `UserError`.

    Args:
        params: Weights of the layer.
        carry: State to start from.
        x: Inputs, (batch, time, in).
        recurrence: Choices that define the layer.
        below: Input of the depth skip, (batch, time, below).
        seq_lengths: True lengths, (batch,), 0 to time; None for full rows. Padding has no effect: it changes
            no state, and its outputs are zeros.
        reverse: Whether to run from the last step of each sequence to its first. Outputs keep the order of
            `x`.
        segment_ids: Ids of the sequences packed into each row, (batch, time). Where the id changes, the next
            sequence begins from the initial state, independent of earlier steps. The first sequence of a row
            starts from `carry`. `cudnn` and `parallel` do not run packed rows.
        initial: Initial state of packed sequences, each array (batch, hidden). Default: zeros.
        zoneout_mask: Zoneout factors, (batch, time, hidden) for each array of the state, in the order in
            which steps run; see `functional.zoneout`.
        actions: Actions to replay, (batch, time): k in 1..K for a dynamic skip; 0 at padding. A skip that
            does not choose, such as attention, ignores them.
        policy: Policy of the layer, which chooses where no actions are given.
        return_cell_state: Whether outputs contain the cell state of each step (`SkipOutput.cell_state`).
        implementation: `auto` selects `cudnn` or `parallel` where it fits (on a CPU neither), otherwise
            `fused`. `fused` has custom reverse-mode derivatives (see `fused_unroll`), to which forward mode
            can be applied (`jax.hessian`). `reference` scans `recurrent_step`, the definition, and has
            derivatives in any mode. `cudnn` is for the plain LSTM on NVIDIA GPUs. `parallel` is for minLSTM
            and minGRU without a time skip: one scan in O(log time) rounds. It uses `fused` if the number of
            steps is symbolic. `tpu_kernel` is one kernel for TPUs that runs the LSTM with `Previous`, `Fixed`
            or `Dynamic`; it is compiled and simulated, but not yet timed on a TPU (see `tpu_unroll`).

    Returns:
        The last carry of each sequence, and the outputs of all steps, (batch, time, ...).
    """
    check_implementation(implementation)
    check_inputs(x)
    given = dict(seq_lengths=seq_lengths, segment_ids=segment_ids)
    check_call([recurrence], x, carry=[carry], policies=[policy], actions=[actions], **given)
    check_below(recurrence, below, x.shape[:2], carry.slots[0].shape[-1])
    check_dtypes(params, carry)
    if seq_lengths is not None:
        seq_lengths = valid_lengths(seq_lengths, x.shape[1])
    if segment_ids is not None and initial is None:
        initial = jax.tree.map(jnp.zeros_like, carry.state)
    rare = dict(zoneout_mask=zoneout_mask, segment_ids=segment_ids, return_cell_state=return_cell_state)
    if implementation == "auto" and cudnn.fits(params, carry, x, recurrence, **rare):
        implementation = "cudnn"
    flip = partial(flip_sequences, seq_lengths=seq_lengths) if reverse else lambda array: array
    # Give all arrays of the loop the type of the inputs: the same sharding, the same varying axes.
    rows = (carry, x, below, seq_lengths, actions, segment_ids, initial, zoneout_mask)
    rows = match_batch(rows, x)
    params = on_mesh_of(params, x)
    params, rows, policy = vary_along((params, rows, policy), varying_axes((params, rows, policy)))
    carry, x, below, seq_lengths, actions, segment_ids, initial, zoneout_mask = rows
    x, below, actions, segment_ids = jax.tree.map(flip, (x, below, actions, segment_ids))
    if implementation == "cudnn":
        carry, outputs = cudnn.cudnn_unroll(params, carry, x, recurrence, seq_lengths=seq_lengths, **rare)
    else:
        valid = None if seq_lengths is None else length_mask(seq_lengths, x.shape[1])
        restart = None if segment_ids is None else segment_starts(segment_ids)
        # Time-major, so that a step reads one contiguous row of each.
        steps = (x, below, actions, valid, restart, zoneout_mask)
        steps = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), steps)
        x, below, action, valid, restart, zoneout_mask = steps
        inputs = project_inputs(params, x, recurrence, below=below, action=action, valid=valid)
        inputs = inputs._replace(restart=restart, zoneout_mask=zoneout_mask)
        options = dict(initial=initial, policy=policy, return_cell_state=return_cell_state)
        carry, outputs = _run_steps(implementation, params, carry, inputs, recurrence, **options)
    return carry, jax.tree.map(flip, outputs)


def _run_steps(
    implementation: str,
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    recurrence: Recurrence,
    **options: Any,
) -> tuple[SkipCarry, SkipOutput]:
    """Run an implementation over the steps of `inputs`, (time, batch, ...).

    For `auto`, a parallel scan runs where it fits, except on a CPU, the platform that the program is lowered
    for: it does more arithmetic than a loop.
    """
    reference = partial(reference_unroll, recurrence=recurrence, **options)
    fused = partial(fused_unroll, recurrence=recurrence, **options)
    cell_state = dict(return_cell_state=options["return_cell_state"])
    in_parallel = partial(parallel.parallel_unroll, recurrence=recurrence, **cell_state)
    if implementation == "tpu_kernel":
        from dynskip_jax.functional.tpu_kernel import tpu_unroll  # Pallas takes a while to import

        return tpu_unroll(params, carry, inputs, recurrence, policy=options["policy"], **cell_state)
    fits = parallel.fits(recurrence, inputs)
    if implementation == "parallel" and not fits:
        raise UserError(
            "implementation='parallel' is for minLSTM and minGRU without skips over time, depth skips to the "
            "state, segment_ids and zoneout: use 'auto'"
        )
    time = jax.tree.leaves(inputs.transition)[0].shape[0]
    run = reference if implementation == "reference" or time == 0 else fused
    if run is fused and fits and isinstance(time, int):  # JAX has no parallel scan over a symbolic length
        by_platform = partial(jax.lax.platform_dependent, cpu=fused, default=in_parallel)
        run = dict(parallel=in_parallel, auto=by_platform).get(implementation, fused)
    try:
        with naming_reference():
            return run(params, carry, inputs)
    except OutOfReach:
        warnings.warn(
            f"{type(recurrence.transition).__name__}.step calls dense inside jax.checkpoint, jax.lax.scan or "
            "jax.jit, or with arrays that are not (batch, features), where the fused unroll cannot keep its "
            "results: using implementation='reference'",
            stacklevel=3,
        )
        return reference(params, carry, inputs)


def reference_unroll(
    params: LayerParams, carry: SkipCarry, inputs: StepInputs, **options: Any
) -> tuple[SkipCarry, SkipOutput]:
    """Scan `recurrent_step` with its `options` over the steps of `inputs`, (time, batch, ...)."""
    carry, outputs = jax.lax.scan(partial(recurrent_step, params, **options), carry, inputs)
    return carry, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), outputs)
