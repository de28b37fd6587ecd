"""Products of a step whose weights get their gradients after the loop, in one product each.

A step multiplies only through `dense`. The forward loop keeps the result of each product, after its
activation. The backward loop differentiates the step with the kept results in place of the products
(`replayed`), and emits the gradient d of each product. The gradient of a matrix is then one product
of all operands and all d. An array that is only added to a product has the gradient d itself.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.errors import UserError
from dynskip_jax.functional.product import activate, affine, check_addends


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Matrix:
    """Placeholder, inside a step, for the matrix with this index; only `dense` can use it."""

    index: int

    def _refuse(self, *_: Any):
        raise UserError(
            "a step multiplies by its matrices through `dense` and does nothing else with them: "
            "write dense(params.w, x) for x @ params.w"
        )

    __matmul__ = __rmatmul__ = __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = __rsub__ = (
        _refuse
    )
    __array__ = __jax_array__ = __getitem__ = __neg__ = __truediv__ = __rtruediv__ = _refuse

    def __getattr__(self, name: str):
        return self._refuse()


class OutOfReach(Exception):
    """Raised if `dense` is called inside another program, or not with (batch, features)."""


class Product(NamedTuple):
    """One call of `dense` in a step."""

    matrix: int  # index of the matrix
    input: int | None  # index of the projected input that is added; None if none is added
    vectors: tuple[int, ...]  # indices of the vectors that are added
    activations: tuple[str, ...]  # names of the activations of the result
    width: int  # number of features of the result
    of_h: bool  # whether the operand is the unchanged h that enters the step
    owns_input: bool = False  # whether the step uses the projected input nowhere else


def find_products(
    cell: Callable[..., Any],
    matrices: Sequence[Array],
    params: Any,
    inputs: Sequence[Any],
    entering: Any,
    *others: Any,
) -> tuple[Product, ...]:
    """Trace a step, and return its calls of `dense` in their order.

    `cell` is called with (dense, params, inputs, entering, *others), and returns the new state.
    States have h first. `params` have a placeholder for each of the `matrices`, and `inputs` are
    the projected inputs of one step. All but the matrices may be shapes.
    """
    products: list[Product] = []

    def record(inputs, params, entering, *others):
        results = []
        vectors = jax.tree.leaves(params)

        def dense(w, x, *addends, activations=("linear",)):
            if not isinstance(w, Matrix):
                raise UserError("`dense` multiplies by a matrix out of the params, as it is there")
            # Addends are recognised by identity, as the arrays that the step has got.
            added = _places(addends, inputs)
            if len(added) > 1:
                raise UserError("`dense` adds one projected input: add them up in `project`")
            input_index = None
            if added:
                input_index = added[0]
            width = matrices[w.index].shape[1]
            check_addends(addends, width)
            shapes = {(width,), (*x.shape[:1], width)}
            if x.ndim != 2 or not all(jnp.shape(addend) in shapes for addend in addends):
                raise OutOfReach
            products.append(
                Product(
                    matrix=w.index,
                    input=input_index,
                    vectors=tuple(_places(addends, vectors)),
                    activations=tuple(activations),
                    width=width,
                    of_h=x is entering[0],
                )
            )
            # The stand-in for the product does not read the addends, so the traced program reads an
            # addend only if the step also uses it in another way. A broadcast to the same width
            # would be no operation.
            results.append(x[..., :1] + jnp.zeros((1,) * (x.ndim - 1) + (width,), x.dtype))
            return activate(results[-1], activations)

        return *cell(dense, params, inputs, entering, *others), *results

    program = jax.make_jaxpr(record)(tuple(inputs), params, entering, *others).jaxpr
    made = set()
    read = set(map(id, program.outvars))
    for equation in program.eqns:
        made |= set(map(id, equation.outvars))
        read |= set(map(id, equation.invars))

    # A result that the program itself does not make was made inside another program.
    results = program.outvars[len(entering) :]
    if not set(map(id, results)) <= made:
        raise OutOfReach

    # A product owns an input that it alone adds, and that nothing else reads.
    added = [product.input for product in products]
    for n, product in enumerate(products):
        i = product.input
        owns = added.count(i) == 1 and i is not None and id(program.invars[i]) not in read
        products[n] = product._replace(owns_input=owns)
    return tuple(products)


def _places(some: Sequence[Any], among: Sequence[Any]) -> list[int]:
    """Return the indices in `among` of the arrays that are in `some`, too, in their order."""
    return [i for array in some for i, other in enumerate(among) if array is other]


def keep_results(matrices: Sequence[Array], kept: list[Array]) -> Callable[..., Any]:
    """Return the `dense` of the forward loop, which also appends each result to `kept`."""

    def dense(w, x, *addends, activations=("linear",)):
        y = activated(affine(x, matrices[w.index], *addends), activations)
        kept.append(y)
        return _blocks(y, activations)

    return dense


def replay_results(
    kept: Iterator[Float[Array, "batch width"]],
    probes: Iterator[Float[Array, "batch width"]],
    transposes: Sequence[Callable[[Array], Array]],
    without_gradient: Sequence[Array],
    operands: list[Array],
) -> Callable[..., Any]:
    """Return the `dense` of the backward loop, which takes each result from `kept`.

    `probes` are zeros whose gradients are those of the products, before their activations; the
    gradients of arrays `without_gradient` as addends are taken from them. `transposes` has the
    function d -> d wᵀ of each matrix. The operand of each product is appended to `operands`.
    """
    ids_without_gradient = {id(array) for array in without_gradient}

    def dense(w, x, *addends, activations=("linear",)):
        operands.append(x)
        others = [addend for addend in addends if id(addend) not in ids_without_gradient]
        y = replayed(next(kept), x, next(probes), others, tuple(activations), transposes[w.index])
        return _blocks(y, activations)

    return dense


def replayed(
    y: Float[Array, "batch width"],
    x: Float[Array, "batch in"],
    probe: Float[Array, "batch width"],
    others: Sequence[Array],
    activations: tuple[str, ...],
    transpose: Callable[[Array], Array],
) -> Float[Array, "batch width"]:
    """Return the kept result y, with the derivative of activation(x w + probe + others)."""

    # y has no derivative: it depends on x through the derivative that is given here.
    @jax.custom_vjp
    def replay(y, x, probe, others):
        return y

    kinds = [(addend.ndim, addend.dtype) for addend in others]

    def forward(y, x, probe, others):
        return y, y

    def backward(y, dy):
        d = dy * _slope(y, activations)
        # An addend that is a vector was added to each row, and may have a narrower dtype.
        d_others = []
        for ndim, dtype in kinds:
            d_addend = d
            if ndim != d.ndim:
                d_addend = jnp.sum(d, axis=0)
            d_others.append(d_addend.astype(dtype))
        return None, transpose(d), d, d_others

    replay.defvjp(forward, backward)
    return replay(y, x, probe, list(others))


@jax.custom_vjp
def with_value(value: Any, computed: Any) -> Any:
    """Return `value`, with the derivative of `computed`."""
    return value


def _with_value_forward(value, computed):
    return value, None


def _with_value_backward(_, d):
    return None, d


with_value.defvjp(_with_value_forward, _with_value_backward)


# Activations, applied to a whole result at once.


def _blocks(y: Float[Array, "batch width"], activations: Sequence[str]) -> Any:
    if len(activations) == 1:
        return y
    return tuple(jnp.split(y, len(activations), axis=-1))


def _scale(
    width: int, activations: Sequence[str], dtype: Any
) -> Float[Array, "1 width"] | float | None:
    """Return s such that the activation of z is s tanh(s z) + 1 - s: 1 for tanh, ½ for sigmoid.

    None if an activation is linear, or `dtype` narrower than float32, where the sum rounds a small
    sigmoid to 0.
    """
    if "linear" in activations or jnp.finfo(dtype).bits < 32:
        return None
    # σ(z) = ½ tanh(½ z) + ½.
    scales = [{"tanh": 1.0, "sigmoid": 0.5}[name] for name in activations]
    if len(set(scales)) == 1:
        return scales[0]
    return jnp.concatenate([jnp.full((1, width // len(scales)), s, dtype) for s in scales], axis=1)


def activated(
    y: Float[Array, "batch width"], activations: Sequence[str]
) -> Float[Array, "batch width"]:
    """Return `activate` of `y` as one array, by one tanh for all blocks."""
    scale = _scale(y.shape[-1], activations, y.dtype)
    if scale is not None:
        return jnp.tanh(y * scale) * scale + (1 - scale)
    if set(activations) == {"linear"}:
        return y
    blocks = activate(y, activations)
    if len(activations) == 1:
        return blocks
    return jnp.concatenate(blocks, axis=-1)


def _slope(
    y: Float[Array, "batch width"], activations: Sequence[str]
) -> Float[Array, "batch width"] | float:
    """Return the activation's derivative from its value: 1 - y² for tanh, y (1 - y) for sigmoid."""
    scale = _scale(y.shape[-1], activations, y.dtype)
    if scale is not None:
        return (1 - y) * (y + (2 * scale - 1))
    if set(activations) == {"linear"}:
        return 1.0
    slopes = {
        "linear": jnp.ones_like,
        "tanh": lambda y: 1 - y * y,
        "sigmoid": lambda y: y * (1 - y),
    }
    blocks = zip(activations, jnp.split(y, len(activations), axis=-1), strict=True)
    return jnp.concatenate([slopes[name](block) for name, block in blocks], axis=-1)
