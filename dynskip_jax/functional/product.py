"""Matrix products of recurrent layers in mixed dtypes, with biases and activations."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.sharding import (
    explicit_spec,
    sharding_of_gradient,
    vary_along,
    varying_axes,
)


def wider(*dtypes: Any) -> Any:
    """Return the dtype to which these are promoted, also where promotion is strict."""
    with jax.numpy_dtype_promotion("standard"):
        return reduce(jnp.promote_types, dtypes)


def product(x: Float[Array, "*batch in"], w: Float[Array, "in out"]) -> Float[Array, "*batch out"]:
    """Return x w, multiplied in the dtype of `w`.

    Sums and the result have the wider of both dtypes.

    With bfloat16 weights, a float32 state and its sums stay float32. A custom derivative computes
    the gradients in the same way; it supports reverse mode only.
    """
    # One axis of rows where that is allowed: a faster product than with several.
    rows = x
    if not _may_be_sharded(x):
        rows = x.reshape(-1, x.shape[-1])
    if wider(x.dtype, w.dtype) == w.dtype:
        y = jnp.matmul(rows.astype(w.dtype), w)
    else:
        y = _narrow_product(rows, w)
    return y.reshape(*x.shape[:-1], w.shape[-1])


def _may_be_sharded(x: Array) -> bool:
    """Return whether the leading axes stay apart, because one after the first may be sharded.

    On one device they become one axis: with several, XLA's CPU backend transposes, and so copies,
    an operand of each weight's gradient.
    """
    return jax.device_count() > 1 or explicit_spec(x) is not None


def affine(
    x: Float[Array, "*batch in"], w: Float[Array, "in out"], *addends: Float[Array, "..."]
) -> Float[Array, "*batch out"]:
    """Return x w plus the addends, which are arrays (*batch, out) or vectors (out,)."""
    y = product(x, w)
    check_addends(addends, y.shape[-1])
    for addend in addends:
        if addend.ndim != y.ndim:
            addend = row(addend, y)
        y = y + addend
    return y


def check_addends(addends: Sequence[Any], width: int) -> None:
    """Check that each array that is added to a product has its number of features."""
    for addend in addends:
        if jnp.shape(addend)[-1:] != (width,):
            raise UserError(f"`dense` adds arrays of {width} features, got {described(addend)}")


@jax.custom_vjp
def _narrow_product(
    x: Float[Array, "*rows in"], w: Float[Array, "in out"]
) -> Float[Array, "*rows out"]:
    """Return x w for a `w` of a narrower dtype than `x`.

    JAX's own derivative would multiply in the wide dtype of the gradient.
    """
    return jnp.matmul(x.astype(w.dtype), w, preferred_element_type=x.dtype)


def _narrow_product_forward(x, w):
    narrow = x.astype(w.dtype)
    return jnp.matmul(narrow, w, preferred_element_type=x.dtype), (narrow, w)


def _narrow_product_backward(residuals, d):
    # Both gradients are multiplied in the narrow dtype, and summed in that of d.
    x, w = residuals
    narrow = d.astype(w.dtype)
    last = narrow.ndim - 1
    leading = tuple(range(last))
    dx = jax.lax.dot_general(narrow, w, (((last,), (1,)), ((), ())), preferred_element_type=d.dtype)
    dw = jax.lax.dot_general(
        x, narrow, ((leading, leading), ((), ())), preferred_element_type=d.dtype
    )
    return dx, dw.astype(w.dtype)


_narrow_product.defvjp(_narrow_product_forward, _narrow_product_backward)


def times_transposed(w: Float[Array, "hidden width"], rows: int) -> Callable[[Array], Array]:
    """Return a function that maps d, (rows, width), to d wᵀ, for calls inside a loop.

    Products are multiplied in the dtype of `w`. XLA's CPU backend reads a transposed `w` slowly, so
    on a CPU the size of the product, `rows` * hidden, selects the method:

    * up to 4096: wᵀ is copied once, before the loop;
    * up to 8192, with several gates: the copy has one block for each gate, because XLA divides the
      whole product badly among threads. One product for each gate takes half the time;
    * otherwise: `w` is used without a copy, as on other platforms and with explicit sharding.
    """

    def plain(d, w, parts):
        return _times(d, w, axis=1)

    def in_parts(d, w, parts):
        pairs = zip(jnp.split(d, len(parts), axis=1), parts, strict=True)
        products = [_times(d_part, part, axis=0) for d_part, part in pairs]
        return sum(products[1:], products[0])

    # Which of the three methods a CPU takes.
    size = rows * w.shape[0]
    gates = 1
    if w.shape[1] % w.shape[0] == 0:
        gates = w.shape[1] // w.shape[0]
    count = gates
    if size <= 4096:
        count = 1
    if size > 8192 or (size > 4096 and gates == 1) or explicit_spec(w) is not None:
        return lambda d: plain(d, w, ())

    def transpose(w):
        return tuple(part.T for part in jnp.split(w, count, axis=1))

    def unused(w):
        zeros = [jnp.zeros(part.shape, part.dtype) for part in jax.eval_shape(transpose, w)]
        return vary_along(tuple(zeros), varying_axes(w))

    # Other platforms pass zeros of the parts' shapes into the loop, which XLA removes.
    parts = jax.lax.platform_dependent(w, cpu=transpose, default=unused)
    return lambda d: jax.lax.platform_dependent(d, w, parts, cpu=in_parts, default=plain)


def _times(d: Float[Array, "rows n"], w: Float[Array, "..."], axis: int) -> Float[Array, "rows m"]:
    """Return the product of `d` and `w` over this axis of `w`, summed in the wider dtype."""
    contracted = (((1,), (axis,)), ((), ()))
    return jax.lax.dot_general(
        d.astype(w.dtype), w, contracted, preferred_element_type=wider(d.dtype, w.dtype)
    )


def outer_products(
    x: Float[Array, "*examples hidden"],
    d: Float[Array, "*examples width"],
    w: Float[Array, "hidden width"],
) -> Float[Array, "hidden width"]:
    """Return the gradient of `w`: x dᵀ summed over examples, multiplied in the dtype of `w`."""
    if not _may_be_sharded(x):
        x, d = (array.reshape(-1, array.shape[-1]) for array in (x, d))
    # JAX adds sharded examples over devices, but does not decide where the sum is stored.
    axes = tuple(range(x.ndim - 1))
    out_sharding = None
    if explicit_spec(x) is not None:
        out_sharding = sharding_of_gradient(w, x)
    total = jax.lax.dot_general(
        x.astype(w.dtype),
        d.astype(w.dtype),
        ((axes, axes), ((), ())),
        preferred_element_type=wider(x.dtype, w.dtype),
        out_sharding=out_sharding,
    )
    return total.astype(w.dtype)


def row(
    vector: Float[Array, " features"], like: Float[Array, "*batch features"]
) -> Float[Array, "..."]:
    """Return `vector` with leading axes of size 1, so that it has as many axes as `like`."""
    return vector.reshape((1,) * (like.ndim - 1) + (-1,))


def activate(
    x: Float[Array, "*batch features"], activations: Sequence[str]
) -> Float[Array, "*batch features"] | tuple[Float[Array, "*batch block"], ...]:
    """Apply one activation to all features, or one to each of several blocks, a tuple.

    Activations are names from `tanh`, `sigmoid` and `linear` (no change).
    """
    functions = {"tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid, "linear": lambda z: z}
    if not {*activations} <= {*functions}:
        raise UserError(
            f"`dense` applies tanh, sigmoid or linear, got {activations!r}: name them in a tuple"
        )
    if len(activations) == 1:
        return functions[activations[0]](x)
    blocks = jnp.split(x, len(activations), axis=-1)
    return tuple(functions[name](block) for name, block in zip(activations, blocks, strict=True))
