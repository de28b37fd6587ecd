"""Linear layer with the same mixed-precision product as the recurrent layers."""

from flax import nnx
from jaxtyping import Array, Float

from dynskip_jax import functional as F


class Linear(nnx.Linear):
    """`nnx.Linear` that multiplies in `dtype`, and sums and returns in the wider of `dtype` and the input's.

    `dtype` is `param_dtype` by default. With bfloat16 and float32 inputs the result is float32; Flax's own
    layer would return bfloat16.

    Example::

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> Linear(3, 4, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))(jnp.ones((2, 3))).dtype
        dtype('float32')
    """

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        """Return x W + b; x W if the layer has no bias."""
        y = F.product(x, self.kernel[...].astype(self.dtype or self.param_dtype))
        return y if self.bias is None else y + F.row(self.bias[...], y).astype(y.dtype)
