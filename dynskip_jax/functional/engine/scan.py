"""The fused unroll: the step of a layer, scanned over time with a derivative of few passes over memory.

All arrays of the loop have the time axis first. `_Layer.step` is the step of both loops. The forward loop
runs it. The backward loop differentiates it with `jax.vjp`, which differs from JAX's derivative of the scan
in four ways:

* Results of products, choices and the states that entered are known from the forward loop. The gradients of
  all weights are left to products after the loop (`deferred.py`); an agent gets its gradient from all choices
  at once.
* Earlier states are read from the histories (`history.py`), and gradients of reads are added to one array in
  place. Nothing whose size grows with K is kept for each step, except the weights of choices that average K
  states.
* A sampled choice sends no gradient into the network, so it is not differentiated. Its log-probability and
  entropy are computed for all steps after the loop.
* With λ = 0 no choice changes a state: the loop is that of a layer without a skip, and choices are made after
  it.

Past the end of a sequence a step holds the state, so padding stays finite for every transition.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax.functional.engine import history as hist
from dynskip_jax.functional.engine.deferred import (
    Matrix,
    Product,
    find_products,
    keep_results,
    replay_results,
    with_value,
)
from dynskip_jax.functional.engine.product import outer_products, times_transposed
from dynskip_jax.functional.engine.sharding import zeros_like
from dynskip_jax.functional.keys import fold_in_each
from dynskip_jax.functional.policy import Policy
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.functional.step import (
    LayerParams,
    Recurrence,
    SkipCarry,
    SkipOutput,
    StepInputs,
    cell_step,
    dropped,
    in_dtype,
    in_dtype_of,
    mixed,
    observed,
    skip_inputs,
)
from dynskip_jax.functional.time_skips import Choice, Previous, SkipInputs


def fused_unroll(
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    recurrence: Recurrence,
    *,
    initial: Any = None,
    policy: Policy = Policy(),  # noqa: B008 (immutable)
    return_cell_state: bool = False,
) -> tuple[SkipCarry, SkipOutput]:
    """Compute the results of a scan of `recurrent_step` over `inputs`.

    Reverse-mode derivatives of any order work, and so does forward mode over reverse mode (`jax.hessian`, or
    `jax.jvp` of `jax.grad`). Forward mode alone (`jax.jvp`, `jax.jacfwd`) needs the reference unroll.

    `inputs` are those of all steps, at least one, (time, batch, ...). Outputs are (batch, time, ...). See
    `unroll` for the other arguments. A transition that calls `dense` inside another program, or with other
    arrays than (batch, features), raises `OutOfReach`.
    """
    skip, dtype = recurrence.time_skip, carry.slots[0].dtype
    inputs = in_dtype_of(carry, inputs)
    mix = in_dtype(skip.mix if policy.mix is None else policy.mix, dtype)
    clock = _clock(carry, inputs, skip.max_skip)
    given = skip_inputs(recurrence, inputs, clock.step, clock.key, dtype, policy)
    inert = _is_inert(recurrence, mix, carry)
    if inert:
        of_loop = dataclasses.replace(recurrence, time_skip=Previous(max_skip=skip.max_skip))
        problem = params._replace(skip=None), carry, inputs, of_loop, SkipInputs(step=clock.step)
    else:
        problem = params, carry, inputs, recurrence, given
    layer, args = _problem(*problem, mix=mix, initial=initial, clock=clock, mode=policy.mode)
    recent_inputs = _recent_inputs(carry, inputs)
    if not inert:
        args = args._replace(recent_inputs=recent_inputs)
    result = _run(layer, args)
    histories = result.histories
    observations = _observations(recurrence, args, histories)
    given, before, choices = _batch_major((given, result.before, result.choices))
    given = given._replace(followed=_followed(recent_inputs, skip.max_skip, clock.alive))
    if inert:
        choices, _ = skip.make_choice(params.skip, given, observations, before, policy.mode)
    decision = skip.decide(params.skip, given, observations, choices, policy.mode)
    cell_state = getattr(histories, recurrence.transition.cell_state) if return_cell_state else None
    h, cell_state = _batch_major(jax.tree.map(lambda rows: rows[layer.K :], (histories[0], cell_state)))
    output = SkipOutput(h, decision, cell_state)
    if inputs.valid is not None:
        output = where_each(_batch_major(inputs.valid), output, 0)
    end = _end(layer, args, carry, result, clock)
    if recent_inputs is not None:
        end = end._replace(inputs=_last_inputs(args.flags, recent_inputs, skip.max_skip, clock))
    return end, output


def _is_inert(recurrence: Recurrence, mix: Any, carry: SkipCarry) -> bool:
    """Return whether choices change no state, because λ is the constant 0."""
    skip = recurrence.time_skip
    keeps_order = skip.writes_all and not skip.forgets_carried and not jax.tree.leaves(carry.skip_state)
    return isinstance(mix, int | float) and mix == 0 and keeps_order and skip.fixed_slot is None


# What a loop is given.


class _Clock(NamedTuple):
    """Number and key of each step, which start again where a sequence begins inside a packed row."""

    step: Int[Array, "time batch"]  # number of steps before each step, (time, batch)
    key: Any  # PRNG key of each step, (time, batch); None without keys
    alive: Int[Array, "time batch"] | None = None  # see `_Flags`
    last: Any = None  # step number, key and `alive` after the last step of each row; None if no row is packed


def _clock(carry: SkipCarry, inputs: StepInputs, K: int) -> _Clock:
    time, batch = jax.tree.leaves(inputs.transition)[0].shape[:2]
    if inputs.restart is None:
        steps = carry.step[None] + jnp.arange(time, dtype=carry.step.dtype)[:, None]
        return _Clock(steps, None if carry.key is None else jnp.broadcast_to(carry.key, (time, batch)))

    def tick(state, x):
        restart, valid = x
        step, key, alive = state
        new_key = None if key is None else fold_in_each(key, step)
        begun = (jnp.zeros_like(step), new_key, jnp.zeros_like(alive))
        step, key, alive = where_each(restart, begun, state)
        after = (step + 1, key, alive + 1)
        return where_each(valid, after, state), (step, key, alive)

    valid = jnp.ones_like(inputs.restart) if inputs.valid is None else inputs.valid
    start = (carry.step, carry.key, jnp.full_like(carry.step, K))
    last, (step, key, alive) = lax.scan(tick, start, (inputs.restart & valid, valid))
    return _Clock(step, key, alive, last)


class _Flags(NamedTuple):
    """What is special about each step, (time, batch); None where nothing is."""

    valid: Bool[Array, "time batch"] | None = None  # False past the end of a sequence
    # True where the carried state enters and is forgotten afterwards (`TimeSkip.forgets_carried`)
    first: Bool[Array, "time batch"] | None = None
    # Number of slots with states of the present sequence of a packed row: the number of steps since it began,
    # or K for the first one. The other slots contain the initial state
    alive: Int[Array, "time batch"] | None = None


class _Arguments(NamedTuple):
    """Arrays of an unroll; None for what a layer does not have."""

    inputs: Sequence[Array]  # projected inputs, (time, batch, ...) each
    matrices: tuple[Array, ...]  # matrices that `dense` multiplies by
    params: Any  # parameters of the transition and of the depth skip, with a `Matrix` for each matrix
    newest: Any  # State(-1), each array (batch, hidden)
    slots: Any  # the last K states, oldest first, each array (K, batch, hidden)
    skip_state: Any  # state of the time skip
    skip: Any  # parameters of the time skip
    given: SkipInputs  # inputs of the choices that need no state, (time, batch, ...)
    mix: Float[Array, ""] | None  # λ as an array; None if it is a number, which is static
    # Recurrent dropout mask of the h that enters a step, (batch, hidden)
    recurrent_mask: Float[Array, "batch hidden"] | None
    initial: Any  # initial state of the sequences that begin inside a packed row
    flags: _Flags  # what is special about each step
    # Inputs that the choices observe: the K - 1 before the first step, then one per step, oldest first
    recent_inputs: Float[Array, "rows batch in"] | None = None

    @property
    def time(self) -> int:
        """Number of steps."""
        return self.given.step.shape[0]


def _problem(
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    recurrence: Recurrence,
    given: SkipInputs,
    *,
    mix: Any,
    initial: Any,
    clock: _Clock,
    mode: str,
) -> tuple["_Layer", _Arguments]:
    """Return what is known about an unroll before it runs, and its arrays."""
    skip, is_number = recurrence.time_skip, isinstance(mix, int | float)
    of_cell = params.transition, params.depth
    matrices = [leaf for leaf in jax.tree.leaves(of_cell) if leaf.ndim > 1]
    handles = map(Matrix, range(len(matrices)))
    projected, input_structure = jax.tree.flatten((inputs.transition, inputs.depth, inputs.zoneout_mask))
    first = is_forgotten = (carry.step == 0) if skip.forgets_carried else None
    if first is not None and inputs.valid is not None:
        is_forgotten = first & inputs.valid[0]
    args = _Arguments(
        inputs=tuple(projected),
        matrices=tuple(matrices),
        params=jax.tree.map(lambda leaf: next(handles) if leaf.ndim > 1 else leaf, of_cell),
        newest=carry.state,
        slots=jax.tree.map(lambda s: jnp.moveaxis(hist.oldest_first(s, is_forgotten), 1, 0), carry.slots),
        skip_state=carry.skip_state,
        skip=params.skip,
        given=given,
        mix=None if is_number else mix,
        recurrent_mask=carry.recurrent_mask,
        initial=None if clock.alive is None else initial,
        flags=_Flags(inputs.valid, None if first is None else clock.step == 0, clock.alive),
    )
    layer = _Layer(
        recurrence,
        mode,
        mix=float(mix) if is_number else None,
        differentiable=skip.differentiable(mode, inputs.action is not None),
        inputs=input_structure,
    )
    update = None if skip.writes_all else jax.ShapeDtypeStruct(carry.step.shape, carry.slots[0].dtype)
    at_a_step = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in projected]
    shapes, state, mask = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
        (args.params, carry.state, carry.recurrent_mask),
    )
    found = find_products(layer.cell, args.matrices, shapes, at_a_step, state, state, update, mask)
    return dataclasses.replace(layer, products=found), args


# The step of both loops.


class _Step(NamedTuple):
    """Values of a step, or of all steps, (time, batch, ...). Only the backward loop needs all of them."""

    inputs: Sequence[Any]  # projected inputs
    given: Any  # inputs of the choice that need no state
    flags: _Flags  # what is special about the step
    previous: Any = None  # State(t-1)
    entering: Any = None  # state that entered
    choice: Choice = Choice()  # choice that was made
    before: Any = ()  # state of the time skip before the step
    results: Any = ()  # results of products
    d_new: Any = None  # gradients of State(t), None where they are known to be zero
    d_choice: Any = None  # likewise, of the choice
    d_before: Any = None  # likewise, of `before`


@dataclasses.dataclass(frozen=True)
class _Layer:
    """What is known about an unroll before it runs, and its step."""

    recurrence: Recurrence  # time skip, transition and depth skip
    mode: str  # mode of the policy
    mix: float | None  # λ; None if it is an array
    differentiable: bool  # whether gradients flow through choices
    inputs: Any  # pytree structure of the projected inputs
    products: tuple[Product, ...] = ()  # calls of `dense` in a step

    @property
    def K(self) -> int:
        """Number of slots."""
        return self.recurrence.time_skip.max_skip

    @property
    def reaches_back(self) -> bool:
        """Whether a step reads a state other than State(t-1)."""
        skip = self.recurrence.time_skip
        return skip.fixed_slot != 0 or skip.observed != "previous"

    @property
    def owned(self) -> dict[int, int]:
        """Projected input that the result of each product overwrites, because only this product reads it."""
        return {n: product.input for n, product in enumerate(self.products) if product.owns_input}

    def read(self, choice: Choice) -> hist.Read:
        """Return how the states of a choice are read from the histories."""
        fixed = self.recurrence.time_skip.fixed_slot
        return hist.Read(
            self.recurrence.transition, self.K, choice.slot if fixed is None else fixed, choice.weights
        )

    def window(self, histories: Any, t: Int[Array, ""]) -> Float[Array, "K batch observed"] | None:
        """Return what choices observe of the K states before step t; None if they see only State(t-1)."""
        if self.recurrence.time_skip.observed == "previous":
            return None
        return observed(
            self.recurrence, jax.tree.map(lambda rows: hist.read_window(rows, t, self.K), histories)
        )

    def begin(self, flags: _Flags, newest: Any, initial: Any) -> Any:
        """Return State(t-1), or the initial state where a sequence begins inside a packed row."""
        return newest if flags.alive is None else where_each(flags.alive == 0, initial, newest)

    def enter(self, args: _Arguments, flags: _Flags, read: hist.Read, fetched: Any, newest: Any) -> Any:
        """Return the state that enters, λ State(t-k) + (1 - λ) State(t-1) (Eq. 2)."""
        chosen = read.combine(fetched, flags.alive, args.initial)
        mix = self.mix if args.mix is None else args.mix
        entering = mixed(self.recurrence.transition, mix, chosen, newest)
        return entering if flags.first is None else where_each(flags.first, newest, entering)

    def choose(self, args: _Arguments, x: _Step, newest: Any, window: Any, before: Any) -> tuple[Choice, Any]:
        """Make the choice of a step; return it, and the state of the time skip after it."""
        skip = self.recurrence.time_skip
        observation = observed(self.recurrence, newest)
        if window is not None:
            initial = args.initial and observed(self.recurrence, args.initial)
            rows = jnp.moveaxis(window, 0, 1)
            known = hist.Window(rows, self.K, alive=x.flags.alive, initial=initial)
            observation = known.observe(skip.observed)
        return skip.make_choice(args.skip, x.given, observation, before, self.mode)

    def followed(self, args: _Arguments, t: Int[Array, ""], alive: Any) -> hist.Window | None:
        """Return the inputs that followed the K states before step t; None if choices do not observe them."""
        if args.recent_inputs is None:
            return None
        rows = jnp.moveaxis(hist.read_window(args.recent_inputs, t, self.K), 0, 1)
        if alive is None:
            return hist.Window(rows, self.K)
        return hist.Window(rows, self.K, alive=alive + 1, initial=jnp.zeros_like(rows[:, 0]))

    def step(
        self,
        args: _Arguments,
        dense: Callable[..., Any],
        x: _Step,
        newest: Any,
        window: Float[Array, "K batch observed"] | None,
        before: Any,
        fetch: Callable[[Choice], Any],
        probes: Any = None,
        replays: bool = False,
    ) -> tuple[Any, _Step, Any]:
        """Take a step: return State(t), `x` with what was chosen and entered, and the time skip's new state.

        `before` is the time skip's state before the step, and `fetch` reads the states of a choice. `probes`
        are zeros, whose gradients are those of the floats of the choice and of the new state of the time
        skip; None if choices have no gradient. With `replays`, the choice and the state that entered are
        those in `x`.
        """
        flags = x.flags
        newest = self.begin(flags, newest, args.initial)
        if flags.alive is not None:
            fresh = self.recurrence.time_skip.init_skip_state(flags.alive.shape, newest[0].dtype)
            before = where_each(flags.alive == 0, fresh, before)
        choice, after = x.choice, before
        if not replays or self.differentiable:
            choice, after = self.choose(args, x, newest, window, before)
        if replays and self.differentiable:
            choice = _combined(with_value(_floats(x.choice), _floats(choice)), x.choice)
            choice, after = _combined(_added(_floats((choice, after)), probes), (choice, after))
        if flags.valid is not None:
            after = where_each(flags.valid, after, before)
        entering = newest
        if self.reaches_back:
            entering = self.enter(args, flags, self.read(choice), fetch(choice), newest)
        if replays:
            entering = with_value(x.entering, entering)
        mask = args.recurrent_mask
        kept = dropped(entering, mask, self.recurrence.transition)
        new = self.cell(dense, args.params, x.inputs, kept, newest, choice.update, mask)
        new = new if flags.valid is None else where_each(flags.valid, new, newest)
        return new, x._replace(entering=entering, choice=choice, before=before), after

    def cell(self, dense, params, inputs, entering, newest, update, recurrent_mask) -> Any:
        """Return the result of `cell_step`, called with a placeholder for each matrix."""
        transition, depth = params
        transition_inputs, depth_inputs, kept = jax.tree.unflatten(self.inputs, inputs)
        x = StepInputs(transition_inputs, depth=depth_inputs, zoneout_mask=kept)
        params = LayerParams(transition, depth=depth)
        return cell_step(params, x, entering, newest, update, self.recurrence, recurrent_mask, dense)


# Trees in which None stands for leaves that are not floats, or for gradients that are zero.


def _floats(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf if jnp.issubdtype(leaf.dtype, jnp.inexact) else None, tree)


def _with_none(function: Callable[..., Any], *trees: Any) -> Any:
    return jax.tree.map(function, *trees, is_leaf=lambda leaf: leaf is None)


def _combined(floats: Any, tree: Any) -> Any:
    """Return `tree` with its floats replaced."""
    return _with_none(lambda a, b: b if a is None else a, floats, tree)


def _added(a: Any, b: Any) -> Any:
    return _with_none(lambda a, b: b if a is None else a if b is None else a + b, a, b)


def _zeros_like(tree: Any) -> Any:
    """Return zeros with the shapes, the shardings and the varying axes of `tree`."""
    return jax.tree.map(zeros_like, tree)


def _placed(items: Sequence[Any], places: Iterable[int], values: Sequence[Any] | None = None) -> list[Any]:
    """Return a list of `items` with those at `places` replaced, by None if there are no `values`."""
    items = list(items)
    for n, place in enumerate(places):
        items[place] = None if values is None else values[n]
    return items


def _batch_major(tree: Any) -> Any:
    """Return a tree with the first two axes of each array exchanged; numbers stay."""
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1) if jnp.ndim(leaf) > 1 else leaf, tree)


def _time_major(tree: Any) -> Any:
    """Return `tree`; on a TPU, time is the slowest axis in memory too.

    A row of another layout, which code around the loop may want, costs a TPU up to four times as much.
    """
    constrain = lambda leaf: with_layout_constraint(leaf, Layout(tuple(range(leaf.ndim))))  # noqa: E731
    return lax.platform_dependent(tree, tpu=partial(jax.tree.map, constrain), default=lambda tree: tree)


# The forward loop.


class _Result(NamedTuple):
    """Result of an unroll."""

    histories: Any  # each array of the state over time, (K + time, batch, hidden)
    choices: Choice  # choices, (time, batch, ...)
    before: Any  # state of the time skip before each step, (time, batch, ...)
    last: Any  # state of the time skip after the last step


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(layer: _Layer, args: _Arguments) -> _Result:
    return _forward(layer, args, keep=False)[0]


def _run_forward(layer: _Layer, args: _Arguments):
    args = jax.tree.map(lambda leaf: leaf.value, args, is_leaf=lambda leaf: isinstance(leaf, CustomVJPPrimal))
    result, (results, entering, buffers) = _forward(layer, args, keep=True)
    inputs = _placed(args.inputs, layer.owned.values(), buffers)
    return result, (args._replace(inputs=inputs), result, results, entering)


def _forward(layer: _Layer, args: _Arguments, keep: bool) -> tuple[_Result, Any]:
    """Run all steps; return the result, and what the backward loop needs if `keep`.

    That is the results of products that overwrite no projected input, the averages that entered, and the
    projected inputs that other results have overwritten.
    """
    given, unpack = _packed(args.given)
    owned = layer.owned if keep else {}

    def step(state, x):
        t, newest, histories, before, buffers, rows = state
        given = unpack(x.given)._replace(followed=layer.followed(args, t, x.flags.alive))
        x = x._replace(inputs=_placed(x.inputs, owned.values(), rows), given=given)
        fetch = lambda choice: layer.read(choice).fetch(histories, t, x.flags.alive)  # noqa: E731
        results: list[Any] = []
        dense = keep_results(args.matrices, results)
        window = layer.window(histories, t)
        new, x, after = layer.step(args, dense, x, newest, window, before, fetch)
        made, kept = new, None
        if layer.reaches_back:
            histories = jax.tree.map(lambda rows, row: hist.write(rows, t + layer.K, row), histories, new)
            made = None
        if keep:
            buffers, rows = _overwrite(buffers, [results[n] for n in owned], t, 1)
            kept = _placed(results, owned), None if x.choice.weights is None else x.entering
        return (t + 1, new, histories, after, buffers, rows), (made, x.choice, x.before, kept)

    histories = None
    if layer.reaches_back:
        histories = jax.tree.map(lambda slots: jnp.pad(slots, ((0, args.time), (0, 0), (0, 0))), args.slots)
    buffers = [args.inputs[i] for i in owned.values()]
    rows = [hist.at(buffer, 0) for buffer in buffers]
    start = (jnp.zeros((), jnp.int32), args.newest, histories, args.skip_state, buffers, rows)
    xs = _Step(_placed(args.inputs, owned.values()), given, args.flags)
    end, (made, choices, before, kept) = lax.scan(step, start, xs)
    _, _, histories, last, buffers, _ = end
    if not layer.reaches_back:
        histories = jax.tree.map(lambda slots, rows: jnp.concatenate([slots, rows]), args.slots, made)
    return _Result(histories, choices, before, last), (*(kept or (None, None)), buffers)


def _overwrite(
    buffers: Sequence[Array], rows: Sequence[Array], t: Int[Array, ""], ahead: int
) -> tuple[Any, Any]:
    """Write row t of each buffer; then read the rows that the next iteration needs, at t + `ahead`.

    XLA copies a whole array if a loop writes to it and still reads the old version.
    """
    buffers = [hist.write(buffer, t, row) for buffer, row in zip(buffers, rows, strict=True)]
    return buffers, [hist.at(buffer, t + ahead) for buffer in buffers]


def _packed(given: SkipInputs) -> tuple[Any, Callable[[Any], SkipInputs]]:
    """Return the inputs of the choices as rows for a loop, and the function that unpacks those of a step.

    Floats stand side by side in one array, because each row that a step reads has its price on a TPU.
    """
    leaves, structure = jax.tree.flatten(given._replace(temperature=None))
    wide = [i for i, leaf in enumerate(_floats(leaves)) if leaf is not None and leaf.ndim == 3]
    if len({leaves[i].dtype for i in wide}) != 1:
        return given._replace(temperature=None), lambda row: row._replace(temperature=given.temperature)
    others = _placed(leaves, wide)
    ends = np.cumsum([leaves[i].shape[-1] for i in wide])[:-1]

    def unpack(row: Any) -> SkipInputs:
        together, others = row
        parts = jnp.split(together, ends, axis=-1)
        return structure.unflatten(_placed(others, wide, parts))._replace(temperature=given.temperature)

    return (_time_major(jnp.concatenate([leaves[i] for i in wide], axis=-1)), others), unpack


# The backward loop.


def _run_backward(layer: _Layer, residuals: Any, d: _Result) -> tuple[_Arguments]:
    args, result, results, entering = residuals
    # None for gradients that are known to be zero, and for those of whole numbers.
    is_zero = lambda leaf: isinstance(leaf, SymbolicZero) or leaf.dtype == jax.dtypes.float0  # noqa: E731
    d = _time_major(jax.tree.map(lambda leaf: None if is_zero(leaf) else leaf, d))
    if entering is None:
        entering = _entering(layer, args, result)
    end, (d_inputs, d_products, operands, d_made) = _backward_loop(layer, args, result, results, entering, d)
    _, d_newest, adjoints, d_skip_state, (d_params, d_mask, d_mix, d_initial), buffers, _ = end
    d_inputs = _placed(d_inputs, layer.owned.values(), _time_major(buffers))
    mask = None if args.recurrent_mask is None else args.recurrent_mask[None]
    h = dropped(entering, mask, layer.recurrence.transition)[0]
    d_matrices, d_params = _gradients_of_params(layer, args, d_params, h, d_inputs, d_products, operands)
    d_skip, d_given, d_recent_inputs = _gradients_of_choices(layer, args, result, d_made)
    if not layer.reaches_back:
        adjoints = _combined(d.histories, _zeros_like(result.histories))
    d_slots = jax.tree.map(lambda rows: rows[: layer.K], adjoints)
    if layer.reaches_back and args.flags.first is None:
        # The gradient of State(-1) has been added to `newest`.
        older = (jnp.arange(layer.K) < layer.K - 1)[:, None, None]
        d_slots = jax.tree.map(lambda rows: jnp.where(older, rows, 0), d_slots)
    gradients = _Arguments(
        tuple(d_inputs),
        d_matrices,
        d_params,
        newest=d_newest,
        slots=d_slots,
        skip_state=d_skip_state,
        skip=d_skip,
        given=d_given,
        mix=d_mix,
        recurrent_mask=d_mask,
        initial=d_initial,
        flags=None,
        recent_inputs=d_recent_inputs,
    )
    return (gradients,)


_run.defvjp(_run_forward, _run_backward, symbolic_zeros=True)


class _Variables(NamedTuple):
    """Arrays in which a step is differentiated, and their gradients; None for what a layer does not have."""

    products: list[Array]  # zeros that are added to the products, before their activations
    made: Any  # zeros that are added to the floats of the choice and of the new state of the time skip
    # What is the same at all steps: parameters, recurrent dropout mask, λ and initial state
    shared: tuple[Any, ...]
    inputs: list[Array]  # projected inputs
    newest: Any  # State(t-1)
    window: Any  # what the choice observes of the last K states
    reads: Any  # states that the choice reads
    before: Any  # floats of the time skip's state before the step


def _backward_loop(layer: _Layer, args: _Arguments, result: _Result, results: Any, entering: Any, d: _Result):
    """Run the backward loop; return its last carry and what it emits."""
    given, unpack = _packed(args.given)
    transposes = [times_transposed(w, args.newest[0].shape[0]) for w in args.matrices]
    owned = layer.owned

    def step(state, x: _Step):
        t, d_newest, adjoints, d_after, d_shared, buffers, rows = state
        x = x._replace(
            inputs=_placed(x.inputs, owned.values(), rows),
            results=_placed(x.results, owned, rows),
            given=unpack(x.given)._replace(followed=layer.followed(args, t, x.flags.alive)),
            d_new=_added(d_newest, x.d_new),
        )
        undone, operands = _undo_step(layer, args, transposes, result.histories, t, x, d_after)
        d_inputs, d_newest = undone.inputs, undone.newest
        for product, d_product in zip(layer.products, undone.products, strict=True):
            if product.input is not None:
                d_inputs[product.input] = d_inputs[product.input] + d_product
        buffers, rows = _overwrite(buffers, [d_inputs[i] for i in owned.values()], t, -1)
        if layer.reaches_back:
            adjoints, of_newest = _send_back(layer, adjoints, t, x, undone)
            if args.flags.first is not None:  # the history has another state in place of State(-1)
                of_newest = jax.tree.map(lambda row: jnp.where(t > 0, row, 0), of_newest)
            d_newest = jax.tree.map(jnp.add, d_newest, of_newest)
        d_before = _added(undone.before, x.d_before)
        d_shared = jax.tree.map(jnp.add, d_shared, undone.shared)
        emitted = _placed(d_inputs, owned.values()), _placed(undone.products, owned), operands, undone.made
        return (t - 1, d_newest, adjoints, d_before, d_shared, buffers, rows), emitted

    d_newest, adjoints = _zeros_like(args.newest), None
    d_new = jax.tree.map(lambda rows: rows[layer.K :], d.histories)
    if layer.reaches_back:
        adjoints = _combined(d.histories, _zeros_like(result.histories))
        d_newest = jax.tree.map(lambda adjoint: adjoint[-1], adjoints)
        d_new = layer.recurrence.transition.state(*(None for _ in adjoints))
    inputs, previous = _placed(args.inputs, owned.values()), _previous(args, result.histories)
    known = entering, result.choices, result.before, results
    steps = _Step(inputs, given, args.flags, previous, *known, d_new, d.choices, d.before)
    d_shared = _zeros_like((args.params, args.recurrent_mask, args.mix, args.initial))
    d_last = _combined(d.last, _zeros_like(_floats(args.skip_state)))
    buffers = [args.inputs[i] for i in owned.values()]
    rows = [hist.at(buffer, args.time - 1) for buffer in buffers]
    start = (jnp.full((), args.time - 1, jnp.int32), d_newest, adjoints, d_last, d_shared, buffers, rows)
    return lax.scan(step, start, steps, reverse=True)


def _undo_step(
    layer: _Layer,
    args: _Arguments,
    transposes: Any,
    histories: Any,
    t: Int[Array, ""],
    x: _Step,
    d_after: Any,
) -> tuple[_Variables, list[Array | None]]:
    """Return the gradients of a step, and the operands of its products, None for h.

    `d_after` is the gradient of the time skip's state after the step; those of its other results are in `x`.
    """

    def step(variables: _Variables):
        params, mask, mix, initial = variables.shared
        own = args._replace(params=params, recurrent_mask=mask, mix=mix, initial=initial)
        operands: list[Array] = []
        known = [*jax.tree.leaves(params), *variables.inputs]
        dense = replay_results(iter(x.results), iter(variables.products), transposes, known, operands)
        new, taken, after = layer.step(
            own,
            dense,
            x._replace(inputs=variables.inputs),
            variables.newest,
            variables.window,
            _combined(variables.before, x.before),
            fetch=lambda choice: layer.read(choice).again(histories, t, x.flags.alive, variables.reads),
            probes=variables.made,
            replays=True,
        )
        operands = [None if p.of_h else operand for p, operand in zip(layer.products, operands, strict=True)]
        return (new, _floats((taken.choice, after))), operands

    variables = _Variables(
        _zeros_like(x.results),
        _zeros_like(_floats((x.choice, x.before))) if layer.differentiable else None,
        (args.params, args.recurrent_mask, args.mix, args.initial),
        x.inputs,
        x.previous,
        layer.window(histories, t) if layer.differentiable else None,
        layer.read(x.choice).fetch(histories, t, x.flags.alive) if layer.reaches_back else None,
        _floats(x.before),
    )
    _, undo, operands = jax.vjp(step, variables, has_aux=True)
    d_choice = _combined(x.d_choice, _zeros_like(_floats(x.choice)))
    (undone,) = undo((layer.recurrence.transition.state(*x.d_new), (d_choice, d_after)))
    return undone, operands


def _send_back(layer: _Layer, adjoints: Any, t: Int[Array, ""], x: _Step, undone: _Variables):
    """Add the gradients of what a step read to `adjoints`; return these, and their rows State(t-1)."""
    adjoints, rows = layer.read(x.choice).send_back(adjoints, t, x.flags.alive, undone.reads)
    if undone.window is not None:
        names = layer.recurrence.time_skip.observed_arrays(layer.recurrence.transition)
        for name, part in zip(names, jnp.split(undone.window, len(names), -1), strict=True):
            adjoint, row = hist.add_window(getattr(adjoints, name), t, part)
            adjoints, rows = adjoints._replace(**{name: adjoint}), rows._replace(**{name: row})
    return adjoints, rows


def _entering(layer: _Layer, args: _Arguments, result: _Result) -> Any:
    """Return the state that entered each step, (time, batch, hidden) each; not for choices with weights."""
    newest = _previous(args, result.histories)
    if args.initial is not None:
        initial = jax.tree.map(lambda i, rows: jnp.broadcast_to(i, rows.shape), args.initial, newest)
        args = args._replace(initial=initial)
        newest = layer.begin(args.flags, newest, initial)
    if not layer.reaches_back:
        return newest
    read = layer.read(result.choices)
    return layer.enter(args, args.flags, read, read.fetch_all(result.histories, args.time), newest)


# Values of all steps at once.


def _previous(args: _Arguments, histories: Any) -> Any:
    """Return State(t-1) of all steps, (time, batch, hidden) each."""
    before = args.slots[0].shape[0] - 1
    rows = jax.tree.map(lambda history: history[before : before + args.time], histories)
    if args.flags.first is None:
        return rows
    # The carried state entered the first step; the history has the state that replaced it.
    return jax.tree.map(lambda newest, rows: hist.write(rows, 0, newest), args.newest, rows)


def _observations(recurrence: Recurrence, args: _Arguments, histories: Any) -> Any:
    """Return the observations of all steps, with the batch axis first."""
    skip, alive = recurrence.time_skip, args.flags.alive
    initial = args.initial and observed(recurrence, args.initial)[None]
    if skip.observed == "previous":
        rows = observed(recurrence, _previous(args, histories))
        return _batch_major(rows if alive is None else jnp.where((alive == 0)[..., None], initial, rows))
    history = observed(recurrence, histories)
    if alive is None:
        return hist.observed_in(_batch_major(history), skip.observed, skip.max_skip, args.time)
    rows, alive = _batch_major((history, alive))
    return hist.observed_in(rows, skip.observed, skip.max_skip, args.time, alive, initial[0])


def _recent_inputs(carry: SkipCarry, inputs: StepInputs) -> Float[Array, "rows batch in"] | None:
    """Return the inputs that choices observe, oldest first; None if they observe none."""
    if inputs.x is None:
        return None
    earlier = jnp.flip(jnp.moveaxis(carry.inputs, 1, 0), axis=0)
    return jnp.concatenate([earlier, inputs.x])


def _followed(
    recent_inputs: Float[Array, "rows batch in"] | None, K: int, alive: Int[Array, "time batch"] | None
) -> hist.Window | None:
    """Return the inputs that followed the last K states of all steps, with the batch axis first."""
    if recent_inputs is None:
        return None
    earlier, x = jnp.flip(recent_inputs[: K - 1], axis=0), recent_inputs[K - 1 :]
    return hist.followed_in(*_batch_major((earlier, x)), None if alive is None else alive.T)


def _last_inputs(
    flags: _Flags, recent_inputs: Float[Array, "rows batch in"], K: int, clock: _Clock
) -> Float[Array, "batch K_less_one in"]:
    """Return the last K - 1 inputs of each sequence, newest first, for the next carry."""
    lengths = None if flags.valid is None else flags.valid.sum(axis=0, dtype=jnp.int32)
    rows = hist.last_rows(recent_inputs, lengths, K - 1)
    if clock.last is not None:
        _, _, alive = clock.last
        rows = hist.living(rows, alive, jnp.zeros_like(recent_inputs[0]))
    return jnp.moveaxis(jnp.flip(rows, 0), 0, 1)


def _gradients_of_params(layer: _Layer, args: _Arguments, d_params, h, d_inputs, d_products, operands):
    """Return the gradients of the matrices and the vectors, each from all steps at once."""
    matrices: list[Any] = [None] * len(args.matrices)
    vectors, structure = jax.tree.flatten(d_params)
    for product, d_product, operand in zip(layer.products, d_products, operands, strict=True):
        d = d_inputs[product.input] if product.owns_input else d_product
        gradient = outer_products(h if product.of_h else operand, d, args.matrices[product.matrix])
        matrices[product.matrix] = _added(matrices[product.matrix], gradient)
        for i in product.vectors:
            vectors[i] = vectors[i] + jnp.sum(d, axis=(0, 1)).astype(vectors[i].dtype)
    return tuple(matrices), structure.unflatten(vectors)


def _gradients_of_choices(
    layer: _Layer, args: _Arguments, result: _Result, d_made: Any
) -> tuple[Any, Any, Any]:
    """Return the gradients of the time skip's parameters, of the choices' inputs and of `recent_inputs`."""
    if not layer.differentiable:
        return None, None, None
    observations = _observations(layer.recurrence, args, result.histories)
    given, before = _batch_major((args.given, result.before))

    def choose(skip, projected, temperature, recent_inputs):
        followed = _followed(recent_inputs, layer.K, args.flags.alive)
        own = given._replace(projected=projected, temperature=temperature, followed=followed)
        return _floats(layer.recurrence.time_skip.make_choice(skip, own, observations, before, layer.mode))

    _, undo = jax.vjp(choose, args.skip, given.projected, args.given.temperature, args.recent_inputs)
    d_skip, d_projected, d_temperature, d_recent_inputs = undo(_batch_major(d_made))
    d_given = SkipInputs(_batch_major(d_projected), temperature=d_temperature)
    return d_skip, d_given, d_recent_inputs


def _end(layer: _Layer, args: _Arguments, carry: SkipCarry, result: _Result, clock: _Clock) -> SkipCarry:
    """Return the carry after the last step of each sequence."""
    valid = args.flags.valid
    lengths = None if valid is None else valid.sum(axis=0, dtype=carry.step.dtype)
    slots = jax.tree.map(lambda h: hist.last_rows(h, lengths, layer.K), result.histories)
    step, key = carry.step + (args.time if lengths is None else lengths), carry.key
    if clock.last is not None:
        step, key, alive = clock.last
        slots = jax.tree.map(lambda rows, initial: hist.living(rows, alive, initial), slots, args.initial)
    slots = jax.tree.map(lambda rows: jnp.moveaxis(jnp.flip(rows, 0), 0, 1), slots)
    return carry._replace(slots=slots, step=step, key=key, skip_state=result.last)
