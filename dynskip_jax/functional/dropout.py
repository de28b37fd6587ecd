"""Dropout with explicit keys."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from dynskip_jax.errors import UserError
from dynskip_jax.functional.keys import fold_in_each

_ZONEOUT = 2**31 - 1  # what zoneout of h folds into a key; of the arrays behind it, the numbers below


def dropout_mask(
    keys: Key[Array, "..."], rate: float, shape: tuple[int, ...], dtype: Any
) -> Float[Array, "..."]:
    """Returns factors 0 with probability `rate` and 1 / (1 - rate) otherwise, so that the mean is 1.

    Args:
        keys: one key, or one for each of the leading dimensions of `shape`: an example whose key is its own
            is dropped alike whatever stands beside it in the batch, and on whatever device.
        rate: in [0, 1).
        shape: of the mask.
        dtype: of the mask.
    """
    if not 0.0 <= rate < 1.0:
        raise UserError(f"a dropout rate lies in [0, 1), got {rate}")
    if shape[: keys.ndim] != keys.shape:
        raise ValueError(f"keys of shape {keys.shape} do not lead a mask of shape {shape}")

    def draw(key: Key[Array, ""]) -> Array:
        return jax.random.bernoulli(key, 1.0 - rate, shape[keys.ndim :])

    for _ in keys.shape:
        draw = jax.vmap(draw)
    return draw(keys).astype(dtype) / (1.0 - rate)


def dropout(keys: Key[Array, "..."] | None, rate: float, x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Drops elements of x independently (Srivastava et al. 2014); the identity without keys or a rate.

    Args:
        keys: one key, or one for each of the leading dimensions of x, as in `dropout_mask`.
        rate: in [0, 1).
        x: any array.
    """
    if keys is None or rate == 0.0:
        return x
    return x * dropout_mask(keys, rate, x.shape, x.dtype)


def zoneout(
    keys: Key[Array, "..."],
    step: Int[Array, "*batch"],
    rates: Sequence[float],
    hidden: int,
    dtype: Any = jnp.float32,
    *,
    deterministic: bool = False,
) -> tuple[Float[Array, "*batch hidden"], ...]:
    """Returns how much of State(t-1) stays (Krueger et al. 2017): State(t) = d ⊙ State(t-1) + (1 - d) ⊙ new.

    In training d is 1 with probability `rate`, for each unit and step anew, and 0 otherwise; in evaluation it
    is the rate. Nothing is drawn where the rate is 0.

    Args:
        keys: one key per example, of shapes that broadcast to `*batch`.
        step: number of the step; `*batch` may contain the time axis.
        rates: in [0, 1), one for each array of the state, h first.
        hidden: size of each of them.
        dtype: of the factors.
        deterministic: whether this is evaluation.
    """
    shape = (*step.shape, hidden)

    def draw(key: Key[Array, ""], rate: float) -> Array:
        return jax.random.bernoulli(key, rate, (hidden,))

    for _ in step.shape:
        draw = jax.vmap(draw, (0, None))
    keys = jnp.broadcast_to(keys, step.shape)
    kept = []
    for number, rate in enumerate(rates):
        if not 0.0 <= rate < 1.0:
            raise UserError(f"a zoneout rate lies in [0, 1), got {rate}")
        if deterministic or rate == 0.0:
            kept.append(jnp.full(shape, rate, dtype))
        else:
            # Apart from the time skip, which folds in the number of a step, and from a sequence that begins
            # at one in the same row, whose own keys are made so, too: no step has so high a number.
            own = fold_in_each(keys, jnp.full(step.shape, _ZONEOUT - number))
            kept.append(draw(fold_in_each(own, step), rate).astype(dtype))
    return tuple(kept)
