"""Products with weights of a narrower dtype, and what stands beside a product in a recurrent layer."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.functional.sharding import explicit_spec, sharding_of_gradient, vary_along, varying_axes


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


def times_transposed(w: Float[Array, "hidden width"], rows: int) -> Callable[[Array], Array]:
    """Return d -> d wᵀ in the weights' dtype, for a d of (rows, width), to be called in a loop.

    XLA's CPU backend reads wᵀ out of w slowly. Where the product is small, a copy of wᵀ made before the loop
    pays. A little larger, it is shared so badly between threads that one product for each gate takes half the
    time. Larger products, and other platforms, read w as it is.
    """

    def plain(d, w, parts):
        return _times(d, w, axis=1)

    def in_parts(d, w, parts):
        pairs = zip(jnp.split(d, len(parts), axis=1), parts, strict=True)
        products = [_times(d_part, part, axis=0) for d_part, part in pairs]
        return sum(products[1:], products[0])

    size = rows * w.shape[0]
    gates = w.shape[1] // w.shape[0] if w.shape[1] % w.shape[0] == 0 else 1
    count = 1 if size <= 4096 else gates
    if size > 8192 or (size > 4096 and gates == 1) or explicit_spec(w) is not None:
        return lambda d: plain(d, w, ())

    def transpose(w):
        return tuple(part.T for part in jnp.split(w, count, axis=1))

    def unused(w):
        zeros = [jnp.zeros(part.shape, part.dtype) for part in jax.eval_shape(transpose, w)]
        return vary_along(tuple(zeros), varying_axes(w))

    parts = jax.lax.platform_dependent(w, cpu=transpose, default=unused)
    return lambda d: jax.lax.platform_dependent(d, w, parts, cpu=in_parts, default=plain)


def _times(d: Float[Array, "rows n"], w: Float[Array, "..."], axis: int) -> Float[Array, "rows m"]:
    """Return the product of d with an axis of w, summed in the wider dtype of both."""
    wider = jnp.promote_types(d.dtype, w.dtype)
    contracted = (((1,), (axis,)), ((), ()))
    return jax.lax.dot_general(d.astype(w.dtype), w, contracted, preferred_element_type=wider)


def outer_products(
    x: Float[Array, "*examples hidden"], d: Float[Array, "*examples width"], w: Float[Array, "hidden width"]
) -> Float[Array, "hidden width"]:
    """Return the sum of x dᵀ over examples and steps, the gradient of w, multiplied in its dtype."""
    axes, out_sharding = (0, 1), None
    if explicit_spec(x) is None:
        x, d = (array.reshape(-1, array.shape[-1]) for array in (x, d))
        axes = (0,)
    else:
        out_sharding = sharding_of_gradient(w, x)
    total = jax.lax.dot_general(
        x.astype(w.dtype),
        d.astype(w.dtype),
        ((axes, axes), ((), ())),
        preferred_element_type=jnp.promote_types(x.dtype, w.dtype),
        out_sharding=out_sharding,
    )
    return total.astype(w.dtype)


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
