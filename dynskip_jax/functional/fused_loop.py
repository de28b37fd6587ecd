"""The fused unroll's loop over time, in the forward and the backward pass."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax.functional.fused_states import (
    Histories,
    StateReader,
    Step,
    add,
    at,
    last_rows,
    last_rows_adjoint,
    put,
)
from dynskip_jax.functional.fused_step import Adjoints, Call, StepPlan, backward, forward
from dynskip_jax.functional.product import outer_products, times_transposed
from dynskip_jax.functional.recurrence import dropped, mixed
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.functional.sharding import zeros_like_batch
from dynskip_jax.functional.stored import Window, observed_in
from dynskip_jax.functional.time_skips import Choice, SkipInputs, TimeSkip


@dataclasses.dataclass(frozen=True)
class Plan:
    """Static description of an unroll.

    Attributes:
        step: Plan of a step, with the layer's time skip, transition and depth skip.
        mode: Mode of the policy.
        mix: Skip weight λ; None if it is an array.
        differentiable: Whether gradients flow through choices.
        reads_previous: Whether State(t-1) is mixed into the new state, by zoneout or by a partial update.
        observed: Index of the state's array that choices observe.
        full_histories: Indices of the state's arrays that are returned for all steps; 0 is h.
        scan_unroll: Steps per iteration of the compiled loops.
    """

    step: StepPlan
    mode: str
    mix: float | None
    differentiable: bool
    reads_previous: bool
    observed: int
    full_histories: tuple[int, ...]
    scan_unroll: int

    @property
    def skip(self) -> TimeSkip:
        """Time skip of the layer."""
        return self.step.recurrence.time_skip

    @property
    def transition(self) -> Any:
        """Transition of the layer."""
        return self.step.recurrence.transition

    @property
    def K(self) -> int:
        """Number of slots of the buffer."""
        return self.skip.max_skip

    @property
    def reader(self) -> StateReader:
        """Reader of states from histories."""
        return StateReader(self.transition, self.K, self.skip.fixed_slot)

    @property
    def reaches_back(self) -> bool:
        """Whether any state other than the previous one can enter a step."""
        return self.skip.fixed_slot != 0

    @property
    def tails(self) -> tuple[int, ...]:
        """Indices of the state's arrays that are returned only for the last K steps."""
        return tuple(i for i in range(len(self.transition.state._fields)) if i not in self.full_histories)


class Loop(NamedTuple):
    """Arguments of the loop; None for what a layer does not have.

    Attributes:
        inputs: Projected inputs, (batch, time, ...) each.
        matrices: Matrices that `dense` multiplies by.
        vectors: Other parameters of the transition and the depth skip.
        newest: State(-1), each array (batch, hidden).
        slots: The last K states, oldest first, each array (batch, K, hidden).
        skip_state: State of the time skip.
        skip: Params of the time skip.
        skip_inputs: Inputs of choices that need no state, (batch_or_1, time_or_1, ...).
        mix: λ as an array; None if it is a number, which is static.
        recurrent_mask: Recurrent dropout mask of the h that enters a step, (batch, hidden).
        seq_lengths: True lengths, (batch,).
        first: True for rows where State(-1) enters the first step and is then forgotten, (batch,). If K > 1,
            `slots` contains the oldest state in place of State(-1) in these rows, except in empty sequences.
    """

    inputs: tuple[Array, ...]
    matrices: tuple[Array, ...]
    vectors: tuple[Array, ...]
    newest: Any
    slots: Any
    skip_state: Any
    skip: Any
    skip_inputs: SkipInputs
    mix: Float[Array, ""] | None = None
    recurrent_mask: Float[Array, "batch hidden"] | None = None
    seq_lengths: Int[Array, " batch"] | None = None
    first: Bool[Array, " batch"] | None = None


class Result(NamedTuple):
    """Result of the loop.

    Attributes:
        full_histories: Histories of the arrays in `Plan.full_histories`, (batch, K + time, hidden) each.
        tails: Last K states of each sequence, of the arrays in `Plan.tails`, (batch, K, hidden) each.
        choices: Choices at all steps, (batch, time, ...).
        skip_states: State of the time skip before each step and after the last one, (batch, time + 1, ...).
    """

    full_histories: tuple[Array, ...]
    tails: tuple[Array, ...]
    choices: Choice
    skip_states: Any


class _Residuals(NamedTuple):
    """Values that the forward pass stores for the backward pass.

    Attributes:
        loop: Arguments of the loop; in `inputs`, results have overwritten projected inputs. `slots` is None.
        results: Results of the products that do not overwrite a projected input.
        histories: Histories of all of the state's arrays.
        choices: Choices at all steps.
        skip_states: See `Result`.
        input_states: State that entered each step, (batch, time, hidden) each, if it is an average; otherwise
            None.
    """

    loop: Loop
    results: tuple[Array, ...]
    histories: Histories
    choices: Choice
    skip_states: Any
    input_states: Any


class _Forward(NamedTuple):
    """Carry of the forward loop before step t.

    XLA copies a whole array if a loop writes to it and still reads the old version. So a step writes to an
    array first, and then reads the rows that the next step needs, if their position is already known.

    Attributes:
        inputs: Projected inputs; at earlier steps, results have overwritten some of them.
        rows: Row t of each of `inputs`.
        results: Results of the products that do not overwrite a projected input; empty if no backward pass
            follows.
        histories: Histories of the state's arrays, with zeros for step t and later ones.
        newest: State(t-1).
        read_ahead: See `_read_ahead`.
        skip_state: State of the time skip.
    """

    inputs: tuple[Array, ...]
    rows: tuple[Array, ...]
    results: tuple[Array, ...]
    histories: Histories
    newest: Any
    read_ahead: Any
    skip_state: Any


class _Sums(NamedTuple):
    """Gradients that the backward loop sums over steps; None where there is nothing to sum.

    Attributes:
        vectors: Gradients of the vectors in `StepPlan.read_vectors`.
        recurrent_mask: Gradient of the recurrent dropout mask.
        mix: Gradient of λ.
    """

    vectors: tuple[Array, ...]
    recurrent_mask: Array | None
    mix: Array | None


class _Backward(NamedTuple):
    """Carry of the backward loop, from step t + 1 to step t.

    Like `_Forward`, it contains the rows that step t needs.

    Attributes:
        inputs: Results and projected inputs; at later steps, gradients have overwritten them.
        rows: Row t of each of `inputs`.
        results: Results of the products that do not overwrite a projected input; at later steps, gradients
            have overwritten them.
        result_rows: Row t of each of `results`.
        operands: Operands of the products at later steps, where these are not the h that enters.
        adjoints: Gradients with respect to the histories. They come from the result of the loop, from reads
            of earlier states and from choices. None for an array without such gradients.
        adjoint_rows: Row K + t of each of `adjoints`, the gradients of State(t).
        newest: The part of the gradient of State(t) that `adjoints` does not contain: through step t + 1,
            where it is the previous state.
        skip_state: Gradient of the time skip's state after step t.
        sums: Gradients that are summed over steps.
    """

    inputs: tuple[Array, ...]
    rows: tuple[Array, ...]
    results: tuple[Array, ...]
    result_rows: tuple[Array, ...]
    operands: tuple[Array, ...]
    adjoints: tuple[Array | None, ...]
    adjoint_rows: tuple[Array | None, ...]
    newest: tuple[Array, ...]
    skip_state: Any
    sums: _Sums


class _Constants(NamedTuple):
    """Values that all steps of the backward loop read.

    Attributes:
        residuals: Residuals of the forward loop.
        cotangents: Gradients of the result of the loop.
        input_states: State that entered each step, before recurrent dropout, (batch, time, hidden) each.
        transposes: Function d -> d wᵀ of each product.
    """

    residuals: _Residuals
    cotangents: Result
    input_states: Any
    transposes: tuple[Callable[[Array], Array], ...]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def run(plan: Plan, loop: Loop) -> Result:
    """Run all steps of the loop."""
    return _run(plan, loop, keep=False)[0]


def _run_forward(plan: Plan, loop: Loop) -> tuple[Result, _Residuals]:
    """Run all steps and store what the backward pass needs."""
    return _run(plan, loop, keep=True)


def _run(plan: Plan, loop: Loop, keep: bool) -> tuple[Result, _Residuals]:
    time = loop.inputs[0].shape[1]
    keeps_input_states = keep and plan.skip.fixed_slot is None

    def step(state: _Forward, t: Step):
        choice, skip_state = _choose(plan, loop, state.histories, t, state.newest, state.skip_state)
        entering = _enter(plan, loop, state.histories, t, choice, state.newest, state.read_ahead)
        new, kept = forward(
            plan.step,
            loop.matrices,
            loop.vectors,
            state.rows,
            dropped(entering, loop.recurrent_mask, plan.transition),
            state.newest,
            choice.update,
            loop.recurrent_mask,
        )
        inputs, results = state.inputs, state.results
        if keep:
            inputs, results = _put_results(plan.step, inputs, results, t, kept)
        rows = tuple(at(array, t + 1) for array in inputs)
        histories = tuple(
            put(history, plan.K + t, row) for history, row in zip(state.histories, new, strict=True)
        )
        kept_state = entering if keeps_input_states and choice.weights is not None else None
        ahead = _read_ahead(plan, histories, t + 1)
        after = _Forward(inputs, rows, results, histories, new, ahead, skip_state)
        return after, (choice, state.skip_state, kept_state)

    def zeros(call: Call) -> Array:
        return _zeros(call, loop.inputs[0], call.width, loop.newest[0].dtype)

    histories = tuple(jnp.pad(slots, ((0, 0), (0, time), (0, 0))) for slots in loop.slots)
    start = _Forward(
        loop.inputs,
        rows=tuple(at(array, 0) for array in loop.inputs),
        results=tuple(zeros(call) for call in plan.step.own_arrays if keep),
        histories=histories,
        newest=loop.newest,
        read_ahead=_read_ahead(plan, histories, 0),
        skip_state=loop.skip_state,
    )
    end, collected = lax.scan(step, start, jnp.arange(time), unroll=plan.scan_unroll)
    choices, skip_states, input_states = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), collected)
    skip_states = jax.tree.map(
        lambda before, last: jnp.concatenate([before, last[:, None]], axis=1), skip_states, end.skip_state
    )
    tails = tuple(last_rows(end.histories[i], loop.seq_lengths, plan.K) for i in plan.tails)
    result = Result(tuple(end.histories[i] for i in plan.full_histories), tails, choices, skip_states)
    kept_loop = loop._replace(inputs=end.inputs, slots=None)
    return result, _Residuals(kept_loop, end.results, end.histories, choices, skip_states, input_states)


def _run_backward(plan: Plan, residuals: _Residuals, cotangents: Result) -> tuple[Loop]:
    """Return the gradients of the arguments of `run`; the loop goes from the last step to the first."""
    loop, (batch, time) = residuals.loop, residuals.loop.inputs[0].shape[:2]
    input_states = _input_states(plan, residuals)
    transposes = tuple(times_transposed(loop.matrices[call.matrix], batch) for call in plan.step.calls)
    constants = _Constants(residuals, cotangents, input_states, transposes)
    start = _start_backward(plan, residuals, cotangents)
    undo_step = partial(_undo_step, plan, constants)
    end, emitted = lax.scan(undo_step, start, jnp.arange(time), reverse=True, unroll=plan.scan_unroll)

    if loop.recurrent_mask is not None:
        input_states = dropped(input_states, loop.recurrent_mask[:, None], plan.transition)
    inputs, matrices, vectors = _gradients_of_params(plan.step, loop, end, input_states[0])
    d_skip = d_skip_inputs = None
    if plan.differentiable:
        emitted = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), emitted)
        d_skip, d_skip_inputs = _undo_all_choices(plan, residuals, *emitted)
    slots = (
        jnp.zeros_like(history[:, : plan.K]) if adjoint is None else adjoint[:, : plan.K]
        for adjoint, history in zip(end.adjoints, residuals.histories, strict=True)
    )
    return (
        Loop(
            inputs,
            matrices,
            vectors,
            newest=plan.transition.state(*end.newest),
            slots=plan.transition.state(*slots),
            skip_state=end.skip_state,
            skip=d_skip,
            skip_inputs=d_skip_inputs,
            mix=end.sums.mix,
            recurrent_mask=end.sums.recurrent_mask,
        ),
    )


run.defvjp(_run_forward, _run_backward)


def _start_backward(plan: Plan, residuals: _Residuals, cotangents: Result) -> _Backward:
    """Return the initial carry of the backward loop, whose first iteration is the last step."""
    loop, histories = residuals.loop, residuals.histories
    time, dtype = loop.inputs[0].shape[1], loop.newest[0].dtype
    adjoints: list[Array | None] = [None] * len(histories)
    newest = [jnp.zeros_like(array) for array in loop.newest]
    for i, d_history in zip(plan.full_histories, cotangents.full_histories, strict=True):
        adjoints[i] = d_history
    for i, d_last in zip(plan.tails, cotangents.tails, strict=True):
        if loop.seq_lengths is None and plan.K == 1 and not plan.reaches_back:
            newest[i] = d_last[:, 0]  # only the next step and the caller use State(t)
        else:
            adjoints[i] = last_rows_adjoint(histories[i], loop.seq_lengths, d_last)
    rows, result_rows = _rows_of(plan.step, loop.inputs, residuals.results, time - 1)
    sums = _Sums(
        tuple(jnp.zeros_like(loop.vectors[i]) for i in plan.step.read_vectors),
        None if loop.recurrent_mask is None else jnp.zeros_like(loop.recurrent_mask),
        None if loop.mix is None or not plan.reaches_back else jnp.zeros_like(loop.mix),
    )
    return _Backward(
        loop.inputs,
        rows,
        residuals.results,
        result_rows,
        tuple(_zeros(call, loop.inputs[0], call.rows, dtype) for call in plan.step.calls if not call.of_h),
        tuple(adjoints),
        _adjoint_rows(adjoints, plan.K + time - 1),
        tuple(newest),
        _float_rows(cotangents.skip_states, time) if plan.differentiable else None,
        sums,
    )


def _undo_step(plan: Plan, constants: _Constants, state: _Backward, t: Step) -> tuple[_Backward, Any]:
    """Apply the transpose of step t of the forward loop.

    Returns:
        The carry for step t - 1; and the gradients of the choice at step t and of the time skip's state after
        it, or None if choices are not differentiable.
    """
    residuals, cotangents = constants.residuals, constants.cotangents
    loop, histories = residuals.loop, residuals.histories
    choice = jax.tree.map(lambda leaf: at(leaf, t), residuals.choices)
    previous = plan.transition.state(*(at(history, plan.K + t - 1) for history in histories))
    if loop.first is not None:
        previous = where_each(loop.first & (t == 0), loop.newest, previous)
    d, d_entering, d_mask = _undo_cell(plan, constants, state, choice, previous, t)
    inputs, results = _put_gradients(plan.step, state.inputs, state.results, t, d)
    operands = _put_operands(plan.step, state.operands, t, d)

    d_newest, d_mix, d_weights, adjoints = d_entering, None, None, state.adjoints
    if plan.reaches_back:
        entered = _undo_enter(plan, residuals, adjoints, t, choice, previous, d_entering)
        d_newest, d_mix, d_weights, adjoints = entered.newest, entered.mix, entered.weights, entered.adjoints
    if plan.reads_previous:
        d_newest = jax.tree.map(jnp.add, d_newest, d.previous)
    emitted, d_skip_state = None, state.skip_state
    if plan.differentiable:
        d_choice = _added(Choice(weights=d_weights, update=d.update), _float_rows(cotangents.choices, t))
        emitted = (d_choice, d_skip_state)
        d_observed, d_skip_state = _undo_choice(plan, residuals, t, previous, d_choice, d_skip_state)
        d_skip_state = _added(d_skip_state, _float_rows(cotangents.skip_states, t))
        if plan.skip.observed == "previous":
            d_newest = _replaced(d_newest, plan.observed, d_newest[plan.observed] + d_observed)
        else:
            adjoints = _replaced(adjoints, plan.observed, add(adjoints[plan.observed], t, d_observed))
    rows, result_rows = _rows_of(plan.step, inputs, results, t - 1)
    sums = _added(state.sums, _Sums(d.vectors, d_mask, d_mix))
    after = _Backward(
        inputs,
        rows,
        results,
        result_rows,
        operands,
        tuple(adjoints),
        _adjoint_rows(adjoints, plan.K + t - 1),
        tuple(d_newest),
        d_skip_state,
        sums,
    )
    return after, emitted


def _adjoint_rows(adjoints: Sequence[Array | None], row: Step | int) -> tuple[Array | None, ...]:
    """Return one row of each of `adjoints`."""
    return tuple(None if adjoint is None else at(adjoint, row) for adjoint in adjoints)


def _undo_cell(
    plan: Plan, constants: _Constants, state: _Backward, choice: Choice, previous: Any, t: Step
) -> tuple[Adjoints, Any, Array | None]:
    """Return the gradients of step t.

    Returns:
        The gradients from `backward`; the gradient of the state that entered, before recurrent dropout; and
        the gradient of the recurrent dropout mask.
    """
    mask = constants.residuals.loop.recurrent_mask
    d_state = _added(state.newest, state.adjoint_rows)
    own_rows = iter(state.result_rows)
    kept = [state.rows[call.input] if call.in_place else next(own_rows) for call in plan.step.calls]
    undropped = plan.transition.state(*(at(array, t) for array in constants.input_states))
    d = backward(
        plan.step,
        constants.transposes,
        kept,
        constants.residuals.loop.vectors,
        state.rows,
        dropped(undropped, mask, plan.transition),
        previous if plan.reads_previous else None,
        choice.update,
        mask,
        plan.transition.state(*d_state),
    )
    if mask is None or not plan.transition.carries_cell:
        return d, d.entering, d.recurrent_mask
    d_entering = d.entering._replace(h=d.entering.h * mask)
    return d, d_entering, d.recurrent_mask + d.entering.h * undropped.h


# Buffers of results and gradients.


def _rows_of(plan: StepPlan, inputs, results, t: Step | int) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Return row t of each of `inputs`, and of each of `results`."""
    pairs = zip(results, plan.own_arrays, strict=True)
    return tuple(at(array, t) for array in inputs), tuple(
        at(array, t, call.time_axis) for array, call in pairs
    )


def _put_results(plan: StepPlan, inputs, results, t: Step, kept):
    """Write the results of step t over projected inputs or to separate buffers; return the updated arrays."""
    inputs, own_arrays = list(inputs), []
    arrays = iter(results)
    for call, row in zip(plan.calls, kept, strict=True):
        if call.in_place:
            inputs[call.input] = put(inputs[call.input], t, row)
        else:
            own_arrays.append(put(next(arrays), t, row, call.time_axis))
    return tuple(inputs), tuple(own_arrays)


def _put_gradients(plan: StepPlan, inputs, results, t: Step, d: Adjoints):
    """Write the gradients of the products of step t over their results, and those of projected inputs.

    A projected input that no result overwrites gets the sum of the gradients from all of its uses.
    """
    inputs, results = _put_results(plan, inputs, results, t, d.results)
    inputs = list(inputs)
    read = dict(zip(plan.read_inputs, d.inputs, strict=True))
    for i in range(len(inputs)):
        shared = [d.results[n] for n, call in enumerate(plan.calls) if call.input == i and not call.in_place]
        parts = [*shared, *([read[i]] if i in read else [])]
        if parts:
            inputs[i] = put(inputs[i], t, sum(parts[1:], parts[0]))
    return tuple(inputs), results


def _put_operands(plan: StepPlan, operands, t: Step, d: Adjoints) -> tuple[Array, ...]:
    """Write the operands of the products of step t, except the h that entered; return the buffers."""
    multiplied = [(call, x) for call, x in zip(plan.calls, d.operands, strict=True) if x is not None]
    pairs = zip(operands, multiplied, strict=True)
    return tuple(put(array, t, x, call.time_axis) for array, (call, x) in pairs)


def _gradients_of_params(plan: StepPlan, loop: Loop, end: _Backward, h: Float[Array, "batch time hidden"]):
    """Return the gradients of the projected inputs, the matrices and the vectors.

    Args:
        plan: Plan of a step.
        loop: Arguments of the loop.
        end: Carry after the backward loop.
        h: h that entered each step, after recurrent dropout.
    """
    matrices: list[Array | None] = [None] * len(loop.matrices)
    vectors = [jnp.zeros_like(vector) for vector in loop.vectors]
    for i, d in zip(plan.read_vectors, end.sums.vectors, strict=True):
        vectors[i] = d
    own_arrays, own_operands = iter(end.results), iter(end.operands)
    for call in plan.calls:
        d = end.inputs[call.input] if call.in_place else next(own_arrays)
        x = h if call.of_h else next(own_operands)
        gradient = outer_products(x, d, loop.matrices[call.matrix])
        matrices[call.matrix] = _added(matrices[call.matrix], gradient)
        for i in call.vectors:
            vectors[i] = vectors[i] + jnp.sum(d, axis=(0, 1)).astype(vectors[i].dtype)
    used = {call.input for call in plan.calls} | set(plan.read_inputs)
    inputs = tuple(array if i in used else jnp.zeros_like(array) for i, array in enumerate(end.inputs))
    return inputs, tuple(matrices), tuple(vectors)


def _zeros(call: Call, like: Float[Array, "batch time _"], width: int, dtype: Any) -> Array:
    """Return a buffer of zeros for rows of `width` features at all steps, with the call's time axis."""
    zeros = zeros_like_batch(like, (*like.shape[:2], width), dtype)
    return zeros if call.time_axis == 1 else jnp.moveaxis(zeros, 1, 0)


def _replaced(items: tuple, i: int, item: Any) -> tuple:
    """Return the tuple with item i replaced by `item`."""
    return (*items[:i], item, *items[i + 1 :])


# Cotangents.


def _added(tree: Any, more: Any) -> Any:
    """Add two trees, where None stands for zeros."""

    def add_leaves(a, b):
        return b if a is None else a if b is None else a + b

    return jax.tree.map(add_leaves, tree, more, is_leaf=lambda leaf: leaf is None)


def _cotangent(primal: Any, d: Any) -> Any:
    """Return the cotangent of `primal`: `d` with zeros in place of None, and `float0` zeros for integers."""

    def fill(leaf, d_leaf):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            return jnp.zeros_like(leaf) if d_leaf is None else d_leaf
        return np.zeros(leaf.shape, jax.dtypes.float0)

    leaves, structure = jax.tree.flatten(primal)
    d_leaves = structure.flatten_up_to(d)
    return jax.tree.unflatten(structure, [fill(a, b) for a, b in zip(leaves, d_leaves, strict=True)])


def _of_floats(tree: Any) -> Any:
    """Return the cotangents in `tree`, with None in place of those of integers."""
    return jax.tree.map(lambda leaf: None if leaf.dtype == jax.dtypes.float0 else leaf, tree)


def _float_rows(tree: Any, t: Step | int) -> Any:
    """Return row t of the cotangents in `tree`, with None in place of those of integers."""
    return jax.tree.map(lambda leaf: at(leaf, t), _of_floats(tree))


# Choices, and their transpose.


def _skip_inputs_at(inputs: SkipInputs, t: Step) -> SkipInputs:
    """Return the inputs of the choice at step t that need no state."""

    def row(leaf):
        if getattr(leaf, "ndim", 0) < 2:  # the temperature has no time axis
            return leaf
        return leaf[:, 0] if leaf.shape[1] == 1 else at(leaf, t)

    return jax.tree.map(row, inputs)


def _observed_source(plan: Plan, histories: Histories, t: Step, newest: Any) -> Array:
    """Return the states that the choice at step t observes: the newest one, or the last K."""
    if plan.skip.observed == "previous":
        return newest[plan.observed]
    return plan.reader.window(histories[plan.observed], t)


def _choose_from(plan: Plan, loop: Loop, t: Step, source: Array, skip_state: Any) -> tuple[Choice, Any]:
    """Make the choice at step t from `source`, the result of `_observed_source`."""
    kind = plan.skip.observed
    observation = source if kind == "previous" else Window(source, plan.K).observe(kind)
    inputs = _skip_inputs_at(loop.skip_inputs, t)
    return plan.skip.choose(loop.skip, inputs, observation, skip_state, plan.mode)


def _choose(plan: Plan, loop: Loop, histories: Histories, t: Step, newest: Any, skip_state: Any):
    """Make the choice at step t."""
    return _choose_from(plan, loop, t, _observed_source(plan, histories, t, newest), skip_state)


def _undo_choice(
    plan: Plan, residuals: _Residuals, t: Step, previous: Any, d_choice: Choice, d_skip_state: Any
) -> tuple[Array, Any]:
    """Return the gradients of the `_observed_source` of step t, and of the time skip's state before it."""
    source = _observed_source(plan, residuals.histories, t, previous)
    skip_state = jax.tree.map(lambda leaf: at(leaf, t), residuals.skip_states)
    made, undo = jax.vjp(partial(_choose_from, plan, residuals.loop, t), source, skip_state)
    return _of_floats(undo(_cotangent(made, (d_choice, d_skip_state))))


def _undo_all_choices(plan: Plan, residuals: _Residuals, d_choices: Choice, d_skip_states: Any):
    """Return the gradients of `Loop.skip` and `Loop.skip_inputs`, computed for all steps at once."""
    loop, time = residuals.loop, residuals.loop.inputs[0].shape[1]
    observations = observed_in(residuals.histories[plan.observed], plan.skip.observed, plan.K, time)
    skip_states = jax.tree.map(lambda leaf: leaf[:, :-1], residuals.skip_states)

    def choose(skip, projected, temperature):
        inputs = loop.skip_inputs._replace(projected=projected, temperature=temperature)
        return plan.skip.choose(skip, inputs, observations, skip_states, plan.mode)

    made, undo = jax.vjp(choose, loop.skip, loop.skip_inputs.projected, loop.skip_inputs.temperature)
    d_skip, d_projected, d_temperature = undo(_cotangent(made, (d_choices, d_skip_states)))
    return d_skip, SkipInputs(projected=d_projected, temperature=d_temperature)


# The state that enters a step, and its transpose.


def _mixed(plan: Plan, mix: Array | None, fetched: Any, previous: Any) -> Any:
    return mixed(plan.transition, plan.mix if mix is None else mix, fetched, previous)


def _read_ahead(plan: Plan, histories: Histories, t: Step | int) -> Any:
    """Return State(t-k) if k is the same at all steps and not 1; otherwise None."""
    reads = plan.reaches_back and plan.skip.fixed_slot is not None
    return plan.reader.fetch(histories, t, Choice()) if reads else None


def _enter(
    plan: Plan, loop: Loop, histories: Histories, t: Step, choice: Choice, newest: Any, read_ahead: Any
) -> Any:
    """Return the state that enters step t, λ State(t-k) + (1 - λ) State(t-1)."""
    if not plan.reaches_back:
        return newest
    fetched = plan.reader.fetch(histories, t, choice) if read_ahead is None else read_ahead
    entering = _mixed(plan, loop.mix, fetched, newest)
    return entering if loop.first is None else where_each(loop.first & (t == 0), newest, entering)


class _Entered(NamedTuple):
    """Gradients of the arguments of `_enter`.

    Attributes:
        newest: Gradient of State(t-1), through `_enter` only.
        mix: Gradient of λ; None if λ is a number.
        weights: Gradient of the weights of the choice; None for a choice without weights.
        adjoints: Gradients with respect to the histories, with those of this step added.
    """

    newest: Any
    mix: Array | None
    weights: Array | None
    adjoints: Histories


def _undo_enter(
    plan: Plan,
    residuals: _Residuals,
    adjoints: Histories,
    t: Step,
    choice: Choice,
    previous: Any,
    d_entering: Any,
) -> _Entered:
    """Apply the transpose of `_enter`: return the gradients of its arguments for `d_entering`."""
    loop, d_carried = residuals.loop, None
    if loop.first is not None:
        is_first = loop.first & (t == 0)
        d_carried = where_each(is_first, d_entering, 0)
        d_entering = where_each(~is_first, d_entering, 0)
    # With a number as λ, the derivative of a linear mix does not depend on the mixed states.
    needs_values = loop.mix is not None or plan.transition.averages == "own"
    fetched = plan.reader.fetch(residuals.histories, t, choice) if needs_values else previous
    _, undo = jax.vjp(partial(_mixed, plan), loop.mix, fetched, previous)
    d_mix, d_fetched, d_newest = undo(d_entering)
    adjoints, d_weights = plan.reader.send_back(adjoints, residuals.histories, t, choice, d_fetched)
    return _Entered(
        _added(d_newest, d_carried) if d_carried is not None else d_newest, d_mix, d_weights, adjoints
    )


def _input_states(plan: Plan, residuals: _Residuals) -> Any:
    """Return the state that entered each step, (batch, time, hidden) each.

    Averages were stored in the forward pass. Other states are read from the histories again.
    """
    if residuals.input_states is not None:
        return residuals.input_states
    loop, time = residuals.loop, residuals.loop.inputs[0].shape[1]
    previous = (history[:, plan.K - 1 : plan.K - 1 + time] for history in residuals.histories)
    states = plan.transition.state(*previous)
    if plan.reaches_back:
        states = _mixed(
            plan, loop.mix, plan.reader.fetch_all(residuals.histories, residuals.choices, time), states
        )
    if loop.first is None:
        return states
    is_first = loop.first[:, None] & (jnp.arange(time) == 0)[None, :]
    return where_each(is_first, jax.tree.map(lambda array: array[:, None], loop.newest), states)
