"""Dropout and zoneout with explicit PRNG keys."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from dynskip_jax.functional.checks import check_rates
from dynskip_jax.functional.keys import fold_in_each

# Folded into the key for zoneout of h. The other arrays use the next smaller numbers.
_ZONEOUT = 2**31 - 1


def dropout_mask(
    keys: Key[Array, "..."], rate: float, shape: tuple[int, ...], dtype: Any
) -> Float[Array, "..."]:
    """Return random factors of mean 1: 0 with probability `rate`, otherwise 1 / (1 - rate).

    `keys` is one key, or one for each element of the leading axes of `shape`. With one key per
    example, the mask of an example depends neither on the other examples nor on the device.
    """
    check_rates("a dropout rate", rate)

    def draw(key: Key[Array, ""]) -> Array:
        return jax.random.bernoulli(key, 1.0 - rate, shape[keys.ndim :])

    for _ in keys.shape:
        draw = jax.vmap(draw)
    return draw(keys).astype(dtype) / (1.0 - rate)


def dropout(
    keys: Key[Array, "..."] | None,
    rate: float,
    x: Float[Array, "..."],
    broadcast_dims: Sequence[int] = (),
) -> Float[Array, "..."]:
    """Drop elements of x (Srivastava et al. 2014), and divide the others by 1 - rate.

    They are dropped alike along `broadcast_dims`. The AWD-LSTM (Merity et al. 2018) drops features
    alike at all steps (variational dropout, Gal & Ghahramani 2016; locked dropout in their code),
    words alike in all features of an embedding table, and the hidden-to-hidden weights of all gates
    (DropConnect, Wan et al. 2013). With tied weights, pass the dropped table only to the lookup,
    not to the softmax. See `dropout_mask` for `keys`; None returns `x` unchanged.
    """
    if keys is None or rate == 0.0:
        return x
    shape = list(x.shape)
    for axis in broadcast_dims:
        shape[axis] = 1
    shape = tuple(shape)
    return x * dropout_mask(keys, rate, shape, x.dtype)


def zoneout(
    keys: Key[Array, "..."],
    step: Int[Array, "*batch"],
    rates: Sequence[float],
    hidden: int,
    dtype: Any = jnp.float32,
    *,
    deterministic: bool = False,
) -> tuple[Float[Array, "*batch hidden"], ...]:
    """Return the zoneout mask d of State(t) = d ⊙ State(t-1) + (1 - d) ⊙ new (Krueger et al. 2017).

    In training, d is 1 with the probability given by the array's rate and otherwise 0, sampled for
    each unit and step. In evaluation, d equals the rate.

    `keys` has one key per example, in a shape that broadcasts to `*batch`, which may contain the
    time axis. There is one rate for each array of the state, h first. `deterministic` selects the
    values of evaluation.
    """
    shape = (*step.shape, hidden)

    def draw(key: Key[Array, ""], rate: float) -> Array:
        return jax.random.bernoulli(key, rate, (hidden,))

    for _ in step.shape:
        draw = jax.vmap(draw, (0, None))
    keys = jnp.broadcast_to(keys, step.shape)
    kept = []
    for number, rate in enumerate(rates):
        check_rates("a zoneout rate", rate)
        if deterministic or rate == 0.0:
            kept.append(jnp.full(shape, rate, dtype))
        else:
            # Time skips and packed sequences fold in step numbers, which never get this high.
            own = fold_in_each(keys, _ZONEOUT - number)
            kept.append(draw(fold_in_each(own, step), rate).astype(dtype))
    return tuple(kept)
