"""Dropout with an explicit key."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from dynskip_jax.errors import UserError


def dropout_mask(key: Key[Array, ""], rate: float, shape: tuple[int, ...], dtype) -> Float[Array, "..."]:
    """Returns factors 0 with probability `rate` and 1 / (1 - rate) otherwise, so that the mean is 1."""
    if not 0.0 <= rate < 1.0:
        raise UserError(f"a dropout rate lies in [0, 1), got {rate}")
    keep = jax.random.bernoulli(key, 1.0 - rate, shape)
    return keep.astype(dtype) / (1.0 - rate)


def dropout(key: Key[Array, ""] | None, rate: float, x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Drops elements of x independently (Srivastava et al. 2014); the identity without a key or a rate."""
    if key is None or rate == 0.0:
        return x
    return x * dropout_mask(key, rate, x.shape, x.dtype)


def recurrent_dropout_mask(
    keys: Key[Array, " batch"], rate: float, hidden: int, dtype=jnp.float32
) -> Float[Array, "batch hidden"]:
    """One mask per example for all its steps (Gal & Ghahramani 2016), each drawn with its own key."""
    return jax.vmap(lambda key: dropout_mask(key, rate, (hidden,), dtype))(keys)
