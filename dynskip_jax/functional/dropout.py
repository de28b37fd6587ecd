"""Dropout with explicit keys."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from dynskip_jax.errors import UserError
from dynskip_jax.functional.keys import fold_in_each

_ZONEOUT = 2**31 - 1  # folded into the key for zoneout of h; smaller numbers for the other arrays


def dropout_mask(
    keys: Key[Array, "..."], rate: float, shape: tuple[int, ...], dtype: Any
) -> Float[Array, "..."]:
    """Return factors: 0 with probability `rate`, otherwise 1 / (1 - rate), so that the mean is 1.

    Args:
        keys: one key, or one for each element of the leading axes of `shape`. With one key per example, the
            mask of an example depends neither on the other examples nor on the device.
        rate: in [0, 1).
        shape: shape of the mask.
        dtype: dtype of the mask.

    Raises:
        UserError: `rate` is out of range.
    """
    if not 0.0 <= rate < 1.0:
        raise UserError(f"a dropout rate lies in [0, 1), got {rate}")
    if shape[: keys.ndim] != keys.shape:
        raise ValueError(f"expected keys of shape () or the first axes of {shape}, got {keys.shape}")

    def draw(key: Key[Array, ""]) -> Array:
        return jax.random.bernoulli(key, 1.0 - rate, shape[keys.ndim :])

    for _ in keys.shape:
        draw = jax.vmap(draw)
    return draw(keys).astype(dtype) / (1.0 - rate)


def dropout(keys: Key[Array, "..."] | None, rate: float, x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Drop elements of x independently (Srivastava et al. 2014).

    Args:
        keys: see `dropout_mask`; None returns x.
        rate: probability of dropping an element, in [0, 1); 0 returns x.
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
    """Return d of State(t) = d ⊙ State(t-1) + (1 - d) ⊙ new (Krueger et al. 2017), for each array.

    In training, d is 1 with probability `rate` and otherwise 0, sampled for each unit and step. In evaluation
    it is the rate.

    Args:
        keys: one key per example, of a shape that broadcasts to `*batch`.
        step: number of the step; `*batch` may contain the time axis.
        rates: one rate in [0, 1) for each array of the state, h first.
        hidden: size of each array.
        dtype: dtype of the factors.
        deterministic: whether this is evaluation.

    Raises:
        UserError: a rate is out of range.
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
            # Time skips and packed sequences fold in the number of a step. No step has so high a number.
            own = fold_in_each(keys, _ZONEOUT - number)
            kept.append(draw(fold_in_each(own, step), rate).astype(dtype))
    return tuple(kept)
