"""The fused unroll: the phases of a step, scanned over time with a derivative of few passes over memory.

All arrays of the loop have the time axis first. A step has two phases, `prepare` (choose, and mix the state
that enters) and `finish` (the cell). The backward loop differentiates the phases with `jax.vjp`. It differs
from JAX's own derivative of the scan in four ways:

* It takes the results of products from the forward loop, and leaves the gradients of all weights to products
  after
  the loop (`deferred.py`). An agent's weights get theirs from the choices of all steps at once.
* It reads earlier states from the histories (`history.py`), and adds gradients of reads to one array in
  place. Per
  step, nothing is kept whose size grows with K, except the weights of choices that average K states.
* A sampled choice sends no gradient into the network, so it is not differentiated. Its log-probability and
  entropy
  are computed for all steps after the loop.
* With λ = 0 no choice changes a state: the loop is that of a layer without a skip.

Past the end of a sequence a step holds the state, so padding stays finite for every transition.
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
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.functional.sharding import zeros_like
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
    observed_arrays,
    skip_inputs,
)
from dynskip_jax.functional.time_skips import Choice, Previous, SkipInputs, TimeSkip
from dynskip_jax.functional.transitions import Transition


class _Flags(NamedTuple):
    """What is special about a step, (time, batch) each; None where nothing is.

    Attributes:
        valid: False past the end of a sequence.
        first: True where the carried state enters and is forgotten afterwards (`TimeSkip.forgets_carried`).
        alive: Number of slots with states of the present sequence of a packed row: the number of steps since
            it
            began, or K for the first one. The other slots contain the initial state.
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

    inputs: Sequence[Array]
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

    @property
    def time(self) -> int:
        """Number of steps."""
        return self.given.step.shape[0]


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
    """Result of the first phase: the state that enters, State(t-1), and the choice with the skip's states."""

    entering: Any
    newest: Any
    choice: Choice
    before: Any
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
    def observed(self) -> tuple[int, ...]:
        """Indices of the state's arrays that choices observe."""
        return tuple(map(self.transition.state._fields.index, observed_arrays(self.recurrence)))

    def observe(self, state: Any) -> Array:
        """Return the arrays of a state that choices observe, side by side."""
        arrays = [state[i] for i in self.observed]
        return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays, axis=-1)

    @property
    def sees_window(self) -> bool:
        """Whether choices observe more than State(t-1)."""
        return self.skip.observed != "previous"

    @property
    def owners(self) -> tuple[int, ...]:
        """Products whose results overwrite the projected input that only they read."""
        return tuple(n for n, product in enumerate(self.products) if product.owns_input)

    @property
    def owned(self) -> tuple[int, ...]:
        """Projected inputs that the results of `owners` overwrite."""
        return tuple(self.products[n].input for n in self.owners)

    def window(self, histories: Any, t: Int[Array, ""]) -> Float[Array, "K batch observed"]:
        """Return what choices observe of the K states before step t, oldest first."""
        return self.observe(jax.tree.map(lambda history: hist.read_window(history, t, self.K), histories))

    def read(self, choice: Choice) -> hist.Read:
        """Return how the states of a choice are read from the histories."""
        slot = choice.slot if self.skip.fixed_slot is None else self.skip.fixed_slot
        return hist.Read(self.transition, self.K, slot, choice.weights)

    def prepare(
        self,
        args: _Arguments,
        flags: _Flags,
        given: SkipInputs,
        newest: Any,
        window: Float[Array, "K batch hidden"] | None,
        skip_state: Any,
        fetch: Callable[[Choice], Any],
        choice: Choice | None = None,
        probes: Any = None,
    ) -> _Prepared:
        """Make the choice of a step, and return the state that enters.

        Args:
            args: Arrays of the unroll.
            flags: What is special about the step.
            given: Inputs of the choice that need no state.
            newest: State(t-1) of the row.
            window: What choices observe of the K states before the step; None if they see only State(t-1).
            skip_state: State of the time skip.
            fetch: Function that reads what a choice chose.
            choice: Choice that has been made; None to make it.
            probes: Zeros that are added to the floats of a new choice and of the time skip's new state: their
                gradients are those of these floats.
        """
        newest = self.begin(flags, newest, args.initial)
        if flags.alive is not None:
            fresh = self.skip.init_skip_state(flags.alive.shape, newest[0].dtype)
            skip_state = where_each(flags.alive == 0, fresh, skip_state)
        after = skip_state
        if choice is None:
            observation = self.observe(newest)
            if window is not None:
                window = hist.living(window, flags.alive, args.initial and self.observe(args.initial))
                observation = hist.Window(jnp.moveaxis(window, 0, 1), self.K).observe(self.skip.observed)
            made = self.skip.choose(args.skip, given, observation, skip_state, self.mode)
            choice, after = made if probes is None else _combined(_added(_floats(made), probes), made)
            if flags.valid is not None:
                after = where_each(flags.valid, after, skip_state)
        entering = newest
        if self.reaches_back:
            entering = self.enter(args, flags, self.read(choice), fetch(choice), newest)
        return _Prepared(entering, newest, choice, skip_state, after)

    def begin(self, flags: _Flags, newest: Any, initial: Any) -> Any:
        """Return State(t-1), or the initial state where a sequence begins inside a packed row."""
        return newest if flags.alive is None else where_each(flags.alive == 0, initial, newest)

    def enter(self, args: _Arguments, flags: _Flags, read: hist.Read, fetched: Any, newest: Any) -> Any:
        """Return the state that enters, λ State(t-k) + (1 - λ) State(t-1) (Eq. 2)."""
        chosen = read.combine(fetched, flags.alive, args.initial)
        entering = mixed(self.transition, self.mix if args.mix is None else args.mix, chosen, newest)
        return entering if flags.first is None else where_each(flags.first, newest, entering)

    def finish(
        self,
        args: _Arguments,
        dense: Callable[..., Any],
        flags: _Flags,
        inputs: Sequence[Array],
        entering: Any,
        newest: Any,
        update: Float[Array, " batch"] | None,
    ) -> Any:
        """Return the new state of a step; past the end of a sequence, State(t-1)."""
        mask = args.recurrent_mask
        entering = dropped(entering, mask, self.transition)
        new = self.cell(dense, args.vectors, inputs, entering, newest, update, mask)
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


def _known(d: Any) -> Any:
    """Return cotangents, with None for those that are known to be zero and those of whole numbers."""
    return jax.tree.map(
        lambda leaf: None if isinstance(leaf, SymbolicZero) or leaf.dtype == jax.dtypes.float0 else leaf, d
    )


def _zeros_like(tree: Any) -> Any:
    """Return zeros with the shapes, the shardings and the varying axes of `tree`."""
    return jax.tree.map(zeros_like, tree)


def _placed(items: Sequence[Any], places: Sequence[int], values: Sequence[Any]) -> list[Any]:
    """Return a list of `items` with those at `places` replaced."""
    items = list(items)
    for place, value in zip(places, values, strict=True):
        items[place] = value
    return items


# The forward loop.


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(layer: _Layer, args: _Arguments) -> _Result:
    return _forward(layer, args, keep=False)[0]


def _run_forward(layer: _Layer, args: _Arguments):
    args = jax.tree.map(lambda leaf: leaf.value, args, is_leaf=lambda leaf: hasattr(leaf, "perturbed"))
    result, (results, entering, buffers) = _forward(layer, args, keep=True)
    inputs = _placed(args.inputs, layer.owned, buffers)
    return result, (args._replace(inputs=inputs), result, results, entering)


def _forward(layer: _Layer, args: _Arguments, keep: bool) -> tuple[_Result, Any]:
    """Run all steps.

    Returns:
        The result; and if `keep`, the results of products that overwrite no projected input, the averages
        that entered, and the projected inputs that other results have overwritten.
    """
    time, given = args.time, _Packed.of(args.given)
    owners, owned = (layer.owners, layer.owned) if keep else ((), ())

    def step(state, x):
        t, newest, histories, skip_state, buffers, rows = state
        inputs, row, flags = x
        window = layer.window(histories, t) if layer.sees_window else None
        fetch = lambda choice: layer.read(choice).fetch(histories, t, flags.alive)  # noqa: E731
        prepared = layer.prepare(args, flags, given.unpack(row), newest, window, skip_state, fetch)
        entering, newest, choice, before, after = prepared
        results: list[Any] = []
        dense = keep_results(args.matrices, results)
        new = layer.finish(args, dense, flags, _placed(inputs, owned, rows), entering, newest, choice.update)
        made, kept = new, None
        if layer.reaches_back:
            histories = jax.tree.map(lambda h, array: hist.write(h, t + layer.K, array), histories, new)
            made = None
        if keep:
            buffers, rows = _overwrite(buffers, [results[n] for n in owners], t, 1)
            means = None if choice.weights is None else entering
            kept = _placed(results, owners, [None] * len(owners)), means
        return (t + 1, new, histories, after, buffers, rows), (made, choice, before, kept)

    histories = None
    if layer.reaches_back:
        histories = jax.tree.map(lambda slots: jnp.pad(slots, ((0, time), (0, 0), (0, 0))), args.slots)
    buffers = [args.inputs[i] for i in owned]
    rows = [hist.at(buffer, 0) for buffer in buffers]
    start = (jnp.zeros((), jnp.int32), args.newest, histories, args.skip_state, buffers, rows)
    xs = (_placed(args.inputs, owned, [None] * len(owned)), given.rows, args.flags)
    end, (made, choices, skip_states, kept) = lax.scan(step, start, xs, unroll=layer.scan_unroll)
    _, _, histories, last, buffers, _ = end
    if not layer.reaches_back:
        histories = jax.tree.map(lambda slots, rows: jnp.concatenate([slots, rows]), args.slots, made)
    return _Result(histories, choices, skip_states, last), (*(kept or (None, None)), buffers)


def _overwrite(
    buffers: Sequence[Array], rows: Sequence[Array], t: Int[Array, ""], ahead: int
) -> tuple[Any, Any]:
    """Write row t of each buffer; then read the rows that the next iteration needs, at t + `ahead`.

    XLA copies a whole array if a loop writes to it and still reads the old version.
    """
    buffers = [hist.write(buffer, t, row) for buffer, row in zip(buffers, rows, strict=True)]
    return buffers, [hist.at(buffer, t + ahead) for buffer in buffers]


class _Packed(NamedTuple):
    """The inputs of the choices, with floats side by side in one array.

    On a TPU each row that a step reads has its price.

    Attributes:
        rows: Arrays with a time axis, for a loop.
        unpack: Function that returns the inputs of a step from its rows.
    """

    rows: Any
    unpack: Callable[[Any], SkipInputs]

    @classmethod
    def of(cls, given: SkipInputs) -> "_Packed":
        """Pack the inputs of all steps."""
        leaves, structure = jax.tree.flatten(given._replace(temperature=None))
        wide = [i for i, leaf in enumerate(_floats(leaves)) if leaf is not None and leaf.ndim == 3]
        if len({leaves[i].dtype for i in wide}) != 1:
            wide = []
        others = _placed(leaves, wide, [None] * len(wide))
        ends = np.cumsum([leaves[i].shape[-1] for i in wide])[:-1]

        def unpack(row):
            together, others = row
            parts = jnp.split(together, ends, axis=-1) if wide else []
            return structure.unflatten(_placed(others, wide, parts))._replace(temperature=given.temperature)

        together = jnp.concatenate([leaves[i] for i in wide], axis=-1) if wide else None
        return cls((together, others), unpack)


# The backward loop.


class _Steps(NamedTuple):
    """Values of all steps that the backward loop reads, (time, batch, ...) each."""

    inputs: Any
    given: Any
    flags: _Flags
    results: Any
    entering: Any
    previous: Any
    choice: Choice
    before: Any
    d_states: Any
    d_choice: Any
    d_before: Any


class _Sums(NamedTuple):
    """Gradients that the backward loop adds up."""

    vectors: Any
    recurrent_mask: Any
    mix: Any
    initial: Any


def _run_backward(layer: _Layer, residuals: Any, d: _Result) -> tuple[_Arguments]:
    args, result, results, entering = residuals
    d = _known(d)
    if entering is None:
        entering = _entering(layer, args, result)
    end, (d_inputs, d_products, operands, d_made) = _backward_loop(layer, args, result, results, entering, d)
    _, d_newest, adjoints, d_skip_state, sums, buffers, _ = end
    d_inputs = _placed(d_inputs, layer.owned, buffers)
    mask = args.recurrent_mask
    h = dropped(entering, None if mask is None else mask[None], layer.transition)[0]
    d_matrices, d_vectors = _gradients_of_params(layer, args, sums.vectors, h, d_inputs, d_products, operands)
    d_skip, d_given = _gradients_of_choices(layer, args, result, d_made)
    d_slots = adjoints if layer.reaches_back else _combined(d.histories, _zeros_like(result.histories))
    d_slots = jax.tree.map(lambda a: a[: layer.K], d_slots)
    if layer.reaches_back and args.flags.first is None:
        # The gradient of State(-1) has been added to `newest`.
        older = (jnp.arange(layer.K) < layer.K - 1)[:, None, None]
        d_slots = jax.tree.map(lambda a: jnp.where(older, a, 0), d_slots)
    return (
        _Arguments(
            inputs=tuple(d_inputs),
            matrices=d_matrices,
            vectors=d_vectors,
            newest=d_newest,
            slots=d_slots,
            skip_state=d_skip_state,
            skip=d_skip,
            given=d_given,
            mix=sums.mix,
            recurrent_mask=sums.recurrent_mask,
            initial=sums.initial,
            flags=None,
        ),
    )


_run.defvjp(_run_forward, _run_backward, symbolic_zeros=True)


def _backward_loop(layer: _Layer, args: _Arguments, result: _Result, results: Any, entering: Any, d: _Result):
    """Run the backward loop; return its last carry and what it emits."""
    histories, given = result.histories, _Packed.of(args.given)
    transposes = [times_transposed(w, args.newest[0].shape[0]) for w in args.matrices]
    nothing = [None] * len(layer.owned)

    def step(state, x: _Steps):
        t, d_newest, adjoints, d_skip_state, sums, buffers, rows = state
        x = x._replace(
            inputs=_placed(x.inputs, layer.owned, rows), results=_placed(x.results, layer.owners, rows)
        )
        d_new = _added(d_newest, x.d_states)
        undone, operands = _undo_finish(layer, args, transposes, x, d_new)
        d_products, d_vectors, d_inputs, d_entering, d_newest, d_update, d_mask = undone
        for product, d_product in zip(layer.products, d_products, strict=True):
            if product.input is not None:
                d_inputs[product.input] = d_inputs[product.input] + d_product
        buffers, rows = _overwrite(buffers, [d_inputs[i] for i in layer.owned], t, -1)
        d_prepared = (d_entering, d_newest, d_update, d_skip_state)
        undone, d_newest, adjoints = _undo_prepare(
            layer, args, x._replace(given=given.unpack(x.given)), t, histories, adjoints, d_prepared
        )
        _, d_skip_state, d_mix, d_initial, d_made = undone
        if layer.differentiable:
            d_skip_state = _added(d_skip_state, x.d_before)
        sums = jax.tree.map(jnp.add, sums, _Sums(d_vectors, d_mask, d_mix, d_initial))
        own = _placed(d_inputs, layer.owned, nothing), _placed(d_products, layer.owners, nothing)
        return (t - 1, d_newest, adjoints, d_skip_state, sums, buffers, rows), (*own, operands, d_made)

    d_newest, adjoints = _zeros_like(args.newest), None
    d_states = jax.tree.map(lambda a: a[layer.K :], d.histories)
    if layer.reaches_back:
        adjoints = _combined(d.histories, _zeros_like(histories))
        d_newest = jax.tree.map(lambda adjoint: adjoint[-1], adjoints)
        d_states = layer.transition.state(*(None for _ in adjoints))
    steps = _Steps(
        _placed(args.inputs, layer.owned, nothing),
        given.rows,
        args.flags,
        results,
        entering,
        _previous(layer, args, histories),
        result.choices,
        result.skip_states,
        d_states,
        d.choices,
        d.skip_states,
    )
    sums = _zeros_like(_Sums(args.vectors, args.recurrent_mask, args.mix, args.initial))
    d_last = _combined(d.last, _zeros_like(_floats(args.skip_state)))
    buffers = [args.inputs[i] for i in layer.owned]
    rows = [hist.at(buffer, args.time - 1) for buffer in buffers]
    start = (jnp.full((), args.time - 1, jnp.int32), d_newest, adjoints, d_last, sums, buffers, rows)
    return lax.scan(step, start, steps, reverse=True, unroll=layer.scan_unroll)


def _undo_finish(layer: _Layer, args: _Arguments, transposes: Any, x: _Steps, d_new: Any) -> tuple[Any, Any]:
    """Differentiate the second phase.

    Returns:
        The gradients of the products, the vectors, the projected inputs, the state that entered, State(t-1),
        the fraction that was written and the recurrent dropout mask; and the operands of products, None for
        h.
    """

    def finish(probes, vectors, inputs, entering, newest, update, mask):
        operands: list[Array] = []
        own = args._replace(vectors=vectors, recurrent_mask=mask)
        dense = replay_results(iter(x.results), iter(probes), transposes, [*vectors, *inputs], operands)
        new = layer.finish(own, dense, x.flags, inputs, entering, newest, update)
        return new, [None if p.of_h else operand for p, operand in zip(layer.products, operands, strict=True)]

    newest = layer.begin(x.flags, x.previous, args.initial)
    rest = (args.vectors, x.inputs, x.entering, newest, x.choice.update, args.recurrent_mask)
    _, undo, operands = jax.vjp(finish, _zeros_like(x.results), *rest, has_aux=True)
    return undo(layer.transition.state(*d_new)), operands


def _undo_prepare(layer: _Layer, args: _Arguments, x: _Steps, t, histories: Any, adjoints: Any, d: Any):
    """Differentiate the first phase.

    Args:
        layer: Static description of the unroll.
        args: Arrays of the unroll.
        x: Values of the step.
        t: Number of the step.
        histories: States over time.
        adjoints: Gradients of the histories so far.
        d: Gradients of the four results of the phase: the state that entered, State(t-1), the fraction that
            is
            written, and the time skip's state after the step.

    Returns:
        The gradients of what the phase reads, of the time skip's state before the step, of λ, of the initial
        state and of the choice; the gradient of State(t-1); and the gradients of the histories with those of
        this step.
    """
    d_entering, d_newest, d_update, d_after = d
    read, changes = layer.read(x.choice), layer.differentiable

    def prepare(newest, window, reads, before, mix, initial, probes):
        prepared = layer.prepare(
            args._replace(mix=mix, initial=initial),
            x.flags,
            x.given,
            newest,
            window,
            _combined(before, x.before),
            fetch=lambda choice: layer.read(choice).again(histories, t, x.flags.alive, reads),
            choice=None if changes else x.choice,
            probes=probes,
        )
        made = _floats((prepared.choice, prepared.after)) if changes else None
        return prepared.entering, prepared.newest, made

    reads = read.fetch(histories, t, x.flags.alive) if layer.reaches_back else None
    window = layer.window(histories, t) if changes and layer.sees_window else None
    probes, before = (_zeros_like(_floats((x.choice, x.before))) if changes else None), _floats(x.before)
    (*_, made), undo = jax.vjp(prepare, x.previous, window, reads, before, args.mix, args.initial, probes)
    d_made = None
    if changes:
        d_choice = _combined(x.d_choice, _zeros_like(made[0]))
        d_made = (d_choice._replace(update=_added(d_choice.update, d_update)), d_after)
    d_newest, d_window, d_reads, *rest = undo((d_entering, d_newest, d_made))
    if not changes:
        rest[0] = d_after
    if layer.reaches_back:
        adjoints, rows = read.send_back(adjoints, t, x.flags.alive, d_reads)
        if d_window is not None:
            for i, part in zip(layer.observed, jnp.split(d_window, len(layer.observed), -1), strict=True):
                field = adjoints._fields[i]
                adjoint, row = hist.add_window(adjoints[i], t, part)
                adjoints, rows = adjoints._replace(**{field: adjoint}), rows._replace(**{field: row})
        if args.flags.first is not None:  # the history has another state in place of State(-1)
            rows = jax.tree.map(lambda row: jnp.where(t > 0, row, 0), rows)
        d_newest = jax.tree.map(jnp.add, d_newest, rows)
    return (d_reads, *rest), d_newest, adjoints


def _previous(layer: _Layer, args: _Arguments, histories: Any) -> Any:
    """Return State(t-1) of all steps, (time, batch, hidden) each."""
    rows = jax.tree.map(lambda history: history[layer.K - 1 : layer.K - 1 + args.time], histories)
    if args.flags.first is None:
        return rows
    # The carried state entered the first step; the history has the state that replaced it.
    return jax.tree.map(lambda newest, rows: hist.write(rows, 0, newest), args.newest, rows)


def _entering(layer: _Layer, args: _Arguments, result: _Result) -> Any:
    """Return the state that entered each step, (time, batch, hidden) each; not for choices with weights."""
    newest = _previous(layer, args, result.histories)
    if args.initial is not None:
        initial = jax.tree.map(lambda i, rows: jnp.broadcast_to(i, rows.shape), args.initial, newest)
        args = args._replace(initial=initial)
        newest = layer.begin(args.flags, newest, initial)
    if not layer.reaches_back:
        return newest
    read = layer.read(result.choices)
    return layer.enter(args, args.flags, read, read.fetch_all(result.histories, args.time), newest)


def _gradients_of_params(layer: _Layer, args: _Arguments, d_vectors, h, d_inputs, d_products, operands):
    """Return the gradients of the matrices and the vectors, each from all steps at once."""
    matrices: list[Any] = [None] * len(args.matrices)
    vectors = list(d_vectors)
    for product, d_product, operand in zip(layer.products, d_products, operands, strict=True):
        d = d_inputs[product.input] if product.owns_input else d_product
        gradient = outer_products(h if product.of_h else operand, d, args.matrices[product.matrix])
        matrices[product.matrix] = _added(matrices[product.matrix], gradient)
        for i in product.vectors:
            vectors[i] = vectors[i] + jnp.sum(d, axis=(0, 1)).astype(vectors[i].dtype)
    return tuple(matrices), tuple(vectors)


def _gradients_of_choices(layer: _Layer, args: _Arguments, result: _Result, d_made: Any) -> tuple[Any, Any]:
    """Return the gradients of the time skip's parameters and of the choices' inputs, of all steps at once."""
    if not layer.differentiable:
        return None, None
    observations = _observations(layer, args, result.histories)
    given, skip_states = _batch_major((args.given, result.skip_states))

    def choose(skip, projected, temperature):
        own = given._replace(projected=projected, temperature=temperature)
        return _floats(layer.skip.choose(skip, own, observations, skip_states, layer.mode))

    _, undo = jax.vjp(choose, args.skip, given.projected, args.given.temperature)
    d_skip, d_projected, d_temperature = undo(_batch_major(d_made))
    zeros = SkipInputs(*(None for _ in SkipInputs._fields))
    return d_skip, zeros._replace(projected=_batch_major(d_projected), temperature=d_temperature)


def _batch_major(tree: Any) -> Any:
    """Return a tree with the first two axes of each array exchanged; numbers stay."""
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1) if jnp.ndim(leaf) > 1 else leaf, tree)


def _observations(layer: _Layer, args: _Arguments, histories: Any) -> Any:
    """Return the observations of all steps, with the batch axis first."""
    K, time, alive = layer.K, args.time, args.flags.alive
    initial = args.initial and layer.observe(args.initial)[None]
    if not layer.sees_window:
        rows = layer.observe(_previous(layer, args, histories))
        return _batch_major(rows if alive is None else jnp.where((alive == 0)[..., None], initial, rows))
    history = layer.observe(histories)
    if alive is None:
        return hist.observed_in(_batch_major(history), layer.skip.observed, K, time)
    windows = jnp.stack([history[k : k + time] for k in range(K)])
    windows = hist.living(windows, alive, initial)
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

    `inputs` are those of all steps, at least one, (time, batch, ...). Outputs are (batch, time, ...). See
    `unroll` for the other arguments. A transition that calls `dense` inside another program raises
    `OutOfReach`.
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
    """Return the clock of all steps, which starts again, with a new key, where a sequence begins in a row."""
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
        slots = jax.tree.map(lambda rows, initial: hist.living(rows, alive, initial), slots, args.initial)
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
    sees_h = observed_arrays(recurrence) == recurrence.transition.state._fields[:1]
    return is_zero and keeps_order and sees_h and skip.fixed_slot is None and inputs.restart is None
