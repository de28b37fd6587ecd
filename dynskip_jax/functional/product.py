"""Products with weights of a narrower dtype, and what stands beside a product in a recurrent layer."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def product(x: Float[Array, "*batch in"], w: Float[Array, "in out"]) -> Float[Array, "*batch out"]:
    """Returns x w, multiplied in the weights' dtype, and summed and returned in the wider one of both.

    With bfloat16 weights a float32 state stays float32, and so do the sums. The same holds of the gradients'
    products, for which such a mixed product has a derivative of its own (reverse mode only).
    """
    # As one matrix: of a product over several axes XLA would turn the gradient round, a copy of it all.
    rows = x.reshape(-1, x.shape[-1])
    if jnp.promote_types(x.dtype, w.dtype) == w.dtype:
        y = jnp.matmul(rows.astype(w.dtype), w)
    else:
        y = _narrow_product(rows, w)
    return y.reshape(*x.shape[:-1], w.shape[-1])


def affine(
    x: Float[Array, "*batch in"], w: Float[Array, "in out"], *addends: Float[Array, "..."]
) -> Float[Array, "*batch out"]:
    """Returns x w plus the addends, arrays (*batch, out) or vectors (out,)."""
    y = product(x, w)
    for addend in addends:
        y = y + (addend if addend.ndim == y.ndim else row(addend, y))
    return y


@jax.custom_vjp
def _narrow_product(x: Float[Array, "rows in"], w: Float[Array, "in out"]) -> Float[Array, "rows out"]:
    """x w for w of a narrower dtype. JAX's derivative would multiply by the wide gradient, in its dtype."""
    return jnp.matmul(x.astype(w.dtype), w, preferred_element_type=x.dtype)


def _narrow_product_forward(x, w):
    narrow = x.astype(w.dtype)
    return jnp.matmul(narrow, w, preferred_element_type=x.dtype), (narrow, w)


def _narrow_product_backward(residuals, d):
    x, w = residuals
    narrow = d.astype(w.dtype)
    dx = jax.lax.dot_general(narrow, w, (((1,), (1,)), ((), ())), preferred_element_type=d.dtype)
    dw = jax.lax.dot_general(x, narrow, (((0,), (0,)), ((), ())), preferred_element_type=d.dtype)
    return dx, dw.astype(w.dtype)


_narrow_product.defvjp(_narrow_product_forward, _narrow_product_backward)


def row(vector: Float[Array, " features"], like: Float[Array, "*batch features"]) -> Float[Array, "..."]:
    """Returns a vector with as many axes as `like`, ones in place of its batch."""
    return vector.reshape((1,) * (like.ndim - 1) + (-1,))


def activate(
    x: Float[Array, "*batch features"], activations: Sequence[str]
) -> Float[Array, "*batch features"] | tuple[Float[Array, "*batch block"], ...]:
    """Applies `tanh` or `sigmoid`, or one of them to each of as many blocks of equal width.

    Args:
        x: the features.
        activations: one name, for all features; or several, one for each block. `linear` leaves a block as it
            is.

    Returns:
        The features; with several names a tuple of the blocks.
    """
    functions = {"tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid, "linear": lambda z: z}
    if len(activations) == 1:
        return functions[activations[0]](x)
    blocks = jnp.split(x, len(activations), axis=-1)
    return tuple(functions[name](block) for name, block in zip(activations, blocks, strict=True))
