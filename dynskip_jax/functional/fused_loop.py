"""The fused unroll's loop over time, forward and backward, and how states are read from its histories."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from dynskip_jax.functional.fused_step import Call, StepPlan, backward, forward
from dynskip_jax.functional.layout import batch_zeros, gradient_sharding
from dynskip_jax.functional.recurrence import dropped, mixed
from dynskip_jax.functional.stored import Rows, observed_in
from dynskip_jax.functional.time_skips import Choice, SkipInputs, TimeSkip


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is static about an unroll.

    Attributes:
        step: how a step multiplies, and what the layer computes.
        mode: how choices are made.
        mix: the skip weight λ, where it is a number.
        differentiable: whether a gradient flows through choices.
        observed: which of the state's arrays choices observe, by position.
        whole: which of the state's arrays are returned for all steps, by position; 0 is h.
    """

    step: StepPlan
    mode: str
    mix: float
    differentiable: bool
    observed: int
    whole: tuple[int, ...]

    @property
    def skip(self) -> TimeSkip:
        """The skip over time."""
        return self.step.recurrence.time_skip

    @property
    def transition(self) -> Any:
        """The transition."""
        return self.step.recurrence.transition

    @property
    def K(self) -> int:
        """Slots of the buffer."""
        return self.skip.max_skip

    @property
    def reaches_back(self) -> bool:
        """Whether any other state than the previous one can enter."""
        return self.skip.fixed_slot != 0

    @property
    def others(self) -> tuple[int, ...]:
        """Which of the state's arrays are returned for the last K steps alone."""
        return tuple(i for i in range(len(self.transition.state._fields)) if i not in self.whole)


class Loop(NamedTuple):
    """What enters the loop; None where a layer does without.

    Attributes:
        inputs: projected inputs, (batch, time, ...) each.
        matrices: that `dense` multiplies by.
        vectors: other parameters.
        entered: the state that enters the first step, each (batch, hidden).
        previous: State(-1), where not every state is written whole, or zoneout keeps of it.
        slots: the last K states, oldest first, each (batch, K, hidden).
        choice: the choice at the first step.
        skip_state: what the time skip carries after the first choice.
        skip: params of the time skip.
        seen: what of the choices needs no state, (batch_or_1, time_or_1, ...).
        mix: λ as an array; None if it is a number, which is static.
        recurrent_mask: factor on the state that enters the gates, (batch, hidden).
        seq_lengths: (batch,).
    """

    inputs: tuple[Array, ...]
    matrices: tuple[Array, ...]
    vectors: tuple[Array, ...]
    entered: Any
    previous: Any
    slots: Any
    choice: Choice
    skip_state: Any
    skip: Any
    seen: SkipInputs
    mix: Float[Array, ""] | None = None
    recurrent_mask: Float[Array, "batch hidden"] | None = None
    seq_lengths: Int[Array, " batch"] | None = None


class Result(NamedTuple):
    """What comes out of it.

    Attributes:
        whole: histories of the arrays in `Plan.whole`, (batch, K + time, hidden).
        last: the last K rows of the other arrays, (batch, K, hidden).
        choices: of all steps, (batch, time, ...).
        skip_states: what the time skip carried after each step, (batch, time, ...).
    """

    whole: tuple[Array, ...]
    last: tuple[Array, ...]
    choices: Choice
    skip_states: Any


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def run(plan: Plan, loop: Loop) -> Result:
    """Runs all steps."""
    return _forward(plan, loop, keep=False)[0]


def _run_forward(plan: Plan, loop: Loop):
    """`run`, and what its transpose needs."""
    return _forward(plan, loop, keep=True)


class _Residuals(NamedTuple):
    """What the backward pass needs.

    Attributes:
        loop: what entered, `inputs` being the results that took their place.
        results: of the other products, (batch, time, width).
        histories: of all the state's arrays.
        choices: of all steps.
        skip_states: what the time skip carried after each step.
        entered: the state that entered each step, (batch, time, hidden), where it is a mean.
    """

    loop: Loop
    results: tuple[Array, ...]
    histories: tuple[Array, ...]
    choices: Choice
    skip_states: Any
    entered: Any


def _forward(plan: Plan, loop: Loop, keep: bool) -> tuple[Result, _Residuals | None]:
    """Runs all steps."""
    step_plan = plan.step
    time = loop.inputs[0].shape[1]
    keeps_entered = keep and loop.choice.weights is not None

    def step(state, t):
        inputs, rows, results, histories, entered, newest, choice, skip_state = state
        new, kept = forward(
            step_plan,
            loop.matrices,
            loop.vectors,
            rows,
            dropped(entered, loop.recurrent_mask, plan.transition),
            newest,
            choice.update,
            loop.recurrent_mask,
        )
        if keep:
            inputs, results = _put_results(step_plan, inputs, results, t, kept)
        rows = tuple(_at(array, t + 1) for array in inputs)
        histories = tuple(_put(history, t + plan.K, row) for history, row in zip(histories, new, strict=True))
        following, skip_state_after = _choose(plan, loop, histories, t + 1, new, skip_state)
        entering = _entering(plan, loop.mix, histories, t + 1, following, new)
        newest = None if newest is None else new
        state = (inputs, rows, results, histories, entering, newest, following, skip_state_after)
        return state, (choice, skip_state, entered if keeps_entered else None)

    grow = ((0, 0), (0, time), (0, 0))
    histories = tuple(jnp.pad(slots, grow) for slots in loop.slots)
    results = tuple(_zeros(call, loop.entered[0], time, call.width) for call in step_plan.own_arrays if keep)
    rows = tuple(_at(array, 0) for array in loop.inputs)
    start = (loop.inputs, rows, results, histories, loop.entered, loop.previous, loop.choice, loop.skip_state)
    state, collected = lax.scan(step, start, jnp.arange(time))
    inputs, _, results, histories, *_ = state
    choices, skip_states, entered = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), collected)
    last = tuple(last_rows(histories[i], loop.seq_lengths, plan.K) for i in plan.others)
    result = Result(tuple(histories[i] for i in plan.whole), last, choices, skip_states)
    if not keep:
        return result, None
    kept_loop = loop._replace(inputs=inputs, slots=None)
    return result, _Residuals(kept_loop, results, histories, choices, skip_states, entered)


def _run_backward(plan: Plan, residuals: _Residuals, cotangents: Result) -> tuple[Loop]:
    """The transpose of `_forward`, last step first.

    Row K + t of an adjoint array collects what the steps after t send back to State(t); when step t is
    reached it is complete.
    """
    loop, histories = residuals.loop, residuals.histories
    step_plan, skip, K = plan.step, plan.skip, plan.K
    time = loop.inputs[0].shape[1]
    batch = loop.entered[0].shape[0]
    transposes = [_times_transposed(loop.matrices[call.matrix], batch) for call in step_plan.calls]
    entered = _entered(plan, residuals)
    mix = plan.mix if loop.mix is None else loop.mix

    def complete(t, d_state, adjoints):
        return [
            d if adjoint is None else d + _at(adjoint, K + t)
            for d, adjoint in zip(d_state, adjoints, strict=True)
        ]

    def rows_of(inputs, results, t):
        kept_arrays = zip(results, step_plan.own_arrays, strict=True)
        return tuple(_at(array, t) for array in inputs), tuple(
            _at(x, t, call.time_axis) for x, call in kept_arrays
        )

    def undo_step(state, t):
        arrays, rows, operands, d_state, adjoints, d_skip_state, _, sums = state
        inputs, results = arrays
        choice = jax.tree.map(lambda leaf: _at(leaf, t), residuals.choices)
        own_arrays = iter(rows[1])
        kept = [rows[0][call.input] if call.in_place else next(own_arrays) for call in step_plan.calls]
        previous = None
        if loop.previous is not None:
            before = plan.transition.state(*(_at(history, K + t - 1) for history in histories))
            previous = jax.tree.map(lambda row, first: jnp.where(t > 0, row, first), before, loop.previous)
        undropped = plan.transition.state(*(_at(array, t) for array in entered))
        d = backward(
            step_plan,
            transposes,
            kept,
            loop.vectors,
            rows[0],
            dropped(undropped, loop.recurrent_mask, plan.transition),
            previous,
            choice.update,
            loop.recurrent_mask,
            plan.transition.state(*d_state),
        )
        d_entering, d_mask = list(d.entering), d.recurrent_mask
        if loop.recurrent_mask is not None and plan.transition.cell_state != "h":
            d_mask = d_mask + d_entering[0] * undropped[0]
            d_entering[0] = d_entering[0] * loop.recurrent_mask
        inputs, results = _put_gradients(step_plan, inputs, results, t, d)
        multiplied = [(call, x) for call, x in zip(step_plan.calls, d.operands, strict=True) if x is not None]
        operands = tuple(
            _put(array, t, x, call.time_axis) for array, (call, x) in zip(operands, multiplied, strict=True)
        )

        # What entered the first step is an argument of its own, so nothing is sent back from there.
        d_newest, d_mix, d_weights = d_entering, None, None
        if plan.reaches_back:
            sent = jnp.where(t > 0, mix, 0).astype(d_entering[0].dtype)
            adjoints = [
                _send_back(plan, adjoint, t, choice, sent * d_array)
                for adjoint, d_array in zip(adjoints, d_entering, strict=True)
            ]
            d_newest = [(1 - mix) * d_array for d_array in d_entering]
            if loop.mix is not None:
                moved = sum(
                    d_array * (_fetch(plan, history, t, choice) - _at(history, K + t - 1))
                    for d_array, history in zip(d_entering, histories, strict=True)
                )
                d_mix = jnp.where(t > 0, jnp.sum(moved), 0)
            if choice.weights is not None:
                d_weights = sent * _weights_adjoint(plan, histories, t, d_entering)
        if loop.previous is not None:
            d_newest = [d_array + more for d_array, more in zip(d_newest, d.previous, strict=True)]

        emitted = None
        if plan.differentiable:
            d_choice = Choice(weights=d_weights, update=d.update)
            d_choice = _added(d_choice, _float_rows(cotangents.choices, t))
            d_observation, d_skip_state_before = _undo_choice(
                plan, loop, residuals, t, d_choice, d_skip_state
            )
            emitted = (d_choice, d_skip_state)
            d_observation = jax.tree.map(lambda d, t=t: jnp.where(t > 0, d, 0), d_observation)
            if skip.observed == "previous":
                d_newest = list(d_newest)
                d_newest[plan.observed] = d_newest[plan.observed] + d_observation
            else:
                adjoints = list(adjoints)
                adjoints[plan.observed] = _add(adjoints[plan.observed], t, _unobserve(plan, d_observation))
            arriving = _added(d_skip_state_before, _float_rows(cotangents.skip_states, t - 1))
            d_skip_state = jax.tree.map(lambda new, old: jnp.where(t > 0, new, old), arriving, d_skip_state)

        sums = _added(sums, (d.vectors, d_mask, d_mix))
        rows = rows_of(inputs, results, t - 1)
        following = complete(t - 1, d_newest, adjoints)
        d_state = [jnp.where(t > 0, new, first) for new, first in zip(following, d_entering, strict=True)]
        return ((inputs, results), rows, operands, d_state, adjoints, d_skip_state, d.previous, sums), emitted

    adjoints: list[Array | None] = [None] * len(histories)
    for i, d_history in zip(plan.whole, cotangents.whole, strict=True):
        adjoints[i] = d_history
    d_state = [jnp.zeros_like(array) for array in loop.entered]
    for i, d_last in zip(plan.others, cotangents.last, strict=True):
        adjoints[i] = _last_adjoint(plan, loop, histories[i], d_last)
        if adjoints[i] is None:
            d_state[i] = d_last[:, 0]
    operands = tuple(
        _zeros(call, loop.entered[0], time, call.rows) for call in step_plan.calls if not call.of_h
    )
    sums = (
        tuple(jnp.zeros_like(loop.vectors[i]) for i in step_plan.read_vectors),
        None if loop.recurrent_mask is None else jnp.zeros_like(loop.recurrent_mask),
        None if loop.mix is None or not plan.reaches_back else jnp.zeros_like(loop.mix),
    )
    start = (
        (loop.inputs, residuals.results),
        rows_of(loop.inputs, residuals.results, time - 1),
        operands,
        complete(time - 1, d_state, adjoints),
        adjoints,
        _float_rows(cotangents.skip_states, time - 1) if plan.differentiable else None,
        jax.tree.map(jnp.zeros_like, loop.previous),
        sums,
    )
    state, emitted = lax.scan(undo_step, start, jnp.arange(time), reverse=True)
    (inputs, results), _, operands, d_entered, adjoints, d_skip_state, d_previous, sums = state

    if loop.recurrent_mask is not None:
        entered = dropped(entered, loop.recurrent_mask[:, None], plan.transition)
    gradients = _gradients_of_params(step_plan, loop, inputs, results, operands, entered[0], sums[0])
    d_skip, d_seen, d_choice = None, None, None
    if plan.differentiable:
        emitted = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), emitted)
        d_choice = jax.tree.map(lambda leaf: leaf[:, 0], emitted[0])
        d_skip, d_seen = _undo_choices(plan, loop, residuals, *emitted)
    return (
        Loop(
            inputs=gradients[0],
            matrices=gradients[1],
            vectors=gradients[2],
            entered=plan.transition.state(*d_entered),
            previous=d_previous,
            slots=plan.transition.state(
                *(
                    jnp.zeros((batch, K, d.shape[-1]), d.dtype) if adjoint is None else adjoint[:, :K]
                    for adjoint, d in zip(adjoints, d_entered, strict=True)
                )
            ),
            choice=d_choice,
            skip_state=d_skip_state,
            skip=d_skip,
            seen=d_seen,
            mix=sums[2],
            recurrent_mask=sums[1],
            seq_lengths=None,
        ),
    )


run.defvjp(_run_forward, _run_backward)


# Where results and gradients are kept.


def _put_results(plan: StepPlan, inputs, results, t, kept):
    """Writes the results of a step: in place of the inputs they were added to, or to arrays of their own."""
    inputs, own_arrays = list(inputs), []
    arrays = iter(results)
    for call, row in zip(plan.calls, kept, strict=True):
        if call.in_place:
            inputs[call.input] = _put(inputs[call.input], t, row)
        else:
            own_arrays.append(_put(next(arrays), t, row, call.time_axis))
    return tuple(inputs), tuple(own_arrays)


def _put_gradients(plan: StepPlan, inputs, results, t, d):
    """Writes the gradients of a step's products in place of their results, and those of inputs read."""
    inputs, results = _put_results(plan, inputs, results, t, d.results)
    inputs = list(inputs)
    read = dict(zip(plan.read_inputs, d.inputs, strict=True))
    for i in range(len(inputs)):
        shared = [d.results[n] for n, call in enumerate(plan.calls) if call.input == i and not call.in_place]
        parts = [*shared, *([read[i]] if i in read else [])]
        if parts:
            inputs[i] = _put(inputs[i], t, sum(parts[1:], parts[0]))
    return tuple(inputs), results


def _gradients_of_params(plan: StepPlan, loop: Loop, inputs, results, operands, h_entered, read_vectors):
    """The gradients of the projected inputs, the matrices and the vectors, over all steps at once."""
    matrices: list[Array | None] = [None] * len(loop.matrices)
    vectors = [jnp.zeros_like(vector) for vector in loop.vectors]
    for i, d in zip(plan.read_vectors, read_vectors, strict=True):
        vectors[i] = d
    own_arrays, own_operands = iter(results), iter(operands)
    for call in plan.calls:
        d = inputs[call.input] if call.in_place else next(own_arrays)
        x = h_entered if call.of_h else next(own_operands)
        more = _outer_products(x, d, loop.matrices[call.matrix])
        matrices[call.matrix] = more if matrices[call.matrix] is None else matrices[call.matrix] + more
        for i in call.vectors:
            vectors[i] = vectors[i] + jnp.sum(d, axis=(0, 1)).astype(vectors[i].dtype)
    used = {call.input for call in plan.calls} | set(plan.read_inputs)
    inputs = tuple(array if i in used else jnp.zeros_like(array) for i, array in enumerate(inputs))
    return inputs, tuple(matrices), tuple(vectors)


def _added(tree: Any, more: Any) -> Any:
    """Adds two trees, None counting as nothing."""

    def add(a, b):
        return b if a is None else a if b is None else a + b

    return jax.tree.map(add, tree, more, is_leaf=lambda leaf: leaf is None)


def _cotangent(made: Any, d: Any) -> Any:
    """The adjoint of what was made: zeros where there is none, and none at all of whole numbers."""

    def fill(leaf, d_leaf):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            return jnp.zeros_like(leaf) if d_leaf is None else d_leaf
        return np.zeros(leaf.shape, jax.dtypes.float0)

    leaves, structure = jax.tree.flatten(made)
    d_leaves = structure.flatten_up_to(d)
    return jax.tree.unflatten(structure, [fill(a, b) for a, b in zip(leaves, d_leaves, strict=True)])


def _of_floats(tree: Any) -> Any:
    """Cotangents, None for those of whole numbers, which have none."""
    return jax.tree.map(lambda leaf: None if leaf.dtype == jax.dtypes.float0 else leaf, tree)


def _float_rows(tree: Any, t: Int[Array, ""] | int) -> Any:
    """Row t of the cotangents of floats."""
    return jax.tree.map(lambda leaf: _at(leaf, t), _of_floats(tree))


# Choices, and the transpose of making them.


def _seen_at(seen: SkipInputs, t: Int[Array, ""]) -> SkipInputs:
    """What of the choice at step t needs no state."""

    def at(leaf):
        if getattr(leaf, "ndim", 0) < 2:  # the temperature
            return leaf
        return leaf[:, 0] if leaf.shape[1] == 1 else _at(leaf, t)

    return jax.tree.map(at, seen)


def _choose(
    plan: Plan, loop: Loop, histories, t: Int[Array, ""], newest: Any, skip_state: Any
) -> tuple[Choice, Any]:
    """The choice at step t, which may be one past the end: then it is of no consequence."""
    seen = _seen_at(loop.seen, t)
    observation = _observe(plan, histories[plan.observed], t, newest[plan.observed])
    choice, skip_state = plan.skip.choose(loop.skip, seen, observation, skip_state, plan.mode)
    return choice, skip_state


def _undo_choice(plan: Plan, loop: Loop, residuals: _Residuals, t, d_choice: Choice, d_skip_state: Any):
    """The adjoints of what the choice at step t observed, and of what the time skip carried."""
    seen = _seen_at(loop.seen, t)
    history = residuals.histories[plan.observed]
    observation = _observe(plan, history, t, _at(history, plan.K + t - 1))
    skip_state = jax.tree.map(
        lambda skip_states: _at(skip_states, jnp.maximum(t - 1, 0)), residuals.skip_states
    )

    def choose(observation, skip_state):
        return plan.skip.choose(loop.skip, seen, observation, skip_state, plan.mode)

    made, undo = jax.vjp(choose, observation, skip_state)
    return _of_floats(undo(_cotangent(made, (d_choice, d_skip_state))))


def _undo_choices(plan: Plan, loop: Loop, residuals: _Residuals, d_choices: Choice, d_skip_states: Any):
    """The gradients of the time skip's params and of its share of the inputs, all steps at once."""
    time = loop.inputs[0].shape[1]
    observations = observe_all_steps(plan, residuals.histories[plan.observed], time)
    skip_states = jax.tree.map(
        lambda skip_states: jnp.concatenate([skip_states[:, :1], skip_states[:, :-1]], axis=1),
        residuals.skip_states,
    )
    later = jnp.arange(time) > 0  # the first choice is an argument of its own

    def where_later(leaf):
        return jnp.where(later.reshape((1, -1) + (1,) * (leaf.ndim - 2)), leaf, 0)

    cotangents = jax.tree.map(where_later, (d_choices, d_skip_states))

    def choose(skip, projected, temperature):
        seen = loop.seen._replace(projected=projected, temperature=temperature)
        return plan.skip.choose(skip, seen, observations, skip_states, plan.mode)

    made, undo = jax.vjp(choose, loop.skip, loop.seen.projected, loop.seen.temperature)
    d_skip, d_projected, d_temperature = undo(_cotangent(made, cotangents))
    return d_skip, SkipInputs(projected=d_projected, temperature=d_temperature)


def _observe(plan: Plan, history: Array, t: Int[Array, ""], newest: Array) -> Any:
    """What the choice at step t observes."""
    if plan.skip.observed == "previous":
        return newest
    window = lax.dynamic_slice_in_dim(history, t, plan.K, axis=1)
    if plan.skip.observed == "stored":
        return Rows(window)
    return window.mean(axis=1) if plan.skip.observed == "mean" else jnp.flip(window, axis=1)


def _unobserve(plan: Plan, d_observation: Any) -> Float[Array, "batch K hidden"]:
    """The transpose of `_observe`, where it sees more than the newest state: the adjoint of the window."""
    if plan.skip.observed == "stored":
        return d_observation.rows
    if plan.skip.observed == "slots":
        return jnp.flip(d_observation, 1)
    return jnp.repeat(d_observation[:, None] / plan.K, plan.K, axis=1)


def observe_all_steps(plan: Plan, history: Float[Array, "batch rows hidden"], time: int) -> Any:
    """What the choices of all steps observe."""
    return observed_in(history, plan.skip.observed, plan.K, time)


# Which states enter a step, and the transpose of that.


def _entering(plan: Plan, mix, histories, t: Int[Array, ""], choice: Choice, newest: Any) -> Any:
    """What enters step t: λ State(t-k) + (1 - λ) State(t-1)."""
    if not plan.reaches_back:
        return newest
    mix = plan.mix if mix is None else mix
    return plan.transition.state(
        *(
            mixed(mix, _fetch(plan, history, t, choice), new)
            for history, new in zip(histories, newest, strict=True)
        )
    )


def _fetch(
    plan: Plan, history: Float[Array, "batch rows hidden"], t: Int[Array, ""], choice: Choice
) -> Float[Array, "batch hidden"]:
    """State(t-k), or the weighted mean over k."""
    K = plan.K
    if plan.skip.fixed_slot is not None:
        return _at(history, t + K - 1 - plan.skip.fixed_slot)
    if choice.weights is not None:
        # Row by row: XLA's CPU backend does not vectorise a sum over an axis in the middle. In a loop, so
        # that the program does not grow with K.
        weights = jnp.flip(choice.weights, axis=1)

        def add(i, total):
            return total + lax.dynamic_index_in_dim(weights, i, axis=1) * _at(history, t + i)

        return lax.fori_loop(1, K, add, weights[:, :1] * _at(history, t))
    # By `vmap`, so that a batch divided among devices stays where it is.
    read = jax.vmap(lambda rows, row: rows.at[row].get(mode="promise_in_bounds"))
    return read(history, t + K - 1 - choice.slot)


def _send_back(
    plan: Plan,
    adjoint: Float[Array, "batch rows hidden"],
    t: Int[Array, ""],
    choice: Choice,
    d_fetched: Float[Array, "batch hidden"],
) -> Float[Array, "batch rows hidden"]:
    """The transpose of `_fetch`: adds an adjoint to the rows that were read."""
    K = plan.K
    if plan.skip.fixed_slot is not None:
        return _add(adjoint, t + K - 1 - plan.skip.fixed_slot, d_fetched[:, None])
    if choice.weights is not None:
        return _add(adjoint, t, jnp.flip(choice.weights, axis=1)[..., None] * d_fetched[:, None])
    add = jax.vmap(lambda rows, row, d: rows.at[row].add(d, mode="promise_in_bounds", unique_indices=True))
    return add(adjoint, t + K - 1 - choice.slot, d_fetched)


def _weights_adjoint(plan: Plan, histories, t: Int[Array, ""], d_entering) -> Float[Array, "batch K"]:
    """The adjoint of the weights, from those of the means."""
    windows = [lax.dynamic_slice_in_dim(history, t, plan.K, axis=1) for history in histories]
    d = sum(
        jnp.sum(d_array[:, None] * window, axis=-1)
        for d_array, window in zip(d_entering, windows, strict=True)
    )
    return jnp.flip(d, axis=1)


def _entered(plan: Plan, residuals: _Residuals) -> Any:
    """What entered each step, (batch, time, hidden) each: kept, where it is a mean, or read once more."""
    loop, K = residuals.loop, plan.K
    if residuals.entered is not None:
        return residuals.entered
    time = loop.inputs[0].shape[1]

    def entered(history, start):
        previous = history[:, K - 1 : K - 1 + time]
        if not plan.reaches_back:
            # The first row is where the loop found it, unless that was forgotten, which is where K > 1.
            return previous
        if plan.skip.fixed_slot is not None:
            first = K - 1 - plan.skip.fixed_slot
            fetched = history[:, first : first + time]
        else:
            rows = jnp.arange(time)[None, :] + (K - 1) - residuals.choices.slot
            fetched = jnp.take_along_axis(history, rows[..., None], axis=1, mode="promise_in_bounds")
        together = mixed(plan.mix if loop.mix is None else loop.mix, fetched, previous)
        return jnp.where(jnp.arange(time)[None, :, None] > 0, together, start[:, None])

    return plan.transition.state(*map(entered, residuals.histories, loop.entered))


def last_rows(
    history: Float[Array, "batch rows hidden"], seq_lengths: Int[Array, " batch"] | None, max_skip: int
) -> Float[Array, "batch K hidden"]:
    """The last K states of each sequence."""
    if seq_lengths is None:
        return history[:, history.shape[1] - max_skip :]
    rows = seq_lengths[:, None] + jnp.arange(max_skip)[None, :]
    return jnp.take_along_axis(history, rows[..., None], axis=1)


def _last_adjoint(
    plan: Plan, loop: Loop, history: Float[Array, "batch rows hidden"], d_last: Float[Array, "batch K hidden"]
) -> Float[Array, "batch rows hidden"] | None:
    """The transpose of `last_rows`; None where K is 1 and nobody but step t + 1 and the caller ever reads
    State(t)."""
    if loop.seq_lengths is not None:
        rows = loop.seq_lengths[:, None] + jnp.arange(plan.K)[None, :]
        add = jax.vmap(lambda adjoint, rows, d: adjoint.at[rows].add(d, unique_indices=True))
        return add(jnp.zeros_like(history), rows, d_last)
    if plan.reaches_back or plan.K > 1:
        return jnp.zeros_like(history).at[:, history.shape[1] - plan.K :].set(d_last)
    return None


# Products, and places in arrays.


def _times_transposed(w: Float[Array, "hidden width"], rows: int) -> Callable[[Array], Array]:
    """Returns d -> d wᵀ in the weights' dtype (see `product`), for d of (rows, width), as a loop repeats it.

    Which way to write it is fastest depends on the size (XLA's CPU backend, two cores). Where the product
    is small, a copy of wᵀ pays. A little larger, it is shared so badly between threads that a product for
    each gate takes less time, (50, 512) x (512, 128) half of it. Beyond, w had better be read as it is.
    """
    size = rows * w.shape[0]
    gates = w.shape[1] // w.shape[0] if w.shape[1] % w.shape[0] == 0 else 1
    if size <= 4096:
        parts, axis = [w.T], 0
    elif size <= 8192 and gates > 1:
        parts, axis = [gate.T for gate in jnp.split(w, gates, axis=1)], 0
    else:
        parts, axis = [w], 1

    def times(d: Float[Array, "rows width"]) -> Float[Array, "rows hidden"]:
        wider = jnp.promote_types(d.dtype, w.dtype)
        d_parts = jnp.split(d.astype(w.dtype), len(parts), axis=1)
        products = [
            lax.dot_general(d_part, part, (((1,), (axis,)), ((), ())), preferred_element_type=wider)
            for d_part, part in zip(d_parts, parts, strict=True)
        ]
        return sum(products[1:], products[0])

    return times


def _outer_products(
    x: Float[Array, "*examples hidden"], d: Float[Array, "*examples width"], w: Float[Array, "hidden width"]
) -> Float[Array, "hidden width"]:
    """Return the sum of x dᵀ over examples and steps, the gradient of `w`, multiplied in the dtype of `w`."""
    total = lax.dot_general(
        x.astype(w.dtype),
        d.astype(w.dtype),
        (((0, 1), (0, 1)), ((), ())),
        preferred_element_type=x.dtype,
        out_sharding=gradient_sharding(w, d),
    )
    return total.astype(w.dtype)


def _zeros(call: Call, like: Array, time: int, width: int) -> Array:
    """Return an array for a row of a call at each step, divided among devices as `like`, (batch, ...)."""
    batch = like.shape[0]
    shape = (batch, time, width) if call.time_axis == 1 else (time, batch, width)
    return batch_zeros(like[:, 0], shape, like.dtype, axis=1 - call.time_axis)


def _at(array: Array, t: Int[Array, ""] | int, axis: int = 1) -> Array:
    """Row t of the time axis, which is the second one in most arrays."""
    return lax.dynamic_index_in_dim(array, t, axis=axis, keepdims=False)


def _put(array: Array, t: Int[Array, ""] | int, row: Array, axis: int = 1) -> Array:
    return lax.dynamic_update_index_in_dim(array, row, t, axis=axis)


def _add(array: Array, t: Int[Array, ""], rows: Array) -> Array:
    """Adds to the rows from t on."""
    old = lax.dynamic_slice_in_dim(array, t, rows.shape[1], axis=1)
    return lax.dynamic_update_slice_in_dim(array, old + rows, t, axis=1)
