"""Inference without the computation for tokens that Skip RNN, LSTM-Jump or Skim-RNN do not read."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax.errors import UserError
from dynskip_jax.functional.checks import check_call, check_inputs, valid_lengths
from dynskip_jax.functional.policy import Policy
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.functional.step import (
    LayerParams,
    Recurrence,
    SkipCarry,
    StepInputs,
    cell_step,
    dropped,
    in_dtype_of,
    project_inputs,
    skip_inputs,
)
from dynskip_jax.functional.time_skips import TimeSkip
from dynskip_jax.functional.transitions import Transition, dense


class SkimOutput(NamedTuple):
    """The result of `skim`.

    Attributes:
        h: Hidden states h(t), (batch, time, hidden); zeros past the end of a sequence. At a token that is not
            read, h is that of the previous step, or of `Transition.unread_state`.
        read: True for tokens that were read, (batch, time).
    """

    h: Float[Array, "batch time hidden"]
    read: Bool[Array, "batch time"]


class _Reader(NamedTuple):
    """State of the loop in `skim`.

    Attributes:
        position: Position of the next token to read in each sequence, (batch,).
        found: False for sequences without a next token, (batch,).
        state: State of the transition, each array (batch, hidden).
        skip_state: State of the time skip.
        h: Hidden states at the tokens read so far, (batch, time, hidden).
        read: True for the tokens read so far, (batch, time).
    """

    position: Int[Array, " batch"]
    found: Bool[Array, " batch"]
    state: Any
    skip_state: Any
    h: Float[Array, "batch time hidden"]
    read: Bool[Array, "batch time"]


def skim(
    params: LayerParams,
    carry: SkipCarry,
    x: Float[Array, "batch time in"],
    recurrence: Recurrence,
    *,
    seq_lengths: Int[Array, " batch"] | None = None,
    policy: Policy = Policy("greedy"),  # noqa: B008 (immutable)
) -> tuple[SkipCarry, SkimOutput]:
    """Compute h and the last carry of `unroll`, with steps only for the tokens that are read.

    Each iteration finds and reads the next token of every sequence. The number of iterations is the largest
    number of tokens read in one sequence. This loop has no reverse-mode derivative.

    Skim-RNN looks at every token, so its loop runs over all steps. It leaves out the large step where no
    sequence reads, so it saves the most with a batch of one.

    Args:
        params: Weights of the layer.
        carry: State to start from.
        x: Inputs, (batch, time, in).
        recurrence: Choices that define the layer, with a time skip that leaves tokens out.
        seq_lengths: True lengths, (batch,), 0 to time; None for full rows.
        policy: Policy that reads a token as a whole or not at all. Samples are those of `unroll` with the
            same keys in the carry. Skim-RNN with a `soft` or `gumbel_softmax` relaxation reads fractions.

    Returns:
        The last carry of each sequence, and the output.

    Raises:
        UserError: The time skip reads every token or fractions of tokens, there is a depth skip, or an
            argument does not fit.
    """
    skip = recurrence.time_skip
    if skip.writes_all or recurrence.depth_skip is not None:
        raise UserError(
            "expected a time skip that leaves words out (SkipRNN, LSTMJump or SkimRNN), without a depth skip"
        )
    check_inputs(x)
    check_call([recurrence], x, carry=[carry], policies=[policy], seq_lengths=seq_lengths)
    if skip.updates_partially(policy.mode):
        raise UserError(
            f"expected a policy that reads whole tokens, and in the mode {policy.mode!r} "
            f"{type(skip).__name__} reads fractions of them: choose Policy('greedy')"
        )
    batch, time = x.shape[:2]
    lengths = jnp.full(batch, time) if seq_lengths is None else valid_lengths(seq_lengths, time)
    h = jnp.zeros((batch, time, carry.slots[0].shape[-1]), carry.slots[0].dtype)
    read = jnp.zeros((batch, time), bool)
    if time == 0:
        return carry, SkimOutput(h, read)
    if _looks_at_every_token(recurrence):
        return _skim_each(params, carry, x, recurrence, lengths, policy)
    move = partial(_next_token, params, carry, recurrence, lengths, policy)
    position, skip_state, found = move(jnp.zeros_like(lengths), carry.state, carry.skip_state)
    start = _Reader(position, found, carry.state, skip_state, h, read)
    step = partial(_read_token, params, carry, x, recurrence, move)
    end = jax.lax.while_loop(lambda reader: jnp.any(reader.found), step, start)
    after = carry._replace(
        slots=jax.tree.map(lambda array: array[:, None], end.state),
        step=carry.step + lengths.astype(carry.step.dtype),
        skip_state=end.skip_state,
    )
    return after, SkimOutput(_filled(end, carry.state[0], lengths), end.read)


def _looks_at_every_token(recurrence: Recurrence) -> bool:
    """Return whether tokens that are not read still enter the time skip or change the state."""
    sees = type(recurrence.time_skip).project is not TimeSkip.project
    return sees or type(recurrence.transition).unread_state is not Transition.unread_state


def _skim_each(
    params: LayerParams,
    carry: SkipCarry,
    x: Float[Array, "batch time in"],
    recurrence: Recurrence,
    lengths: Int[Array, " batch"],
    policy: Policy,
) -> tuple[SkipCarry, SkimOutput]:
    """Run all steps, and leave out the transition's `step` where no sequence reads; see `skim`."""
    skip, transition, mask = recurrence.time_skip, recurrence.transition, carry.recurrent_mask

    def step(before, t):
        state, skip_state = before
        taken, valid = carry.step + t.astype(carry.step.dtype), t < lengths
        x_t = jax.lax.dynamic_index_in_dim(x, t, axis=1, keepdims=False)
        inputs = project_inputs(params, x_t, recurrence, valid=valid)
        inputs = in_dtype_of(carry, inputs)
        given = skip_inputs(recurrence, inputs, taken, carry.key, state[0].dtype, policy)
        observation = getattr(state, skip.observed_array(transition))
        choice, after = skip.choose(params.skip, given, observation, skip_state, policy.mode)
        entering = dropped(state, mask, transition)
        reads = valid & (choice.update > 0.5)

        def read():
            return cell_step(params, inputs, entering, state, None, recurrence, mask, dense)

        skimmed = transition.unread_state(params.transition, inputs.transition, entering, state, dense)
        new = where_each(reads, jax.lax.cond(jnp.any(reads), read, lambda: state), skimmed)
        state, skip_state = where_each(valid, (new, after), (state, skip_state))
        return (state, skip_state), (where_each(valid, state[0], 0), reads)

    (state, skip_state), (h, read) = jax.lax.scan(
        step, (carry.state, carry.skip_state), jnp.arange(x.shape[1])
    )
    end = carry._replace(
        slots=jax.tree.map(lambda array: array[:, None], state),
        step=carry.step + lengths.astype(carry.step.dtype),
        skip_state=skip_state,
    )
    return end, SkimOutput(jnp.moveaxis(h, 0, 1), jnp.moveaxis(read, 0, 1))


def _next_token(
    params: LayerParams,
    carry: SkipCarry,
    recurrence: Recurrence,
    lengths: Int[Array, " batch"],
    policy: Policy,
    position: Int[Array, " batch"],
    state: Any,
    skip_state: Any,
) -> tuple[Int[Array, " batch"], Any, Bool[Array, " batch"]]:
    """Move each sequence from `position` to the next token that it reads, or to its end.

    Returns:
        The new positions, the time skip's states there, and whether each sequence has a token to read.
    """
    skip = recurrence.time_skip
    observation = getattr(state, skip.observed_array(recurrence.transition))

    def is_looking(position, found):
        return ~found & (position < lengths)

    def move(looking):
        position, skip_state, found = looking
        step = carry.step + position
        inputs = skip_inputs(recurrence, StepInputs(None), step, carry.key, observation.dtype, policy)
        choice, after = skip.choose(params.skip, inputs, observation, skip_state, policy.mode)
        moving = is_looking(position, found)
        reads = moving & (choice.update > 0.5)
        position = position + (moving & ~reads).astype(position.dtype)
        return position, where_each(moving, after, skip_state), found | reads

    start = position, skip_state, jnp.zeros(position.shape, bool)
    return jax.lax.while_loop(lambda looking: jnp.any(is_looking(looking[0], looking[2])), move, start)


def _read_token(
    params: LayerParams,
    carry: SkipCarry,
    x: Float[Array, "batch time in"],
    recurrence: Recurrence,
    move: Any,
    reader: _Reader,
) -> _Reader:
    """Read the token at each sequence's position, and find the next one with `move` (`_next_token`)."""
    rows, here = jnp.arange(x.shape[0]), jnp.minimum(reader.position, x.shape[1] - 1)
    inputs = in_dtype_of(carry, project_inputs(params, x[rows, here], recurrence))
    mask = carry.recurrent_mask
    entering = dropped(reader.state, mask, recurrence.transition)
    new = cell_step(params, inputs, entering, reader.state, None, recurrence, mask, dense)
    state = where_each(reader.found, new, reader.state)
    h = reader.h.at[rows, here].set(where_each(reader.found, state[0], reader.h[rows, here]))
    read = reader.read.at[rows, here].set(reader.read[rows, here] | reader.found)
    position = reader.position + reader.found.astype(reader.position.dtype)
    position, skip_state, found = move(position, state, reader.skip_state)
    return _Reader(position, found, state, skip_state, h, read)


def _filled(
    reader: _Reader, start: Float[Array, "batch hidden"], lengths: Int[Array, " batch"]
) -> Float[Array, "batch time hidden"]:
    """Return h of each step, (batch, time, hidden): that of the last token that was read.

    It is `start` before the first such token, and zeros past the end of a sequence.
    """
    steps = jnp.arange(reader.read.shape[1])[None, :]
    last = jax.lax.cummax(jnp.where(reader.read, steps, -1), axis=1)
    h = jnp.take_along_axis(reader.h, jnp.maximum(last, 0)[..., None], axis=1)
    h = jnp.where((last >= 0)[..., None], h, start[:, None])
    return jnp.where((steps < lengths[:, None])[..., None], h, 0)
