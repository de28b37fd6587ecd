"""Sequences of different lengths in one padded batch: masks, reversal, last states."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped


def length_mask(seq_lengths: Int[Array, " batch"], num_steps: int) -> Bool[Array, "batch time"]:
    """Returns True at the steps before each sequence's end."""
    return jnp.arange(num_steps)[None, :] < seq_lengths[:, None]


def where_each(chosen: Bool[Array, "*lead"], new: Any, old: Any) -> Any:
    """`jnp.where` for trees whose leaves, (*lead, ...), have more axes than the condition.

    Args:
        chosen: where the new values are taken.
        new: a tree of arrays.
        old: a tree of the same structure, or one number for all leaves.
    """

    def pick(new: Array, old: Any) -> Array:
        return jnp.where(chosen.reshape(chosen.shape + (1,) * (new.ndim - chosen.ndim)), new, old)

    if isinstance(old, int | float):
        return jax.tree.map(lambda leaf: pick(leaf, old), new)
    return jax.tree.map(pick, new, old)


def segment_starts(segment_ids: Int[Array, "batch time"]) -> Bool[Array, "batch time"]:
    """Returns True where another sequence of a row begins; the first one has begun before."""
    before = jnp.concatenate([segment_ids[:, :1], segment_ids[:, :-1]], axis=1)
    return segment_ids != before


def valid_lengths(seq_lengths: Int[Array, " batch"], num_steps: int) -> Int[Array, " batch"]:
    """Returns lengths as int32, in which any number of steps fits; those out of range count as its ends."""
    return jnp.clip(jnp.asarray(seq_lengths).astype(jnp.int32), 0, num_steps)


def flip_sequences(
    x: Shaped[Array, "batch time *features"], seq_lengths: Int[Array, " batch"] | None = None
) -> Shaped[Array, "batch time *features"]:
    """Reverses each sequence within its own length; padding stays at the end.

    Applied twice it gives the argument back.
    """
    if seq_lengths is None:
        return jnp.flip(x, axis=1)
    steps = jnp.arange(x.shape[1])[None, :]
    ends = valid_lengths(seq_lengths, x.shape[1])[:, None]
    order = jnp.where(steps < ends, ends - 1 - steps, steps)
    return jnp.take_along_axis(x, order.reshape(order.shape + (1,) * (x.ndim - 2)), axis=1)


def last_valid(
    x: Shaped[Array, "batch time *features"], seq_lengths: Int[Array, " batch"] | None = None
) -> Shaped[Array, "batch *features"]:
    """Returns each sequence's last element."""
    x = jnp.asarray(x)
    if seq_lengths is None:
        return x[:, -1]
    last = (seq_lengths - 1).reshape((-1, 1) + (1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, last, axis=1)[:, 0]
