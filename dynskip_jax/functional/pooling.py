"""Pooling of the states of a sequence, or of a part of it, to one vector."""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dynskip_jax.errors import UserError
from dynskip_jax.functional.product import wider

Pooling = Literal["last", "mean", "max"]


def pool_states(
    states: Float[Array, "batch time features"],
    where: Bool[Array, "batch time"],
    pooling: Pooling,
    *,
    backward: int = 0,
) -> Float[Array, "batch features"]:
    """Return the last, the mean or the maximum of each sequence's states `where` True.

    A sequence without such a state gets zeros. The last `backward` features come from a layer run
    in reverse: `last` takes them from the first step to pool.
    """
    counts = where[..., None]
    if pooling == "mean":
        # Sums in float16 end at 65,504.
        wide = wider(states.dtype, jnp.float32)
        total = jnp.where(counts, states, 0).sum(axis=1, dtype=wide)
        return (total / jnp.maximum(counts.sum(axis=1, dtype=wide), 1)).astype(states.dtype)
    if pooling == "max":
        highest = jnp.where(counts, states, -jnp.inf).max(axis=1, initial=-jnp.inf)
        return jnp.where(counts.any(axis=1), highest, 0)
    if pooling != "last":
        raise UserError(f"unknown pooling {pooling!r}: choose last, mean or max")
    if not where.shape[1]:
        return jnp.zeros((states.shape[0], states.shape[2]), states.dtype)
    # The last and the first step to pool; 0 if there is none.
    last = jnp.where(where, jnp.arange(where.shape[1])[None, :], 0).max(axis=1, initial=0)
    first = jnp.argmax(where, axis=1)
    forward = states.shape[-1] - backward
    ends = [
        jnp.take_along_axis(part, step[:, None, None], axis=1)[:, 0]
        for step, part in ((last, states[..., :forward]), (first, states[..., forward:]))
    ]
    return jnp.where(where.any(axis=1)[:, None], jnp.concatenate(ends, axis=-1), 0)
