"""Inference without the computation for tokens that Skip RNN, LSTM-Jump or Skim-RNN do not read."""

from collections.abc import Callable
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
from dynskip_jax.functional.transitions import dense


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
        position: Position of the next token of each sequence, (batch,).
        found: True where the sequence reads this token, (batch,).
        state: State of the transition, each array (batch, hidden).
        skip_state: State of the time skip, after its choice for this token where `found` is True.
        h: Hidden states so far, (batch, time, hidden).
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

    Between two tokens that are read, an inner loop takes only the time skip's choices and the small steps of
    `Transition.unread_state`.

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
    if skip.mode_of(policy.mode) in ("soft", "gumbel_softmax"):
        raise UserError(
            f"expected a policy that reads whole tokens, and in the mode {policy.mode!r} "
            f"{type(skip).__name__} reads fractions of them: choose Policy('greedy')"
        )
    batch, time = x.shape[:2]
    lengths = jnp.full(batch, time) if seq_lengths is None else valid_lengths(seq_lengths, time)
    hidden, dtype = carry.slots[0].shape[-1], carry.slots[0].dtype
    start = _Reader(
        jnp.zeros(batch, jnp.int32),
        jnp.zeros(batch, bool),
        carry.state,
        carry.skip_state,
        jnp.zeros((batch, time, hidden), dtype),
        jnp.zeros((batch, time), bool),
    )
    if time == 0:
        return carry, SkimOutput(start.h, start.read)
    find = partial(_find_token, partial(_pass_token, params, carry, x, recurrence, policy), lengths)
    read = partial(_read_token, params, carry, x, recurrence)
    end = jax.lax.while_loop(
        lambda reader: jnp.any(reader.found), lambda reader: find(read(reader)), find(start)
    )
    after = carry._replace(
        slots=jax.tree.map(lambda array: array[:, None], end.state),
        step=carry.step + lengths.astype(carry.step.dtype),
        skip_state=end.skip_state,
    )
    return after, SkimOutput(end.h, end.read)


def _find_token(
    pass_token: Callable[[Bool[Array, " batch"], _Reader], _Reader],
    lengths: Int[Array, " batch"],
    reader: _Reader,
) -> _Reader:
    """Move each sequence to the next token that it reads, or to its end."""

    def looking(reader: _Reader) -> Bool[Array, " batch"]:
        return ~reader.found & (reader.position < lengths)

    return jax.lax.while_loop(
        lambda reader: jnp.any(looking(reader)), lambda reader: pass_token(looking(reader), reader), reader
    )


def _pass_token(
    params: LayerParams,
    carry: SkipCarry,
    x: Float[Array, "batch time in"],
    recurrence: Recurrence,
    policy: Policy,
    looking: Bool[Array, " batch"],
    reader: _Reader,
) -> _Reader:
    """Decide about one token of each sequence that is looking, and move on where it is not read."""
    skip, transition, state = recurrence.time_skip, recurrence.transition, reader.state
    inputs = _inputs_at(params, carry, x, recurrence, reader.position)
    step = carry.step + reader.position
    given = skip_inputs(recurrence, inputs, step, carry.key, state[0].dtype, policy)
    observation = getattr(state, skip.observed_array(transition))
    choice, after = skip.choose(params.skip, given, observation, reader.skip_state, policy.mode)
    reads = looking & (choice.update > 0.5)
    entering = dropped(state, carry.recurrent_mask, transition)
    unread = transition.unread_state(params.transition, inputs.transition, entering, state, dense)
    reader = _moved_on(reader, looking & ~reads, unread)
    skip_state = where_each(looking, after, reader.skip_state)
    return reader._replace(found=reader.found | reads, skip_state=skip_state)


def _read_token(
    params: LayerParams,
    carry: SkipCarry,
    x: Float[Array, "batch time in"],
    recurrence: Recurrence,
    reader: _Reader,
) -> _Reader:
    """Read the token at the position of each sequence that has found one."""
    inputs, mask = _inputs_at(params, carry, x, recurrence, reader.position), carry.recurrent_mask
    entering = dropped(reader.state, mask, recurrence.transition)
    new = cell_step(params, inputs, entering, reader.state, None, recurrence, mask, dense)
    here = jnp.arange(x.shape[1])[None] == reader.position[:, None]
    read = reader.read | (here & reader.found[:, None])
    reader = _moved_on(reader, reader.found, new)
    return reader._replace(read=read, found=jnp.zeros_like(reader.found))


def _inputs_at(params, carry, x, recurrence, position: Int[Array, " batch"]) -> StepInputs:
    x_t = x[jnp.arange(x.shape[0]), jnp.minimum(position, x.shape[1] - 1)]
    return in_dtype_of(carry, project_inputs(params, x_t, recurrence))


def _moved_on(reader: _Reader, chosen: Bool[Array, " batch"], new: Any) -> _Reader:
    """Take the new state and move to the next token in the chosen sequences."""
    state = where_each(chosen, new, reader.state)
    rows, here = jnp.arange(chosen.shape[0]), jnp.minimum(reader.position, reader.h.shape[1] - 1)
    h = reader.h.at[rows, here].set(where_each(chosen, state[0], reader.h[rows, here]))
    return reader._replace(position=reader.position + chosen.astype(jnp.int32), state=state, h=h)
