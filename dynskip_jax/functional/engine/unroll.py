"""Unroll a recurrent layer over time, with the implementation that the caller selects."""

import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax.errors import UserError
from dynskip_jax.functional.checks import (
    check_below,
    check_call,
    check_dtypes,
    check_implementation,
    check_inputs,
    valid_lengths,
)
from dynskip_jax.functional.engine import parallel
from dynskip_jax.functional.engine.deferred import OutOfReach
from dynskip_jax.functional.engine.fused import fused_unroll
from dynskip_jax.functional.policy import Policy
from dynskip_jax.functional.sequence import flip_sequences, length_mask, sequence_starts
from dynskip_jax.functional.sharding import match_batch, on_one_mesh, vary_along, varying_axes
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
    resets: Bool[Array, "batch time"] | None = None,
    initial: Any = None,
    zoneout_mask: Any = None,
    actions: Int[Array, "batch time"] | None = None,
    policy: Policy = Policy(),  # noqa: B008 (immutable)
    return_cell_state: bool = False,
    implementation: str = "auto",
) -> tuple[SkipCarry, SkipOutput]:
    """Run `recurrent_step` over a batch of sequences; return the last carry and all outputs.

    Traced lengths and actions out of range are clipped; known ones raise a `UserError`.

    Args:
        seq_lengths: True lengths, (batch,), 0 to time; None for full rows. Padding has no effect:
            it changes no state, and its outputs are zeros.
        reverse: Whether to run from the last step of each sequence to its first. Outputs keep the
            order of `x`.
        segment_ids: Ids of the sequences packed into each row, (batch, time). Where the id changes,
            the next sequence begins from the initial state, independent of earlier steps. The first
            sequence of a row starts from `carry`. `parallel` does not run packed rows.
        resets: Another way to say where sequences begin, (batch, time): True at the first step of
            each. A sequence that begins at the first step of a row does not use `carry`.
        initial: Initial state of packed sequences, each array (batch, hidden). Default: zeros.
        zoneout_mask: Zoneout factors, (batch, time, hidden) for each array of the state, in the
            order in which steps run; see `functional.zoneout`.
        actions: Actions to replay, (batch, time): k in 1..K for a dynamic skip; 0 at padding. A
            skip that does not choose, such as attention, ignores them.
        return_cell_state: Whether outputs contain the cell state of each step
            (`SkipOutput.cell_state`).
        implementation: `auto` selects `parallel` where it fits, except on a CPU, otherwise `fused`,
            and `reference` for a single step.
            `fused` has reverse-mode derivatives (see `fused_unroll`). `reference` scans
            `recurrent_step`, the definition, and has derivatives in any mode. `parallel` is for
            minLSTM and minGRU without a time skip: one scan in O(log time) rounds. It uses `fused`
            if the number of steps is symbolic.
    """
    check_implementation(implementation)
    check_inputs(x)
    check_call(
        [recurrence],
        x,
        carry=[carry],
        policies=[policy],
        actions=[actions],
        seq_lengths=seq_lengths,
        segment_ids=segment_ids,
        resets=resets,
    )
    check_below(recurrence, below, x.shape[:2], carry.ring[0].shape[-1])
    check_dtypes(params, carry)
    if seq_lengths is not None:
        seq_lengths = valid_lengths(seq_lengths, x.shape[1])
    restart = sequence_starts(segment_ids, resets, reverse=reverse, seq_lengths=seq_lengths)
    if restart is not None and initial is None:
        initial = jax.tree.map(jnp.zeros_like, carry.state)

    # Give all arrays of the loop the type of the inputs: the same sharding, the same varying axes.
    rows = _Rows(carry, x, below, seq_lengths, actions, restart, initial, zoneout_mask)
    params, rows = on_one_mesh((params, rows))
    rows = match_batch(rows, rows.x)
    axes = varying_axes((params, rows, policy))
    params, rows, policy = vary_along((params, rows, policy), axes)

    # A reversed layer runs the same loop over sequences that are reversed, and back again.
    if reverse:
        rows = rows.flipped()
    end, outputs = _run_steps(
        implementation,
        params,
        rows.carry,
        _step_inputs(params, rows, recurrence),
        recurrence,
        initial=rows.initial,
        policy=policy,
        return_cell_state=return_cell_state,
    )
    if reverse:
        flip = partial(flip_sequences, seq_lengths=rows.seq_lengths)
        outputs = jax.tree.map(flip, outputs)
    return end, outputs


class _Rows(NamedTuple):
    """Arrays of a call that have one row for each sequence; None for what is not given."""

    carry: SkipCarry
    x: Float[Array, "batch time in"]
    below: Float[Array, "batch time below"] | None
    seq_lengths: Int[Array, " batch"] | None
    actions: Int[Array, "batch time"] | None
    restart: Bool[Array, "batch time"] | None  # see `StepInputs`
    initial: Any
    zoneout_mask: Any

    def flipped(self) -> "_Rows":
        """Return the rows with each sequence reversed.

        `restart` and the zoneout mask already have the order of the steps.
        """
        flip = partial(flip_sequences, seq_lengths=self.seq_lengths)
        x, below, actions = jax.tree.map(flip, (self.x, self.below, self.actions))
        return self._replace(x=x, below=below, actions=actions)


def _step_inputs(params: LayerParams, rows: _Rows, recurrence: Recurrence) -> StepInputs:
    """Return the inputs of all steps that need no state, (time, batch, ...)."""
    valid = None
    if rows.seq_lengths is not None:
        valid = length_mask(rows.seq_lengths, rows.x.shape[1])
    # Time-major, so that a step reads one contiguous row of each.
    steps = (rows.x, rows.below, rows.actions, valid, rows.restart, rows.zoneout_mask)
    steps = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), steps)
    x_TBF, below_TBF, action_TB, valid_TB, restart_TB, zoneout_mask_TBH = steps
    inputs = project_inputs(
        params, x_TBF, recurrence, below=below_TBF, action=action_TB, valid=valid_TB
    )
    return inputs._replace(restart=restart_TB, zoneout_mask=zoneout_mask_TBH)


def _run_steps(
    implementation: str,
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    recurrence: Recurrence,
    *,
    initial: Any,
    policy: Policy,
    return_cell_state: bool,
) -> tuple[SkipCarry, SkipOutput]:
    """Run an implementation over the steps of `inputs`, (time, batch, ...).

    For `auto`, a parallel scan runs where it fits, except on a CPU, the platform that the program
    is lowered for: it does more arithmetic than a loop.
    """
    # The implementations, as functions of the weights, the carry and the inputs.
    fits = parallel.fits(recurrence, inputs)
    if implementation == "parallel" and not fits:
        raise UserError(
            "implementation='parallel' is for minLSTM and minGRU without skips over time, depth "
            "skips to the state, segment_ids and zoneout: use 'auto'"
        )
    options = dict(recurrence=recurrence, return_cell_state=return_cell_state)
    in_parallel = partial(parallel.parallel_unroll, **options)
    options |= dict(initial=initial, policy=policy)
    reference = partial(reference_unroll, **options)
    fused = partial(fused_unroll, **options)

    # Which of them runs.
    time = jax.tree.leaves(inputs.transition)[0].shape[0]
    # One step writes one row of the carry; the others copy the K states of it.
    is_step = implementation == "auto" and time == 1
    if implementation == "reference" or time == 0 or is_step:
        return reference(params, carry, inputs)
    run = fused
    # JAX has no parallel scan over a symbolic length.
    if fits and isinstance(time, int):
        if implementation == "parallel":
            run = in_parallel
        elif implementation == "auto":
            run = partial(jax.lax.platform_dependent, cpu=fused, default=in_parallel)
    try:
        return run(params, carry, inputs)
    except OutOfReach:
        warnings.warn(
            f"{type(recurrence.transition).__name__}.step calls dense inside jax.checkpoint, "
            "jax.lax.scan or jax.jit, or with arrays that are not (batch, features), where the "
            "fused unroll cannot keep its results: using implementation='reference'",
            stacklevel=3,
        )
        return reference(params, carry, inputs)


def reference_unroll(
    params: LayerParams, carry: SkipCarry, inputs: StepInputs, **options: Any
) -> tuple[SkipCarry, SkipOutput]:
    """Scan `recurrent_step` with its `options` over the steps of `inputs`, (time, batch, ...)."""
    carry, outputs = jax.lax.scan(partial(recurrent_step, params, **options), carry, inputs)
    return carry, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), outputs)
