"""Parameter initializers that Flax does not provide."""

import jax
import jax.numpy as jnp

from dynskip_jax.nn.cells import Initializer


def uniform(scale: float) -> Initializer:
    """Return an initializer that draws from U(-scale, scale)."""

    def init(key, shape, dtype=jnp.float32, out_sharding=None):
        return jax.random.uniform(key, shape, dtype, -scale, scale)

    return init
