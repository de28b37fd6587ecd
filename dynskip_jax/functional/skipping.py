"""Inference that skips the work: Skip RNN and LSTM-Jump compute nothing of a word that they do not read."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax.errors import UserError
from dynskip_jax.functional.checks import valid_lengths
from dynskip_jax.functional.policy import Policy
from dynskip_jax.functional.recurrence import (
    LayerParams,
    Recurrence,
    SkipCarry,
    cell_step,
    check_call,
    dropped,
    in_dtype_of,
    project_inputs,
)
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.functional.time_skips import SkipInputs
from dynskip_jax.functional.transitions import dense


class Reading(NamedTuple):
    """What was read, and what came of it.

    Attributes:
        h: h(t), (batch, time, hidden), that of the word read last where a word was not read; zeros past the
            end of a sequence.
        read: which words were read, (batch, time); their share of all is the share of the work.
    """

    h: Float[Array, "batch time hidden"]
    read: Bool[Array, "batch time"]


class _Reader(NamedTuple):
    """Where each sequence stands: its next word, if there is one, its state, and what came so far."""

    position: Int[Array, " batch"]
    found: Bool[Array, " batch"]
    state: Any
    skip_state: Any
    h: Float[Array, "batch time hidden"]
    read: Bool[Array, "batch time"]


def read_skipping(
    params: LayerParams,
    carry: SkipCarry,
    x: Float[Array, "batch time in"],
    recurrence: Recurrence,
    *,
    seq_lengths: Int[Array, " batch"] | None = None,
    policy: Policy = Policy("greedy"),  # noqa: B008 (immutable)
) -> tuple[SkipCarry, Reading]:
    """Does what `unroll` does, for a time skip that leaves words out, and takes as many steps as words are
    read.

    Each iteration brings every sequence to its next word, and reads these words together: there are as many
    iterations as words read of the sequence that reads most. Not to be differentiated in reverse mode.

    Args:
        params: the layer's weights.
        carry: the state to start from.
        x: inputs, (batch, time, in).
        recurrence: what the layer computes; its time skip is one that does not write every state.
        seq_lengths: true lengths, (batch,).
        policy: `greedy` or `sample`; with the carry's keys the same is sampled as in `unroll`.

    Returns:
        The last carry of each sequence, and what was read.

    Raises:
        UserError: the time skip reads every word, or there is a skip over depth.
    """
    skip, transition = recurrence.time_skip, recurrence.transition
    if skip.writes_all or recurrence.depth_skip is not None:
        raise UserError("only Skip RNN, LSTM-Jump and their like, without skips over depth, leave words out")
    check_call(recurrence, carry, x, policy=policy, seq_lengths=seq_lengths)
    batch, time = x.shape[:2]
    lengths = jnp.full(batch, time) if seq_lengths is None else valid_lengths(seq_lengths, time)
    observed, mask = skip.observed_array(transition), carry.recurrent_mask
    rows = jnp.arange(batch)
    dtype = carry.slots[0].dtype
    if time == 0:
        return carry, Reading(
            jnp.zeros((batch, 0, carry.slots[0].shape[-1]), dtype), jnp.zeros((batch, 0), bool)
        )

    def to_next_word(position, state, skip_state):
        """Moves on until each sequence stands before a word that it reads, or at its end."""

        def is_looking(found, position):
            return ~found & (position < lengths)

        def move(looking):
            position, skip_state, found = looking
            step = carry.step + position
            noise = skip.noise(carry.key, step, policy.mode, False, dtype)
            seen = SkipInputs(step=step, noise=noise)
            choice, skip_state_after = skip.choose(
                params.skip, seen, getattr(state, observed), skip_state, policy.mode
            )
            moving = is_looking(found, position)
            reads = moving & (choice.update > 0.5)
            return (
                position + (moving & ~reads).astype(position.dtype),
                where_each(moving, skip_state_after, skip_state),
                found | reads,
            )

        return jax.lax.while_loop(
            lambda looking: jnp.any(is_looking(looking[2], looking[0])),
            move,
            (position, skip_state, jnp.zeros(batch, bool)),
        )

    def read_one(reader: _Reader) -> _Reader:
        here = jnp.minimum(reader.position, time - 1)
        inputs = in_dtype_of(carry, project_inputs(params, x[rows, here], recurrence))
        entering = dropped(reader.state, mask, transition)
        new = cell_step(params, inputs, entering, reader.state, None, recurrence, mask, dense)
        state = where_each(reader.found, new, reader.state)
        h = reader.h.at[rows, here].set(where_each(reader.found, state[0], reader.h[rows, here]))
        read = reader.read.at[rows, here].set(reader.read[rows, here] | reader.found)
        position, skip_state, found = to_next_word(
            reader.position + reader.found.astype(reader.position.dtype), state, reader.skip_state
        )
        return _Reader(position, found, state, skip_state, h, read)

    position, skip_state, found = to_next_word(jnp.zeros(batch, lengths.dtype), carry.state, carry.skip_state)
    h = jnp.zeros((batch, time, carry.slots[0].shape[-1]), dtype)
    start = _Reader(position, found, carry.state, skip_state, h, jnp.zeros((batch, time), bool))
    end = jax.lax.while_loop(lambda reader: jnp.any(reader.found), read_one, start)

    # Where a word was not read, h is that of the last one that was, or the one there was before.
    steps = jnp.arange(time)[None, :]
    last = jax.lax.cummax(jnp.where(end.read, steps, -1), axis=1)
    h = jnp.take_along_axis(end.h, jnp.maximum(last, 0)[..., None], axis=1)
    h = jnp.where((last >= 0)[..., None], h, carry.state[0][:, None])
    h = jnp.where((steps < lengths[:, None])[..., None], h, 0)
    slots = jax.tree.map(lambda array: array[:, None], end.state)
    after = carry._replace(
        slots=slots, step=carry.step + lengths.astype(carry.step.dtype), skip_state=end.skip_state
    )
    return after, Reading(h, end.read)
