"""Unroll of a transition that is linear in the state, as one parallel scan over all steps."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.functional.engine.history import last_rows, lengths_of, oldest_first
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.functional.step import (
    LayerParams,
    Recurrence,
    SkipCarry,
    SkipOutput,
    StepInputs,
    in_dtype_of,
)
from dynskip_jax.functional.time_skips import Choice, Previous, SkipInputs
from dynskip_jax.functional.time_skips.calls import decide
from dynskip_jax.functional.transitions import LinearTransition


def fits(recurrence: Recurrence, inputs: StepInputs) -> bool:
    """Return whether `parallel_unroll` can run: only a `LinearTransition` acts on the state."""
    depth = recurrence.depth_skip
    return (
        type(recurrence.transition).step is LinearTransition.step  # and not one of its own
        and type(recurrence.time_skip) is Previous
        and (depth is None or depth.enters == "gates")
        and inputs.zoneout_mask is None
        and inputs.restart is None
    )


def parallel_unroll(
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    recurrence: Recurrence,
    *,
    return_cell_state: bool = False,
) -> tuple[SkipCarry, SkipOutput]:
    """Compute h(t) = a(t) ⊙ h(t-1) + b(t) for all steps, in O(log time) rounds; see `unroll`.

    `inputs` is the result of `project_inputs` for all steps, (time, batch, ...); `fits` must hold.
    """
    inputs = in_dtype_of(carry, inputs)
    a, b = inputs.transition
    # Padding passes the state on: h -> 1 h + 0.
    if inputs.valid is not None:
        a = where_each(inputs.valid, a, 1)
        b = where_each(inputs.valid, b, 0)
    grown, added = jax.lax.associative_scan(_compose, (a, b), axis=0)
    # The composition of all steps up to t, applied to h(-1), is h(t).
    h = grown * carry.state.h[None] + added

    # The carry after the last step of each sequence.
    skip = recurrence.time_skip
    time, batch = h.shape[:2]
    history = jnp.concatenate([jnp.moveaxis(oldest_first(carry.slots.h, None), 1, 0), h])
    lengths = lengths_of(inputs.valid, carry.step.dtype)
    slots = jnp.moveaxis(jnp.flip(last_rows(history, lengths, skip.max_skip), 0), 0, 1)
    count = lengths
    if lengths is None:
        count = time
    step = carry.step + count
    end = carry.with_slots(recurrence.transition.state(slots))._replace(step=step)

    # Outputs, (batch, time, hidden).
    h = jnp.moveaxis(h, 0, 1)
    steps = SkipInputs(step=jnp.broadcast_to(carry.step[:, None], (batch, time)))
    decision = decide(skip, None, steps, h, Choice(), "greedy")
    output = SkipOutput(h, decision)
    if return_cell_state:
        output = output._replace(cell_state=h)
    if inputs.valid is not None:
        output = where_each(inputs.valid.T, output, 0)
    return end, output


Pair = tuple[Float[Array, "batch time hidden"], Float[Array, "batch time hidden"]]


def _compose(first: Pair, second: Pair) -> Pair:
    """Return (a, b) of the function h -> a ⊙ h + b that applies `first` and then `second`."""
    return second[0] * first[0], second[0] * first[1] + second[1]
