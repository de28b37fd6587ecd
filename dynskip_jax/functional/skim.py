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
    observed,
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
    """State of the loop in `skim`."""

    position: Int[Array, " batch"]  # position of the next token of each sequence, (batch,)
    found: Bool[Array, " batch"]  # True where the sequence reads this token, (batch,)
    state: Any  # state of the transition, each array (batch, hidden)
    skip_state: Any  # state of the time skip, after its choice for this token where `found` is True
    output: SkimOutput  # output so far

    def move_on(self, chosen: Bool[Array, " batch"], new: Any) -> "_Reader":
        """Take the new state and move to the next token in the chosen sequences."""
        state, (h, read) = where_each(chosen, new, self.state), self.output
        rows, here = jnp.arange(chosen.shape[0]), jnp.minimum(self.position, h.shape[1] - 1)
        h = h.at[rows, here].set(where_each(chosen, state[0], h[rows, here]))
        position = self.position + chosen.astype(jnp.int32)
        return self._replace(position=position, state=state, output=SkimOutput(h, read))


def skim(
    params: LayerParams,
    carry: SkipCarry,
    x: Float[Array, "batch time in"],
    recurrence: Recurrence,
    *,
    seq_lengths: Int[Array, " batch"] | None = None,
    policy: Policy = Policy("greedy"),  # noqa: B008 (immutable)
) -> tuple[SkipCarry, SkimOutput]:
    """Compute h and the last carry of `unroll`, with steps of the cell only for the tokens that are read.

    Sequences look for the next token that they read, with the time skip's choices and the small steps of
    `Transition.unread_state`. Once each has found one, they read together, so the number of steps is the
    largest number of tokens read in one sequence. There is no reverse-mode derivative.

    The time skip leaves tokens out, there is no depth skip, and `policy` reads a token as a whole or not at
    all. Samples are those of `unroll` with the same keys in the carry.
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
    output = SkimOutput(jnp.zeros((batch, time, hidden), dtype), jnp.zeros((batch, time), bool))
    if time == 0:
        return carry, output
    start = _Reader(
        jnp.zeros(batch, jnp.int32), jnp.zeros(batch, bool), carry.state, carry.skip_state, output
    )
    step = partial(_step, params, carry, x, recurrence, policy, lengths)
    end = jax.lax.while_loop(lambda reader: jnp.any(reader.found | _looks(reader, lengths)), step, start)
    after = carry._replace(
        slots=jax.tree.map(lambda array: array[:, None], end.state),
        step=carry.step + lengths.astype(carry.step.dtype),
        skip_state=end.skip_state,
    )
    return after, end.output


def _looks(reader: _Reader, lengths: Int[Array, " batch"]) -> Bool[Array, " batch"]:
    """Return which sequences look for the next token that they read."""
    return ~reader.found & (reader.position < lengths)


def _step(
    params: LayerParams,
    carry: SkipCarry,
    x: Float[Array, "batch time in"],
    recurrence: Recurrence,
    policy: Policy,
    lengths: Int[Array, " batch"],
    reader: _Reader,
) -> _Reader:
    """Decide about one token of each sequence that looks for one; if none does, read those found."""
    skip, transition, mask = recurrence.time_skip, recurrence.transition, carry.recurrent_mask
    position, state, looks = reader.position, reader.state, _looks(reader, lengths)
    x_t = x[jnp.arange(x.shape[0]), jnp.minimum(position, x.shape[1] - 1)]
    inputs: StepInputs = in_dtype_of(carry, project_inputs(params, x_t, recurrence))
    entering = dropped(state, mask, transition)

    def decide(reader: _Reader) -> _Reader:
        given = skip_inputs(recurrence, inputs, carry.step + position, carry.key, state[0].dtype, policy)
        seen = observed(recurrence, state)
        choice, after = skip.make_choice(params.skip, given, seen, reader.skip_state, policy.mode)
        reads = looks & (choice.update > 0.5)
        unread = transition.unread_state(params.transition, inputs.transition, entering, state, dense)
        skip_state = where_each(looks, after, reader.skip_state)
        return reader.move_on(looks & ~reads, unread)._replace(
            found=reader.found | reads, skip_state=skip_state
        )

    def read(reader: _Reader) -> _Reader:
        new = cell_step(params, inputs, entering, state, None, recurrence, mask, dense)
        here = jnp.arange(x.shape[1])[None] == position[:, None]
        h, read = reader.output
        output = SkimOutput(h, read | (here & reader.found[:, None]))
        moved = reader._replace(output=output).move_on(reader.found, new)
        return moved._replace(found=jnp.zeros_like(reader.found))

    return jax.lax.cond(jnp.any(looks), decide, read, reader)
