"""The fused unroll: the step of `recurrent_step`, scanned over time with a derivative of few passes over memory.

All arrays of the loop have the time axis first. The forward loop runs the phases `_prepare` (choose, and mix the
state that enters) and `_finish` (the cell). The backward loop differentiates the same phases with `jax.vjp`, and
differs from JAX's derivative of the scan in four ways:

* It takes the results of products from the forward loop, and leaves the gradients of all weights to products after
  the loop (`deferred.py`). So do choices: the gradients of an agent's weights come from all steps at once.
* It reads earlier states from the histories (`history.py`), and adds gradients of reads to one array in place. Per
  step it keeps nothing whose size grows with K, except the weights of choices that average K states.
* A sampled choice sends no gradient into the network, so it is not differentiated. Its log-probability and entropy
  are computed for all steps after the loop.
* With λ = 0 no choice changes a state: the loop is that of a layer without a skip.

Past the end of a sequence a step holds the state. So padding stays finite, whatever the transition.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax.functional import history as hist
from dynskip_jax.functional.deferred import Matrix, Product, find_products, keep_results, replay_results
from dynskip_jax.functional.keys import fold_in_each
from dynskip_jax.functional.policy import Policy
from dynskip_jax.functional.product import outer_products, times_transposed
from dynskip_jax.functional.recurrence import (
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
    skip_inputs,
)
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.functional.sharding import vary_along, varying_axes
from dynskip_jax.functional.time_skips import Choice, Previous, SkipInputs, TimeSkip
from dynskip_jax.functional.transitions import Transition


class _Flags(NamedTuple):
    """What is special about a step, (time, batch) each; None where nothing is.

    Attributes:
        valid: False past the end of a sequence.
        first: True where the carried state enters and is forgotten afterwards.
        alive: Number of steps since the sequence of a packed row began, 0 where it begins; K before any begins. So
            many slots contain states of the sequence, the others its initial state.
    """

    valid: Bool[Array, "time batch"] | None = None
    first: Bool[Array, "time batch"] | None = None
    alive: Int[Array, "time batch"] | None = None


class _Arguments(NamedTuple):
    """Arrays of an unroll; None for what a layer does not have.

    Attributes:
        inputs: Projected inputs, (time, batch, ...) each.
        matrices: Matrices that `dense` multiplies by.
        vectors: Other parameters of the transition and the depth skip.
        newest: State(-1), each array (batch, hidden).
        slots: The last K states, oldest first, each array (K, batch, hidden).
        skip_state: State of the time skip.
        skip: Parameters of the time skip.
        given: Inputs of the choices that need no state, (time, batch, ...).
        mix: λ as an array; None if it is a number, which is static.
        recurrent_mask: Recurrent dropout mask of the h that enters a step, (batch, hidden).
        initial: Initial state of the sequences that begin inside a packed row.
        flags: What is special about each step.
    """

    inputs: tuple[Array, ...]
    matrices: tuple[Array, ...]
    vectors: tuple[Array, ...]
    newest: Any
    slots: Any
    skip_state: Any
    skip: Any
    given: SkipInputs
    mix: Float[Array, ""] | None
    recurrent_mask: Float[Array, "batch hidden"] | None
    initial: Any
    flags: _Flags


class _Result(NamedTuple):
    """Result of an unroll.

    Attributes:
        histories: Each array of the state over time, (K + time, batch, hidden).
        choices: Choices, (time, batch, ...).
        skip_states: State of the time skip before each step, (time, batch, ...).
        last: State of the time skip after the last step.
    """

    histories: Any
    choices: Choice
    skip_states: Any
    last: Any


class _Prepared(NamedTuple):
    """Result of the first phase of a step.

    Attributes:
        entering: State that enters, before recurrent dropout.
        newest: State(t-1), or the initial state where a sequence begins.
        choice: Choice of the step.
        skip_state: State of the time skip before the step.
        after: State of the time skip after the step.
    """

    entering: Any
    newest: Any
    choice: Choice
    skip_state: Any
    after: Any


@dataclasses.dataclass(frozen=True)
class _Layer:
    """Static description of an unroll, and the two phases of its step.

    Attributes:
        recurrence: Time skip, transition and depth skip.
        mode: Mode of the policy.
        mix: λ; None if it is an array.
        differentiable: Whether gradients flow through choices.
        params: Pytree structure of the parameters of the transition and the depth skip.
        is_matrix: Whether each leaf of these parameters is a matrix.
        inputs: Pytree structure of the projected inputs.
        scan_unroll: Steps per iteration of the compiled loops.
        products: Calls of `dense` in a step.
    """

    recurrence: Recurrence
    mode: str
    mix: float | None
    differentiable: bool
    params: Any
    is_matrix: tuple[bool, ...]
    inputs: Any
    scan_unroll: int
    products: tuple[Product, ...] = ()

    @property
    def skip(self) -> TimeSkip:
        """Time skip."""
        return self.recurrence.time_skip

    @property
    def transition(self) -> Transition:
        """Transition."""
        return self.recurrence.transition

    @property
    def K(self) -> int:
        """Number of slots."""
        return self.skip.max_skip

    @property
    def reaches_back(self) -> bool:
        """Whether a state other than State(t-1) can enter a step."""
        return self.skip.fixed_slot != 0

    @property
    def _own(self) -> tuple[int, ...]:
        """Indices of the projected inputs that the result of their only product overwrites."""
        return tuple(product.input for product in self.products if product.owns_input)

    def divide(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the projected inputs that results overwrite, in the order of products; and all, without these."""
        others = [None if i in self._own else leaf for i, leaf in enumerate(inputs)]
        return [inputs[i] for i in self._own], others

    def merge(self, own: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """Return the inputs that `divide` divided."""
        values = dict(zip(self._own, own, strict=False))
        return [values.get(i, leaf) for i, leaf in enumerate(others)]

    def divide_results(self, results: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the results that overwrite projected inputs, and the others."""
        pairs = list(zip(self.products, results, strict=True))
        return [y for p, y in pairs if p.owns_input], [y for p, y in pairs if not p.owns_input]

    def merge_results(self, own: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """Return the results of all products that `divide_results` divided."""
        own, others = iter(own), iter(others)
        return [next(own if product.owns_input else others) for product in self.products]

    @property
    def observed(self) -> int:
        """Index of the state's array that choices observe."""
        return self.transition.state._fields.index(self.skip.observed_array(self.transition))

    @property
    def sees_window(self) -> bool:
        """Whether choices observe more than State(t-1)."""
        return self.skip.observed != "previous"

    def begin(self, flags: _Flags, newest: Any, initial: Any) -> Any:
        """Return State(t-1), or the initial state where a sequence begins inside a packed row."""
        return newest if flags.alive is None else where_each(flags.alive == 0, initial, newest)

    def prepare(
        self,
        args: _Arguments,
        flags: _Flags,
        given: SkipInputs,
        newest: Any,
        window: Float[Array, "K batch hidden"] | None,
        skip_state: Any,
        mix: Float[Array, ""] | None,
        initial: Any,
        fetch: Callable[[Choice], Any],
        choice: Choice | None = None,
        probes: Sequence[Array] | None = None,
    ) -> _Prepared:
        """Make the choice of a step, and return the state that enters.

        Args:
            args: Arrays of the unroll.
            flags: What is special about the step.
            given: Inputs of the choice that need no state.
            newest: State(t-1).
            window: The K states before the step of the array that choices observe; None if only State(t-1) is.
            skip_state: State of the time skip.
            mix: λ as an array, or None.
            initial: See `_Arguments`.
            fetch: Function that reads what a choice chose.
            choice: Choice, if it is known and not to be made again.
            probes: Zeros to add to the floats of the choice and of the time skip's new state, whose gradients are
                those of these floats.
        """
        newest = self.begin(flags, newest, initial)
        if flags.alive is not None:
            fresh = self.skip.init_skip_state(flags.alive.shape, newest[0].dtype)
            skip_state = where_each(flags.alive == 0, fresh, skip_state)
        after = skip_state
        if choice is None:
            observation = newest[self.observed]
            if window is not None:
                window = _living(window, flags.alive, initial and initial[self.observed])
                observation = hist.Window(jnp.moveaxis(window, 0, 1), self.K).observe(self.skip.observed)
            choice, after = self.skip.choose(args.skip, given, observation, skip_state, self.mode)
            if probes is not None:
                made = _floats((choice, after))
                choice, after = _with_floats(
                    (choice, after), [a + b for a, b in zip(made, probes, strict=True)]
                )
            if flags.valid is not None:
                after = where_each(flags.valid, after, skip_state)
        entering = newest
        if self.reaches_back:
            fetched = self._combined(choice, fetch(choice), flags, initial)
            entering = self._enter(mix, fetched, newest, flags)
        return _Prepared(entering, newest, choice, skip_state, after)

    def _enter(self, mix: Float[Array, ""] | None, fetched: Any, newest: Any, flags: _Flags) -> Any:
        entering = mixed(self.transition, self.mix if mix is None else mix, fetched, newest)
        return entering if flags.first is None else where_each(flags.first, newest, entering)

    def entering(self, args: _Arguments, histories: Any, choices: Choice) -> Any:
        """Return the state that entered each step, (time, batch, hidden) each; not for choices with weights."""
        newest, flags, initial = _previous(self, args, histories), args.flags, args.initial
        if initial is not None:
            initial = jax.tree.map(lambda i, rows: jnp.broadcast_to(i, rows.shape), initial, newest)
            newest = where_each(flags.alive == 0, initial, newest)
        if not self.reaches_back:
            return newest
        slot = choices.slot if self.skip.fixed_slot is None else self.skip.fixed_slot
        time = args.inputs[0].shape[0]
        fetched = jax.tree.map(lambda history: hist.read_all_slots(history, self.K, slot, time), histories)
        return self._enter(args.mix, self._combined(choices, fetched, flags, initial), newest, flags)

    def reads_mean(self, choice: Choice) -> bool:
        """Return whether a linear mean of all K states enters."""
        return choice.weights is not None and choice.slot is None and self.transition.averages == "linear"

    def fetch(self, flags: _Flags, histories: Any, t: Int[Array, ""], choice: Choice) -> Any:
        """Read what `choice` chose: one state, some states, the window of K states, or their linear mean."""
        if self.reads_mean(choice):
            weights = _living_weights(choice.weights, flags.alive)
            return jax.tree.map(lambda history: hist.average(weights, history, t), histories)
        if choice.weights is not None and choice.slot is None:
            return jax.tree.map(lambda history: hist.read_window(history, t, self.K), histories)
        slot = choice.slot if self.skip.fixed_slot is None else self.skip.fixed_slot
        return jax.tree.map(lambda history: hist.read_slots(history, t, self.K, slot), histories)

    def send_back(self, flags: _Flags, adjoints: Any, t: Int[Array, ""], choice: Choice, d: Any) -> Any:
        """Apply the transpose of `fetch`: add `d` to the gradients of the histories.

        Returns:
            The gradients of the histories, and their rows State(t-1).
        """
        slot = choice.slot if self.skip.fixed_slot is None else self.skip.fixed_slot
        if self.reads_mean(choice):
            add = partial(hist.add_average, weights=_living_weights(choice.weights, flags.alive))
        elif slot is None:
            add = hist.add_window
        else:
            add = partial(hist.add_slots, K=self.K, slot=slot)
        pairs = [add(adjoint, t, d=d) for adjoint, d in zip(adjoints, d, strict=True)]
        return tuple(self.transition.state(*part) for part in zip(*pairs, strict=True))

    def fetch_again(
        self, flags: _Flags, histories: Any, t: Int[Array, ""], choice: Choice
    ) -> tuple[Any, Any]:
        """Return the differentiable reads of a step, and the function that turns them into its `fetch`."""
        reads = self.fetch(flags, histories, t, choice)
        if not self.reads_mean(choice):
            return reads, lambda reads: lambda choice: reads

        @jax.custom_vjp
        def mean(weights, reads):
            return reads

        def backward(_, d):
            return hist.average_adjoint(tuple(histories), t, tuple(d), self.K), d

        mean.defvjp(lambda weights, reads: (reads, None), backward)
        return reads, lambda reads: lambda choice: mean(_living_weights(choice.weights, flags.alive), reads)

    def _combined(self, choice: Choice, states: Any, flags: _Flags, initial: Any) -> Any:
        """Return the state that a choice selects, or the average of its states, from the result of `fetch`."""
        if self.reads_mean(choice):
            if initial is None:
                return states
            rest = jnp.sum(
                choice.weights - _living_weights(choice.weights, flags.alive), axis=1, keepdims=True
            )
            return jax.tree.map(lambda mean, initial: mean + rest * initial, states, initial)
        if choice.weights is not None and choice.slot is None:
            if initial is not None:
                states = jax.tree.map(lambda s, i: _living(s, flags.alive, i), states, initial)
            states = jax.tree.map(lambda window: jnp.moveaxis(jnp.flip(window, 0), 0, 1), states)
        elif initial is not None:
            slot = choice.slot if self.skip.fixed_slot is None else self.skip.fixed_slot
            several = jnp.ndim(slot) > 1
            alive = slot < (flags.alive[:, None] if several else flags.alive)
            initial = jax.tree.map(lambda i: i[:, None] if several else i, initial)
            filled = jax.tree.map(lambda i, s: jnp.broadcast_to(i, s.shape), initial, states)
            states = where_each(alive, states, filled)
        return states if choice.weights is None else self.transition.average_states(choice.weights, states)

    def finish(
        self,
        dense: Callable[..., Any],
        flags: _Flags,
        vectors: Sequence[Array],
        inputs: Sequence[Array],
        entering: Any,
        newest: Any,
        update: Float[Array, " batch"] | None,
        recurrent_mask: Float[Array, "batch hidden"] | None,
    ) -> Any:
        """Return the new state of a step; past the end of a sequence, State(t-1)."""
        entering = dropped(entering, recurrent_mask, self.transition)
        new = self.cell(dense, vectors, inputs, entering, newest, update, recurrent_mask)
        return new if flags.valid is None else where_each(flags.valid, new, newest)

    def cell(self, dense, vectors, inputs, entering, newest, update, recurrent_mask) -> Any:
        """Return the result of `cell_step`, called with a placeholder for each matrix."""
        handles, vectors = map(Matrix, range(sum(self.is_matrix))), iter(vectors)
        leaves = [next(handles) if matrix else next(vectors) for matrix in self.is_matrix]
        transition, depth = jax.tree.unflatten(self.params, leaves)
        transition_inputs, depth_inputs, kept = jax.tree.unflatten(self.inputs, inputs)
        step_inputs = StepInputs(transition_inputs, depth=depth_inputs, zoneout_mask=kept)
        params = LayerParams(transition, depth=depth)
        return cell_step(
            params, step_inputs, entering, newest, update, self.recurrence, recurrent_mask, dense
        )


def _living(
    window: Float[Array, "K batch hidden"], alive: Int[Array, " batch"] | None, initial: Any
) -> Array:
    """Return the window, oldest first, with the initial state in the slots before the sequence."""
    if alive is None:
        return window
    slots = jnp.arange(window.shape[0])[::-1, None, None]
    return jnp.where(slots < alive[None, :, None], window, initial[None])


def _living_weights(
    weights: Float[Array, "batch K"], alive: Int[Array, " batch"] | None
) -> Float[Array, "batch K"]:
    """Return the weights, with zeros for slots before the sequence."""
    if alive is None:
        return weights
    return jnp.where(jnp.arange(weights.shape[1])[None] < alive[:, None], weights, 0)


# Floats of trees that contain whole numbers too.


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def _floats(tree: Any) -> list[Array]:
    return [leaf for leaf in jax.tree.leaves(tree) if _is_float(leaf)]


def _with_floats(tree: Any, floats: Sequence[Array]) -> Any:
    """Return `tree` with its floating leaves replaced."""
    leaves, structure = jax.tree.flatten(tree)
    values = iter(floats)
    return structure.unflatten([next(values) if _is_float(leaf) else leaf for leaf in leaves])


def _cotangents(primal: Any, d: Any) -> list[Array | None]:
    """Return the cotangents of the floats of `primal`; None where they are known to be zero."""
    known = jax.tree.leaves(d, is_leaf=lambda leaf: isinstance(leaf, SymbolicZero))
    pairs = zip(jax.tree.leaves(primal), known, strict=True)
    return [None if isinstance(b, SymbolicZero) else b for a, b in pairs if _is_float(a)]


def _filled(primals: Sequence[Array], d: Sequence[Array | None]) -> list[Array]:
    return [_zeros_like(a) if b is None else b for a, b in zip(primals, d, strict=True)]


def _zeros_like(array: Array) -> Array:
    """Return zeros of the shape, the sharding and the varying axes of `array`."""
    return vary_along(jnp.zeros_like(array), varying_axes(array))


def _cotangent_tree(primal: Any, floats: Sequence[Array]) -> Any:
    """Return a cotangent of `primal` from those of its floats."""
    zeros = jax.tree.map(lambda a: a if _is_float(a) else np.zeros(a.shape, jax.dtypes.float0), primal)
    leaves, structure = jax.tree.flatten(zeros)
    values = iter(floats)
    flags = [_is_float(leaf) for leaf in jax.tree.leaves(primal)]
    return structure.unflatten([next(values) if f else leaf for leaf, f in zip(leaves, flags, strict=True)])


# The two loops.


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(layer: _Layer, args: _Arguments) -> _Result:
    return _forward(layer, args, keep=False)[0]


def _run_forward(layer: _Layer, args: _Arguments):
    args = jax.tree.map(lambda leaf: leaf.value, args, is_leaf=lambda leaf: hasattr(leaf, "perturbed"))
    result, (kept, buffers) = _forward(layer, args, keep=True)
    _, inputs = layer.divide(args.inputs)
    return result, (args._replace(inputs=layer.merge(buffers, inputs)), result, kept)


def _forward(layer: _Layer, args: _Arguments, keep: bool) -> tuple[_Result, Any]:
    """Run all steps; return the result, and what the backward loop needs besides it."""
    time = args.inputs[0].shape[0]

    def step(state, x):
        t, newest, histories, skip_state, buffers, rows = state
        inputs, given, flags = x
        inputs = layer.merge(rows, inputs)
        window = hist.read_window(histories[layer.observed], t, layer.K) if layer.sees_window else None
        given = unpack(given)
        prepared = layer.prepare(
            args,
            flags,
            given,
            newest,
            window,
            skip_state,
            args.mix,
            args.initial,
            fetch=lambda choice: layer.fetch(flags, histories, t, choice),
        )
        results: list[Array] = []
        new = layer.finish(
            keep_results(args.matrices, results),
            flags,
            args.vectors,
            inputs,
            prepared.entering,
            prepared.newest,
            prepared.choice.update,
            args.recurrent_mask,
        )
        made = new
        if layer.reaches_back:
            histories = jax.tree.map(lambda h, row: hist.write(h, t + layer.K, row), histories, new)
            made = None
        kept = None
        if keep:
            own, results = layer.divide_results(results)
            buffers, rows = _overwrite(buffers, own, t, 1)
            kept = results, prepared.entering if prepared.choice.weights is not None else None
        after = (t + 1, new, histories, prepared.after, buffers, rows)
        return after, (made, prepared.choice, prepared.skip_state, kept)

    histories = None
    if layer.reaches_back:
        histories = jax.tree.map(lambda slots: jnp.pad(slots, ((0, time), (0, 0), (0, 0))), args.slots)
    buffers, inputs = layer.divide(args.inputs) if keep else ((), args.inputs)
    rows = [hist.at(buffer, 0) for buffer in buffers]
    given, unpack = _packed(args.given)
    xs = (inputs, given, args.flags)
    start = (jnp.zeros((), jnp.int32), args.newest, histories, args.skip_state, buffers, rows)
    end, (made, choices, skip_states, kept) = lax.scan(step, start, xs, unroll=layer.scan_unroll)
    _, _, histories, last, buffers, _ = end
    if not layer.reaches_back:
        histories = jax.tree.map(lambda slots, rows: jnp.concatenate([slots, rows]), args.slots, made)
    return _Result(histories, choices, skip_states, last), (kept, buffers)


def _packed(given: SkipInputs) -> tuple[Any, Callable[[Any], SkipInputs]]:
    """Return the inputs of the choices for a loop, and a function that restores them in a step.

    Floats stand side by side in one array, of which a step reads one row: on a TPU each read has its price.
    """
    leaves, structure = jax.tree.flatten(given._replace(temperature=None))
    wide = [i for i, leaf in enumerate(leaves) if leaf.ndim == 3 and _is_float(leaf)]
    dtypes = {leaves[i].dtype for i in wide}
    if len(wide) < 2 or len(dtypes) > 1:
        return leaves, lambda row: structure.unflatten(row)._replace(temperature=given.temperature)
    others = [None if i in wide else leaf for i, leaf in enumerate(leaves)]
    ends = np.cumsum([leaves[i].shape[-1] for i in wide])[:-1]

    def unpack(row):
        together, others = row
        parts = dict(zip(wide, jnp.split(together, ends, axis=-1), strict=True))
        return structure.unflatten([parts.get(i, leaf) for i, leaf in enumerate(others)])._replace(
            temperature=given.temperature
        )

    return (jnp.concatenate([leaves[i] for i in wide], axis=-1), others), unpack


def _overwrite(
    buffers: Sequence[Array], values: Sequence[Array], t: Int[Array, ""], ahead: int
) -> tuple[Any, Any]:
    """Write row t of each buffer; then read the rows that the next iteration needs, at t + `ahead`.

    XLA copies a whole array if a loop writes to it and still reads the old version.
    """
    buffers = [hist.write(buffer, t, value) for buffer, value in zip(buffers, values, strict=True)]
    return buffers, [hist.at(buffer, t + ahead) for buffer in buffers]


class _Steps(NamedTuple):
    """Values of all steps that the backward loop reads, (time, batch, ...) each."""

    inputs: Any
    given: Any
    flags: Any
    results: Any
    entering: Any
    previous: Any
    choices: Any
    skip_states: Any
    d_states: Any
    d_choices: Any
    d_skip_states: Any


class _Sums(NamedTuple):
    """Gradients that the backward loop adds up."""

    vectors: Any
    recurrent_mask: Any
    mix: Any
    initial: Any


def _run_backward(layer: _Layer, residuals: Any, d: _Result) -> tuple[_Arguments]:
    args, result, (results, entering) = residuals
    K, time = layer.K, args.inputs[0].shape[0]
    given, unpack = _packed(args.given)
    histories = result.histories
    if entering is None:
        entering = layer.entering(args, histories, result.choices)
    transposes = [times_transposed(w, args.newest[0].shape[0]) for w in args.matrices]
    d_histories = _cotangents(histories, d.histories)
    d_choices = _cotangents(result.choices, d.choices)
    start_adjoints, d_states = None, [None if a is None else a[K:] for a in d_histories]
    if layer.reaches_back:
        start_adjoints, d_states = layer.transition.state(*_filled(histories, d_histories)), None

    def step(state, x: _Steps):
        t, d_newest, adjoints, d_skip_state, sums, buffers, rows = state
        results, inputs = layer.merge_results(rows, x.results), layer.merge(rows, x.inputs)
        d_new = d_newest
        if not layer.reaches_back:
            d_new = [a if b is None else a + b for a, b in zip(d_newest, x.d_states, strict=True)]
        newest = layer.begin(x.flags, x.previous, args.initial)

        def finish(probes, vectors, inputs, entering, newest, update, mask):
            operands: list[Array] = []
            dense = replay_results(iter(results), iter(probes), transposes, [*vectors, *inputs], operands)
            new = layer.finish(dense, x.flags, vectors, inputs, entering, newest, update, mask)
            pairs = zip(layer.products, operands, strict=True)
            return new, [operand for product, operand in pairs if not product.of_h]

        floats = (args.vectors, inputs, x.entering, newest, x.choices.update, args.recurrent_mask)
        probes = [_zeros_like(y) for y in results]
        _, undo, operands = jax.vjp(finish, probes, *floats, has_aux=True)
        d_probes, d_vectors, d_inputs, d_entering, d_newest, d_update, d_mask = undo(
            layer.transition.state(*d_new)
        )
        d_inputs = list(d_inputs)
        for product, d_probe in zip(layer.products, d_probes, strict=True):
            if product.input is not None:
                d_inputs[product.input] = d_inputs[product.input] + d_probe
        _, d_products = layer.divide_results(d_probes)
        d_own, d_inputs = layer.divide(d_inputs)
        buffers, rows = _overwrite(buffers, d_own, t, -1)

        choice, skip_floats = x.choices, _floats(x.skip_states)

        def prepare(newest, window, reads, skip_floats, mix, initial, probes):
            prepared = layer.prepare(
                args,
                x.flags,
                unpack(x.given),
                newest,
                window,
                _with_floats(x.skip_states, skip_floats),
                mix,
                initial,
                fetch=refetch(reads),
                choice=None if layer.differentiable else choice,
                probes=probes,
            )
            if not layer.differentiable:
                return prepared.entering, prepared.newest, [], []
            return prepared.entering, prepared.newest, _floats(prepared.choice), _floats(prepared.after)

        reads, refetch = None, lambda reads: None
        if layer.reaches_back:
            reads, refetch = layer.fetch_again(x.flags, histories, t, choice)
        window, probes = None, None
        if layer.differentiable:
            probes = [_zeros_like(a) for a in (*_floats(choice), *skip_floats)]
            if layer.sees_window:
                window = hist.read_window(histories[layer.observed], t, K)
        (*_, made, after), undo = jax.vjp(
            prepare, x.previous, window, reads, skip_floats, args.mix, args.initial, probes
        )
        d_made = _choice_cotangents(choice, x.d_choices, d_update) if layer.differentiable else []
        d_after = d_skip_state if layer.differentiable else []
        d_newest, d_window, d_reads, d_skip_floats, d_mix, d_initial, d_probes = undo(
            (d_entering, d_newest, d_made, d_after)
        )
        if layer.reaches_back:
            adjoints, newest_rows = layer.send_back(x.flags, adjoints, t, choice, d_reads)
            if d_window is not None:
                seen, row = hist.add_window(adjoints[layer.observed], t, d_window)
                field = adjoints._fields[layer.observed]
                adjoints, newest_rows = (
                    adjoints._replace(**{field: seen}),
                    newest_rows._replace(**{field: row}),
                )
            if args.flags.first is not None:  # the history has another state in place of State(-1)
                newest_rows = jax.tree.map(lambda row: jnp.where(t > 0, row, 0), newest_rows)
            d_newest = jax.tree.map(jnp.add, d_newest, newest_rows)
        if layer.differentiable:
            d_skip_state = [
                a if b is None else a + b for a, b in zip(d_skip_floats, x.d_skip_states, strict=True)
            ]
        d_sums = _Sums(d_vectors, d_mask, d_mix, d_initial)
        sums = jax.tree.map(jnp.add, sums, d_sums)
        after = (t - 1, d_newest, adjoints, d_skip_state, sums, buffers, rows)
        return after, (d_inputs, d_products, operands, d_probes)

    buffers, inputs = layer.divide(args.inputs)
    steps = _Steps(
        inputs,
        given,
        args.flags,
        results,
        entering,
        _previous(layer, args, histories),
        result.choices,
        result.skip_states,
        d_states,
        d_choices,
        _cotangents(result.skip_states, d.skip_states),
    )
    sums = jax.tree.map(_zeros_like, _Sums(args.vectors, args.recurrent_mask, args.mix, args.initial))
    d_last = _filled(_floats(args.skip_state), _cotangents(result.last, d.last))
    d_newest = jax.tree.map(_zeros_like, args.newest)
    if layer.reaches_back:
        d_newest = jax.tree.map(lambda adjoint: adjoint[-1], start_adjoints)
    rows = [hist.at(buffer, time - 1) for buffer in buffers]
    start = (jnp.full((), time - 1, jnp.int32), d_newest, start_adjoints, d_last, sums, buffers, rows)
    end, (d_inputs, d_products, operands, d_made) = lax.scan(
        step, start, steps, reverse=True, unroll=layer.scan_unroll
    )
    _, d_newest, adjoints, d_skip_state, sums, buffers, _ = end
    d_inputs = layer.merge(buffers, d_inputs)
    mask = args.recurrent_mask
    h = dropped(entering, None if mask is None else mask[None], layer.transition)[0]
    d_matrices, d_vectors = _gradients_of_params(layer, args, sums.vectors, h, d_inputs, d_products, operands)
    d_skip, d_given = _gradients_of_choices(layer, args, result, d_made)
    d_slots = adjoints if layer.reaches_back else layer.transition.state(*_filled(histories, d_histories))
    d_slots = jax.tree.map(lambda a: a[:K], d_slots)
    if (
        layer.reaches_back and args.flags.first is None
    ):  # the gradient of State(-1) has been added to `newest`
        d_slots = jax.tree.map(lambda a: a.at[K - 1].set(0), d_slots)
    d_args = _Arguments(
        inputs=tuple(d_inputs),
        matrices=d_matrices,
        vectors=d_vectors,
        newest=d_newest,
        slots=d_slots,
        skip_state=_cotangent_tree(args.skip_state, d_skip_state),
        skip=d_skip,
        given=d_given,
        mix=sums.mix,
        recurrent_mask=sums.recurrent_mask,
        initial=sums.initial,
        flags=jax.tree.map(lambda a: np.zeros(a.shape, jax.dtypes.float0), args.flags),
    )
    return (d_args,)


_run.defvjp(_run_forward, _run_backward, symbolic_zeros=True)


def _previous(layer: _Layer, args: _Arguments, histories: Any) -> Any:
    """Return State(t-1) of all steps, (time, batch, hidden) each."""
    K, time = layer.K, args.inputs[0].shape[0]
    rows = jax.tree.map(lambda history: history[K - 1 : K - 1 + time], histories)
    if args.flags.first is None:
        return rows
    # The carried state entered the first step; the history has the state that replaced it.
    return jax.tree.map(lambda newest, rows: rows.at[0].set(newest), args.newest, rows)


def _choice_cotangents(choice: Choice, d: Sequence[Array | None], d_update: Array | None) -> list[Array]:
    """Return the gradients of the floats of a choice: from the outputs, and of the update from the cell."""
    filled = _with_floats(choice, _filled(_floats(choice), d))
    if d_update is not None:
        filled = filled._replace(update=filled.update + d_update)
    return _floats(filled)


def _gradients_of_params(layer: _Layer, args: _Arguments, d_vectors, h, d_inputs, d_products, operands):
    """Return the gradients of the matrices and the vectors, each from all steps at once."""
    matrices: list[Array | None] = [None] * len(args.matrices)
    vectors, own, others = list(d_vectors), iter(d_products), iter(operands)
    for product in layer.products:
        d = d_inputs[product.input] if product.owns_input else next(own)
        x = h if product.of_h else next(others)
        gradient = outer_products(x, d, args.matrices[product.matrix])
        before = matrices[product.matrix]
        matrices[product.matrix] = gradient if before is None else before + gradient
        for i in product.vectors:
            vectors[i] = vectors[i] + jnp.sum(d, axis=(0, 1)).astype(vectors[i].dtype)
    return tuple(_filled(args.matrices, matrices)), tuple(vectors)


def _gradients_of_choices(layer: _Layer, args: _Arguments, result: _Result, d_made: Any):
    """Return the gradients of the time skip's parameters and of the choices' inputs, from all steps at once."""
    zeros = jax.tree.map(
        lambda a: _zeros_like(a) if _is_float(a) else np.zeros(a.shape, jax.dtypes.float0),
        (args.skip, args.given),
    )
    if not layer.differentiable:
        return zeros
    observations = _observations(layer, args, result.histories)
    given = _batch_major(args.given)
    skip_states = _batch_major(result.skip_states)

    def choose(skip, projected, temperature):
        own = given._replace(projected=projected, temperature=temperature)
        return layer.skip.choose(skip, own, observations, skip_states, layer.mode)

    made, undo = jax.vjp(choose, args.skip, given.projected, args.given.temperature)
    d_skip, d_projected, d_temperature = undo(_cotangent_tree(made, _batch_major(d_made)))
    d_given = zeros[1]._replace(projected=_batch_major(d_projected), temperature=d_temperature)
    return d_skip, d_given


def _batch_major(tree: Any) -> Any:
    """Return a tree with the first two axes of each leaf exchanged; numbers stay."""
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1) if jnp.ndim(leaf) > 1 else leaf, tree)


def _observations(layer: _Layer, args: _Arguments, histories: Any) -> Any:
    """Return the observations of all steps, with the batch axis first."""
    history, K, time = histories[layer.observed], layer.K, args.inputs[0].shape[0]
    alive = args.flags.alive
    if not layer.sees_window:
        rows = _previous(layer, args, histories)[layer.observed]
        if alive is not None:
            rows = jnp.where((alive == 0)[..., None], args.initial[layer.observed][None], rows)
        return jnp.swapaxes(rows, 0, 1)
    if alive is None:
        return hist.observed_in(jnp.swapaxes(history, 0, 1), layer.skip.observed, K, time)
    windows = jnp.stack([history[k : k + time] for k in range(K)])
    slots = jnp.arange(K)[::-1, None, None, None]
    windows = jnp.where(slots < alive[None, ..., None], windows, args.initial[layer.observed][None, None])
    return hist.Window(jnp.transpose(windows, (2, 1, 0, 3)), K).observe(layer.skip.observed)


# The unroll of a layer.


def fused_unroll(
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    recurrence: Recurrence,
    *,
    seq_lengths: Int[Array, " batch"] | None = None,
    initial: Any = None,
    policy: Policy = Policy(),  # noqa: B008 (immutable)
    return_cell_state: bool = False,
    scan_unroll: int = 1,
) -> tuple[SkipCarry, SkipOutput]:
    """Compute the results of a scan of `recurrent_step` over `inputs`.

    Reverse-mode derivatives of any order work, and so does forward mode over reverse mode (`jax.hessian`, or
    `jax.jvp` of `jax.grad`). Forward mode alone (`jax.jvp`, `jax.jacfwd`) needs the reference unroll.

    Args:
        params: Weights of the layer.
        carry: State to start from.
        inputs: Result of `project_inputs` for all steps, (time, batch, ...); there is at least one step.
        recurrence: Time skip, transition and depth skip of the layer.
        seq_lengths: True lengths, (batch,), from which `inputs.valid` was computed; None for full rows.
        initial: Initial state of packed sequences, each array (batch, hidden). Default: zeros.
        policy: How choices are made.
        return_cell_state: Whether to return the cell state of each step in the outputs.
        scan_unroll: Steps per iteration of the compiled loops.

    Returns:
        The last carry of each sequence, and the outputs of all steps, (batch, time, ...).

    Raises:
        OutOfReach: If the transition calls `dense` inside `jax.checkpoint`, `lax.scan` or `jax.jit`.
    """
    skip, dtype = recurrence.time_skip, carry.slots[0].dtype
    inputs = in_dtype_of(carry, inputs)
    mix = in_dtype(skip.mix if policy.mix is None else policy.mix, dtype)
    clock = _clock(carry, inputs, skip.max_skip)
    given = _given(recurrence, inputs, clock, dtype, policy)
    if _choices_are_inert(recurrence, mix, carry, inputs):
        options = dict(return_cell_state=return_cell_state, scan_unroll=scan_unroll)
        return _unroll_without_skip(
            params, carry, inputs, recurrence, given, policy.mode, seq_lengths=seq_lengths, **options
        )
    layer, args = _problem(
        params, carry, inputs, recurrence, given, mix, initial, clock, policy.mode, scan_unroll
    )
    result = _run(layer, args)
    end = _end(layer, args, carry, result, clock, seq_lengths)
    fields = layer.transition.state._fields
    observations = _observations(layer, args, result.histories)
    before, choices = _batch_major((result.skip_states, result.choices))
    decision = skip.decide(params.skip, _batch_major(given), observations, before, choices, policy.mode)
    h, cell_state = _batch_major(result.histories[0][layer.K :]), None
    if return_cell_state:
        index = fields.index(layer.transition.cell_state)
        cell_state = _batch_major(result.histories[index][layer.K :])
    output = SkipOutput(h, decision, cell_state)
    if inputs.valid is not None:
        output = where_each(_batch_major(inputs.valid), output, 0)
    return end, output


class _Clock(NamedTuple):
    """Step numbers and keys of all steps, and after the last one.

    Attributes:
        step: Number of steps before each step, (time, batch).
        key: PRNG key of each step, (time, batch); None without keys.
        alive: See `_Flags`.
        last: Step number, key and `alive` after the last step of each sequence; None if no row is packed.
    """

    step: Int[Array, "time batch"]
    key: Any
    alive: Int[Array, "time batch"] | None = None
    last: Any = None


def _clock(carry: SkipCarry, inputs: StepInputs, K: int) -> _Clock:
    """Number the steps. Where a sequence begins inside a row, numbers begin again at 0 with a new key."""
    time, batch = jax.tree.leaves(inputs.transition)[0].shape[:2]
    if inputs.restart is None:
        steps = carry.step[None] + jnp.arange(time, dtype=carry.step.dtype)[:, None]
        return _Clock(steps, None if carry.key is None else jnp.broadcast_to(carry.key, (time, batch)))

    def tick(state, x):
        restart, valid = x
        step, key, alive = state
        begun = (
            jnp.zeros_like(step),
            None if key is None else fold_in_each(key, step),
            jnp.zeros_like(alive),
        )
        step, key, alive = where_each(restart, begun, state)
        after = (step + 1, key, alive + 1)
        return where_each(valid, after, state), (step, key, alive)

    valid = jnp.ones_like(inputs.restart) if inputs.valid is None else inputs.valid
    start = (carry.step, carry.key, jnp.full_like(carry.step, K))
    last, (step, key, alive) = lax.scan(tick, start, (inputs.restart & valid, valid))
    return _Clock(step, key, alive, last)


def _given(
    recurrence: Recurrence, inputs: StepInputs, clock: _Clock, dtype: Any, policy: Policy
) -> SkipInputs:
    """Return the inputs of the choices at all steps that need no state, (time, batch, ...)."""
    mask = policy.mask
    if mask is not None and mask.ndim == 2:
        mask = mask[None]
    policy = dataclasses.replace(policy, temperature=jnp.asarray(policy.temperature, dtype), mask=mask)
    given = skip_inputs(recurrence, inputs, clock.step, clock.key, dtype, policy)
    if given.allowed is None:
        return given
    shape = (*clock.step.shape, given.allowed.shape[-1])
    return given._replace(allowed=jnp.broadcast_to(given.allowed, shape))


def _problem(
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    recurrence: Recurrence,
    given: SkipInputs,
    mix: Any,
    initial: Any,
    clock: _Clock,
    mode: str,
    scan_unroll: int,
) -> tuple[_Layer, _Arguments]:
    """Return the static description of an unroll, and its arrays."""
    skip = recurrence.time_skip
    leaves, structure = jax.tree.flatten((params.transition, params.depth))
    projected, input_structure = jax.tree.flatten((inputs.transition, inputs.depth, inputs.zoneout_mask))
    static = isinstance(mix, int | float)
    layer = _Layer(
        recurrence,
        mode,
        mix=float(mix) if static else None,
        differentiable=skip.differentiable(mode, inputs.action is not None),
        params=structure,
        is_matrix=tuple(leaf.ndim > 1 for leaf in leaves),
        inputs=input_structure,
        scan_unroll=scan_unroll,
    )
    first = (carry.step == 0) if skip.forgets_carried else None
    stays = first
    if first is not None and inputs.valid is not None:
        stays = first & inputs.valid[0]
    slots = jax.tree.map(lambda slots: jnp.moveaxis(hist.oldest_first(slots, stays), 1, 0), carry.slots)
    if clock.alive is not None and initial is None:
        initial = jax.tree.map(jnp.zeros_like, carry.state)
    args = _Arguments(
        inputs=tuple(projected),
        matrices=tuple(leaf for leaf in leaves if leaf.ndim > 1),
        vectors=tuple(leaf for leaf in leaves if leaf.ndim <= 1),
        newest=carry.state,
        slots=slots,
        skip_state=carry.skip_state,
        skip=params.skip,
        given=given,
        mix=None if static else mix,
        recurrent_mask=carry.recurrent_mask,
        initial=None if clock.alive is None else initial,
        flags=_Flags(inputs.valid, None if first is None else clock.step == 0, clock.alive),
    )
    batch, dtype = carry.step.shape, carry.slots[0].dtype
    update = None if skip.writes_all else jax.ShapeDtypeStruct(batch, dtype)
    at_a_step = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in projected]
    vectors, state, mask = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
        (args.vectors, carry.state, carry.recurrent_mask),
    )
    found = find_products(layer.cell, args.matrices, vectors, at_a_step, state, state, update, mask)
    return dataclasses.replace(layer, products=found), args


def _end(
    layer: _Layer,
    args: _Arguments,
    carry: SkipCarry,
    result: _Result,
    clock: _Clock,
    seq_lengths: Int[Array, " batch"] | None,
) -> SkipCarry:
    """Return the carry after the last step of each sequence."""
    slots = jax.tree.map(lambda h: hist.last_rows(h, seq_lengths, layer.K), result.histories)
    time = args.inputs[0].shape[0]
    step, key = (
        carry.step + (time if seq_lengths is None else seq_lengths.astype(carry.step.dtype)),
        carry.key,
    )
    if clock.last is not None:
        step, key, alive = clock.last
        slots = jax.tree.map(lambda rows, initial: _living(rows, alive, initial), slots, args.initial)
    slots = jax.tree.map(lambda rows: jnp.moveaxis(jnp.flip(rows, 0), 0, 1), slots)
    return carry._replace(slots=slots, step=step, key=key, skip_state=result.last)


def _unroll_without_skip(
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    recurrence: Recurrence,
    given: SkipInputs,
    mode: str,
    **options: Any,
) -> tuple[SkipCarry, SkipOutput]:
    """Run the layer as one without a time skip, then make the choices of all steps at once."""
    skip = recurrence.time_skip
    end, output = fused_unroll(
        params._replace(skip=None),
        carry,
        inputs._replace(skip=None, action=None),
        dataclasses.replace(recurrence, time_skip=Previous(max_skip=skip.max_skip)),
        **options,
    )
    given = _batch_major(given)
    history = jnp.concatenate([hist.oldest_first(carry.slots[0], None), output.h], axis=1)
    observations = hist.observed_in(history, skip.observed, skip.max_skip, output.h.shape[1])
    choices, _ = skip.choose(params.skip, given, observations, carry.skip_state, mode)
    decision = skip.decide(params.skip, given, observations, carry.skip_state, choices, mode)
    if inputs.valid is not None:
        decision = where_each(_batch_major(inputs.valid), decision, 0)
    return end, output._replace(decision=decision)


def _choices_are_inert(recurrence: Recurrence, mix: Any, carry: SkipCarry, inputs: StepInputs) -> bool:
    """Return whether choices change no state because λ is the constant 0: they can be made after the loop."""
    skip = recurrence.time_skip
    is_zero = isinstance(mix, int | float) and mix == 0
    keeps_order = skip.writes_all and not skip.forgets_carried and not jax.tree.leaves(carry.skip_state)
    sees_h = skip.observed_array(recurrence.transition) == recurrence.transition.state._fields[0]
    return is_zero and keeps_order and sees_h and skip.fixed_slot is None and inputs.restart is None
