"""Sequences of different lengths in one padded batch: masks, reversal, last states."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

from dynskip_jax.functional.checks import valid_lengths


def length_mask(seq_lengths: Int[Array, "*batch"], num_steps: int) -> Bool[Array, "*batch time"]:
    """Return a mask that is True at the steps before each sequence's end, (*batch, time).

    Traced lengths out of the range 0 to `num_steps` are clipped, here and below; known ones raise a
    `UserError`.
    """
    ends = valid_lengths(seq_lengths, num_steps)[..., None]
    return jnp.arange(num_steps).reshape((1,) * (ends.ndim - 1) + (-1,)) < ends


def where_each(chosen: Bool[Array, "*lead"], new: Any, old: Any) -> Any:
    """Apply `jnp.where` to trees whose leaves, (*lead, ...), have more axes than the condition.

    `old` may be one number for all leaves.
    """

    def pick(new: Array, old: Any) -> Array:
        return jnp.where(chosen.reshape(chosen.shape + (1,) * (new.ndim - chosen.ndim)), new, old)

    if isinstance(old, int | float):
        return jax.tree.map(lambda leaf: pick(leaf, old), new)
    return jax.tree.map(pick, new, old)


def segment_starts(segment_ids: Int[Array, "batch time"]) -> Bool[Array, "batch time"]:
    """Return a mask that is True where `segment_ids` changes: the next sequence begins."""
    before = jnp.concatenate([segment_ids[:, :1], segment_ids[:, :-1]], axis=1)
    return segment_ids != before


def sequence_starts(
    segment_ids: Int[Array, "batch time"] | None,
    resets: Bool[Array, "batch time"] | None,
    *,
    reverse: bool = False,
    seq_lengths: Int[Array, " batch"] | None = None,
) -> Bool[Array, "batch time"] | None:
    """Return where a sequence begins inside a row, in the order in which steps run; None if none.

    A reversed layer begins an episode at its last step, which `resets` marks in the next one.
    """
    if resets is not None:
        if not reverse:
            return resets
        segment_ids = jnp.cumsum(resets, axis=1)
    if segment_ids is None:
        return None
    if reverse:
        segment_ids = flip_sequences(segment_ids, seq_lengths)
    return segment_starts(segment_ids)


def flip_sequences(
    x: Shaped[Array, "batch time *features"], seq_lengths: Int[Array, " batch"] | None = None
) -> Shaped[Array, "batch time *features"]:
    """Reverse each sequence within its own length; padding stays at the end.

    Without lengths, whole rows are reversed. Applying it twice returns `x`.
    """
    if seq_lengths is None:
        return jnp.flip(x, axis=1)
    steps = jnp.arange(x.shape[1])[None, :]
    ends = valid_lengths(seq_lengths, x.shape[1], x.shape[:1])[:, None]
    order = jnp.where(steps < ends, ends - 1 - steps, steps)
    return jnp.take_along_axis(x, order.reshape(order.shape + (1,) * (x.ndim - 2)), axis=1)


def last_valid(
    x: Shaped[Array, "..."], seq_lengths: Int[Array, "*batch"] | None = None
) -> Shaped[Array, "..."]:
    """Return each sequence's last element, (*batch, ...); zeros for an empty sequence.

    `x` is (*batch, time, ...). Without lengths, there is one batch axis, and all sequences have
    `time` steps.
    """
    x = jnp.asarray(x)
    # With several batch axes there is an axis of features: a mask, (batch, time), is not taken for
    # lengths.
    axis = 1
    if seq_lengths is not None and x.ndim >= jnp.ndim(seq_lengths) + 2:
        axis = max(jnp.ndim(seq_lengths), 1)
    batch = x.shape[:axis]
    time = x.shape[axis]
    features = x.shape[axis + 1 :]
    if seq_lengths is None:
        seq_lengths = jnp.full(batch, time, jnp.int32)
    ends = valid_lengths(seq_lengths, time, batch)
    if time == 0:
        return jnp.zeros((*batch, *features), x.dtype)
    last = jnp.maximum(ends - 1, 0).reshape(*batch, 1, *(1,) * len(features))
    return where_each(ends > 0, jnp.take_along_axis(x, last, axis=axis).squeeze(axis), 0)
