"""One step of the fused unroll: its products, and its derivative from the stored results of the products."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.errors import UserError
from dynskip_jax.functional.product import activate, affine
from dynskip_jax.functional.recurrence import LayerParams, Recurrence, StepInputs, cell_step


@dataclasses.dataclass(frozen=True)
class Call:
    """One use of `dense` in a step.

    Attributes:
        matrix: Index of the matrix.
        input: Index of the projected input that is added; None if none is added.
        vectors: Indices of the vectors that are added.
        activations: Names of the activations that are applied to the result.
        rows: Number of features of the operand.
        width: Number of features of the result.
        of_h: Whether the operand is the unchanged h that enters the step.
        in_place: Whether the result overwrites the projected input.
    """

    matrix: int
    input: int | None
    vectors: tuple[int, ...]
    activations: tuple[str, ...]
    rows: int
    width: int
    of_h: bool
    in_place: bool = False

    @property
    def time_axis(self) -> int:
        """Time axis of this call's result buffer.

        Axis 0 gives contiguous writes. Axis 1 is used if the buffer is that of a projected input, or is later
        multiplied with the h of all steps: these arrays have the batch first.
        """
        return 1 if self.in_place or self.of_h else 0


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """Static description of a step.

    Attributes:
        recurrence: Time skip, transition and depth skip of the layer.
        params: Pytree structure of the params of the transition and the depth skip.
        is_matrix: Whether each leaf of these params is a matrix.
        inputs: Pytree structure of the projected inputs of the transition and the depth skip, and of the
            zoneout mask.
        calls: Uses of `dense`, in their order.
        read_inputs: Indices of the projected inputs that a step uses other than by adding them to a product.
        read_vectors: Indices of the vectors that a step uses other than by adding them to a product.
    """

    recurrence: Recurrence
    params: Any
    is_matrix: tuple[bool, ...]
    inputs: Any
    calls: tuple[Call, ...] = ()
    read_inputs: tuple[int, ...] = ()
    read_vectors: tuple[int, ...] = ()

    @property
    def own_arrays(self) -> tuple[Call, ...]:
        """Calls whose results have a separate buffer instead of overwriting a projected input."""
        return tuple(call for call in self.calls if not call.in_place)

    def split(self, params: LayerParams) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Return the matrices and the vectors among the params of the transition and the depth skip."""
        leaves = jax.tree.leaves((params.transition, params.depth))
        pairs = list(zip(leaves, self.is_matrix, strict=True))
        return tuple(x for x, matrix in pairs if matrix), tuple(x for x, matrix in pairs if not matrix)

    def cell_step(
        self,
        vectors: Sequence[Array],
        inputs: Sequence[Array],
        entering: Any,
        previous: Any,
        update: Float[Array, " batch"] | None,
        recurrent_mask: Float[Array, "batch hidden"] | None,
        dense: Callable[..., Any],
    ) -> Any:
        """Return the result of `recurrence.cell_step`, called with a placeholder for each matrix."""
        handles, vectors = iter(range(sum(self.is_matrix))), iter(vectors)
        leaves = [_Matrix(next(handles)) if matrix else next(vectors) for matrix in self.is_matrix]
        transition, depth = jax.tree.unflatten(self.params, leaves)
        params = LayerParams(transition, depth=depth)
        transition_inputs, depth_inputs, kept = jax.tree.unflatten(self.inputs, inputs)
        return cell_step(
            params,
            StepInputs(transition_inputs, depth=depth_inputs, zoneout_mask=kept),
            entering,
            previous,
            update,
            self.recurrence,
            recurrent_mask,
            dense,
        )


class ProductsOutOfReach(Exception):
    """Raised if a step calls `dense` inside `jax.checkpoint`, `lax.scan` or `jax.jit`.

    The fused unroll cannot store the results of such calls.
    """


@jax.tree_util.register_static
class _Matrix:
    """Placeholder for a matrix inside a step; only `dense` can use it."""

    def __init__(self, index: int):
        self.index = index

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Matrix) and other.index == self.index

    def __hash__(self) -> int:
        return hash(self.index)

    def _refuse(self, *_: Any):
        raise UserError(
            "a step multiplies by its matrices through `dense` and does nothing else with them: "
            "write dense(params.w, x) for x @ params.w"
        )

    __matmul__ = __rmatmul__ = __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = __rsub__ = _refuse
    __array__ = __jax_array__ = __getitem__ = __neg__ = __truediv__ = __rtruediv__ = _refuse

    def __getattr__(self, name: str):
        return self._refuse()


def plan_step(
    recurrence: Recurrence,
    params: LayerParams,
    inputs: StepInputs,
    entering: Any,
    reads_update: bool,
    recurrent_mask: Float[Array, "batch hidden"] | None,
) -> StepPlan:
    """Trace a step, and return the plan of its products.

    Args:
        recurrence: Time skip, transition and depth skip of the layer.
        params: Weights of the layer.
        inputs: Projected inputs of all steps, (batch, time, ...).
        entering: A state of the shapes and dtypes of those that enter a step.
        reads_update: Whether the time skip may write only a fraction of the new state.
        recurrent_mask: See `SkipCarry`.

    Raises:
        ProductsOutOfReach: If the step calls `dense` inside `jax.checkpoint`, `lax.scan` or `jax.jit`.
        UserError: If the step uses a matrix other than through `dense`.
    """
    leaves, structure = jax.tree.flatten((params.transition, params.depth))
    projected, input_structure = jax.tree.flatten((inputs.transition, inputs.depth, inputs.zoneout_mask))
    plan = StepPlan(recurrence, structure, tuple(leaf.ndim > 1 for leaf in leaves), input_structure)
    (matrices, vectors), dtype = plan.split(params), entering[0].dtype
    calls: list[Call] = []

    def record(vectors, inputs, entering, update, recurrent_mask):
        results = []

        def dense(w, x, *addends, activations=("linear",)):
            calls.append(_call(w, x, addends, activations, matrices, vectors, inputs, entering[0]))
            # This stand-in for the product does not read the addends. So the traced program reads an addend
            # only if the step also uses it in another way.
            # An addition is traced for every width; a broadcast to the same width is the variable itself.
            results.append(x[..., :1] + jnp.zeros((1,) * (x.ndim - 1) + (calls[-1].width,), x.dtype))
            return activate(results[-1], activations)

        new = plan.cell_step(vectors, inputs, entering, entering, update, recurrent_mask, dense)
        return *new, *results

    at_a_step = tuple(jax.ShapeDtypeStruct((x.shape[0], x.shape[2]), dtype) for x in projected)
    update = jax.ShapeDtypeStruct(entering[0].shape[:1], dtype) if reads_update else None
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (vectors, entering, recurrent_mask)
    )
    program = jax.make_jaxpr(record)(shapes[0], at_a_step, shapes[1], update, shapes[2]).jaxpr
    own = {id(var) for equation in program.eqns for var in equation.outvars}
    if any(id(var) not in own for var in program.outvars[len(entering) :]):  # it belongs to an inner program
        raise ProductsOutOfReach
    read = {id(var) for equation in program.eqns for var in equation.invars}
    read |= {id(var) for var in program.outvars}
    read_vectors = tuple(i for i in range(len(vectors)) if id(program.invars[i]) in read)
    read_inputs = tuple(i for i in range(len(projected)) if id(program.invars[len(vectors) + i]) in read)
    added = [call.input for call in calls]
    calls = [
        dataclasses.replace(
            call, in_place=call.input not in (None, *read_inputs) and added.count(call.input) == 1
        )
        for call in calls
    ]
    return dataclasses.replace(plan, calls=tuple(calls), read_inputs=read_inputs, read_vectors=read_vectors)


def _call(
    w: Any,
    x: Array,
    addends: Sequence[Array],
    activations: Sequence[str],
    matrices: Sequence[Array],
    vectors: Sequence[Array],
    inputs: Sequence[Array],
    h: Array,
) -> Call:
    """Return the description of one call of `dense`.

    Raises:
        UserError: If `w` is not a matrix of the params, or the call adds more than one projected input.
    """
    if not isinstance(w, _Matrix):
        raise UserError("`dense` multiplies by a matrix out of the params, as it is there")
    added = [i for a in addends for i, leaf in enumerate(inputs) if a is leaf]
    if len(added) > 1:
        raise UserError("`dense` adds one projected input: add them up in `project`")
    biases = tuple(i for a in addends for i, leaf in enumerate(vectors) if a is leaf)
    rows, width = matrices[w.index].shape
    return Call(w.index, added[0] if added else None, biases, tuple(activations), rows, width, x is h)


def forward(
    plan: StepPlan,
    matrices: Sequence[Array],
    vectors: Sequence[Array],
    inputs: Sequence[Float[Array, "batch _"]],
    entering: Any,
    previous: Any,
    update: Float[Array, " batch"] | None,
    recurrent_mask: Float[Array, "batch hidden"] | None,
) -> tuple[Any, list[Float[Array, "batch _"]]]:
    """Take a step; return the new state and the results of all products, after their activations."""
    kept: list[Array] = []

    def dense(w, x, *addends, activations=("linear",)):
        y = _activated(affine(x, matrices[w.index], *addends), activations)
        kept.append(y)
        return _blocks(y, activations)

    new = plan.cell_step(vectors, inputs, entering, previous, update, recurrent_mask, dense)
    return new, kept


class Adjoints(NamedTuple):
    """Gradients that one step sends back, and the operands of its products.

    Attributes:
        results: Gradients of the products, before their activations, (batch, width) each.
        operands: Operand of each product; None where that is the unchanged h that entered.
        vectors: Gradients of the vectors in `StepPlan.read_vectors`.
        inputs: Gradients of the projected inputs in `StepPlan.read_inputs`.
        entering: Gradient of the state that entered.
        previous: Gradient of State(t-1), through zoneout or a partial update.
        update: Gradient of the fraction of the new state that was written.
        recurrent_mask: Gradient of the recurrent dropout mask, where the step's products apply it.
    """

    results: tuple[Array, ...]
    operands: tuple[Array | None, ...]
    vectors: tuple[Array, ...]
    inputs: tuple[Array, ...]
    entering: Any
    previous: Any
    update: Array | None
    recurrent_mask: Array | None


def backward(
    plan: StepPlan,
    transposes: Sequence[Callable[[Array], Array]],
    kept: Sequence[Float[Array, "batch _"]],
    vectors: Sequence[Array],
    inputs: Sequence[Float[Array, "batch _"]],
    entering: Any,
    previous: Any,
    update: Float[Array, " batch"] | None,
    recurrent_mask: Float[Array, "batch hidden"] | None,
    d_state: Any,
) -> Adjoints:
    """Return the gradients of a step, computed from the stored results of its products.

    Args:
        plan: Plan of the step's products.
        transposes: Function d -> d wᵀ of each call.
        kept: Stored result of each call.
        vectors: All vectors.
        inputs: Projected inputs of this step. Only those in `plan.read_inputs` are used; the others may
            already be overwritten.
        entering: State that entered.
        previous: State(t-1).
        update: Fraction of the new state that was written.
        recurrent_mask: See `SkipCarry`.
        d_state: Gradient of the state that was written.
    """

    def step(probes, read_vectors, read_inputs, entering, previous, update, recurrent_mask):
        remaining = iter(zip(kept, probes, transposes, plan.calls, strict=True))
        operands: list[Array | None] = []
        all_vectors, all_inputs = list(vectors), list(inputs)
        for i, value in zip(plan.read_vectors, read_vectors, strict=True):
            all_vectors[i] = value
        for i, value in zip(plan.read_inputs, read_inputs, strict=True):
            all_inputs[i] = value

        def dense(w, x, *addends, activations=("linear",)):
            y, probe, transpose, call = next(remaining)
            operands.append(None if call.of_h else x)
            known = {id(array) for array in (*all_vectors, *all_inputs)}
            others = [addend for addend in addends if id(addend) not in known]
            y = _replayed(y, x, probe, others, call.activations, transpose)
            return _blocks(y, call.activations)

        new = plan.cell_step(all_vectors, all_inputs, entering, previous, update, recurrent_mask, dense)
        return new, tuple(operands)

    probes = tuple(jnp.zeros_like(y) for y in kept)
    arguments = (
        probes,
        tuple(vectors[i] for i in plan.read_vectors),
        tuple(inputs[i] for i in plan.read_inputs),
        entering,
        previous,
        update,
        recurrent_mask,
    )
    _, undo, operands = jax.vjp(step, *arguments, has_aux=True)
    results, *others = undo(d_state)
    return Adjoints(results, operands, *others)


def _replayed(
    y: Float[Array, "batch width"],
    x: Float[Array, "batch in"],
    probe: Float[Array, "batch width"],
    others: Sequence[Array],
    activations: tuple[str, ...],
    transpose: Callable[[Array], Array],
) -> Float[Array, "batch width"]:
    """Return the stored result y, with the derivative of activation(x w + probe + others).

    Args:
        y: Stored result.
        x: Operand of the product.
        probe: Zeros that count as added before the activation, so that their gradient is that of the product.
        others: Addends that are neither projected inputs nor vectors of the params.
        activations: Names of the activations.
        transpose: Function d -> d wᵀ.
    """

    @jax.custom_vjp
    def replay(y, x, probe, others):
        return y

    def replay_forward(y, x, probe, others):
        return y, (y, tuple(addend.shape for addend in others))

    def replay_backward(residuals, dy):
        y, shapes = residuals
        d = dy * _slope(y, activations)
        d_others = [d if len(shape) == d.ndim else jnp.sum(d, axis=0) for shape in shapes]
        return jnp.zeros_like(y), transpose(d), d, d_others

    replay.defvjp(replay_forward, replay_backward)
    return replay(y, x, probe, list(others))


# Activations, applied to a whole result at once.


def _blocks(y: Float[Array, "batch width"], activations: Sequence[str]) -> Any:
    return y if len(activations) == 1 else tuple(jnp.split(y, len(activations), axis=-1))


def _scale(width: int, activations: Sequence[str], dtype: Any) -> Float[Array, "1 width"] | float | None:
    """Return s such that the activation of z is s tanh(s z) + 1 - s: 1 for tanh, ½ for sigmoid.

    The result is None if an activation is linear, or if `dtype` is narrower than float32. In narrow dtypes,
    the sum would round a small sigmoid to 0.
    """
    if "linear" in activations or jnp.finfo(dtype).bits < 32:
        return None
    scales = [1.0 if name == "tanh" else 0.5 for name in activations]
    if len(set(scales)) == 1:
        return scales[0]
    return jnp.concatenate([jnp.full((1, width // len(scales)), s, dtype) for s in scales], axis=1)


def _activated(y: Float[Array, "batch width"], activations: Sequence[str]) -> Float[Array, "batch width"]:
    scale = _scale(y.shape[-1], activations, y.dtype)
    if scale is not None:
        return jnp.tanh(y * scale) * scale + (1 - scale)
    if set(activations) == {"linear"}:
        return y
    blocks = activate(y, activations)
    return blocks if len(activations) == 1 else jnp.concatenate(blocks, axis=-1)


def _slope(y: Float[Array, "batch width"], activations: Sequence[str]) -> Float[Array, "batch width"] | float:
    """Return the derivative of the activation, from its value y: 1 - y² for tanh, y (1 - y) for sigmoid."""
    scale = _scale(y.shape[-1], activations, y.dtype)
    if scale is not None:
        return (1 - y) * (y + (2 * scale - 1))
    if set(activations) == {"linear"}:
        return 1.0
    slopes = {"linear": jnp.ones_like, "tanh": lambda y: 1 - y * y, "sigmoid": lambda y: y * (1 - y)}
    blocks = zip(activations, jnp.split(y, len(activations), axis=-1), strict=True)
    return jnp.concatenate([slopes[name](block) for name, block in blocks], axis=-1)
