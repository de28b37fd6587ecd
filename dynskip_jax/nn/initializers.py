"""Parameter initializers that Flax does not provide."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Initializer = Callable[..., Any]


def uniform(scale: float) -> Initializer:
    """Return an initializer that draws from U(-scale, scale)."""

    def init(key, shape, dtype=jnp.float32, out_sharding=None):
        return jax.random.uniform(key, shape, dtype, -scale, scale)

    return init


def by_size(features: int) -> Initializer:
    """Return U(±√(3/d)), whose variance is 1/d, for embeddings of size d = `features`."""
    return uniform((3 / features) ** 0.5)
