"""The backward loop, which differs from JAX's own derivative of the forward loop in four ways.

Read it from `run_backward` down. The loop goes from the last step to the first (`_run_loop`). At
step t (`_step_back`) it has the gradient of State(t): from the caller, and from the later steps
that read this state. It differentiates the step at the values that the forward loop has saved
(`_undo_step`, `_replay`), and adds the gradients of the states that the step read to their rows
(`_send_back`). There they wait until the loop arrives: only the K steps after a state read it, so
its row is complete when those steps have run. Weights get their gradients after the loop.

With K = 2 and T = 3 a history has five rows, oldest first:

    row             0          1          2         3         4
    state           State(-2)  State(-1)  State(0)  State(1)  State(2)
    written by      carry      carry      step 0    step 1    step 2
    read at steps   0          0, 1       1, 2      2

The gradient of row 4 comes from the caller. Step 2 starts from it, and adds to rows 2 and 3. Now
row 3 is complete: step 1 starts from it, and adds to rows 1 and 2. Step 0 starts from row 2, and
adds to rows 0 and 1, which are then the gradient of the carry. So step t adds to those of the rows
t to t+K-1 that it read. What it sends to State(t-1) as the previous state needs no row: the loop
passes it on, as `d_newest`.

A name d_x is the gradient of x, and `adjoints` are those of the histories. `problem.py` lists the
axes at the end of names such as `_RBH`, `_TBH` and `_KBH`. Two more words:

* A projected input that only one product reads is *owned* by it (`Layer.input_of_product`). To
  save an array, the product's result overwrites its row, and later the input's gradient that.
* A *probe* is a zero that is added to a value: its gradient is that of the value.

Each of the four ways has a comment at its place, "Difference 1" to "Difference 4":

1. Results of the cell's products, choices and states that entered are known from the forward
   loop, so no product of the cell is computed twice.
2. Matrices get their gradients after the loop, from all steps at once: one large product instead
   of a small one for each step.
3. Gradients of reads are added to one array in place: nothing that grows with K is kept for a step.
4. A choice without a derivative, as a sampled or a greedy one, is not even made again: log π gets
   its gradient outside the loop, from the histories (`fused_unroll`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from dynskip_jax.functional.engine import history as hist
from dynskip_jax.functional.engine.deferred import replay_results
from dynskip_jax.functional.engine.forward import (
    Result,
    followed_of_all,
    newest_of_all,
    observations_of_all,
)
from dynskip_jax.functional.engine.problem import Arguments, Layer
from dynskip_jax.functional.engine.step import (
    LoopInputs,
    Saved,
    enter,
    given_at,
    loop_inputs,
    newest_or_initial,
    replay_step,
    window_at,
)
from dynskip_jax.functional.engine.trees import (
    added,
    combined,
    floats,
    swap_time_and_batch,
    with_rows,
    without,
    zeros_like,
)
from dynskip_jax.functional.product import outer_products, times_transposed
from dynskip_jax.functional.step import dropped
from dynskip_jax.functional.time_skips import Choice, SkipInputs
from dynskip_jax.functional.time_skips.calls import make_choice


class Residuals(NamedTuple):
    """What the backward loop needs of the forward loop."""

    args: Arguments  # with results of products in the projected inputs that they have overwritten
    result: Result
    results: Any  # results of the other products, (time, batch, width) each
    # States that entered, (time, batch, hidden) each, kept only if choices have `weights`; the
    # others are read from the histories again
    entering: Any


class ResultCotangents(NamedTuple):
    """Gradients of a `Result`; None where they are zero, and for whole numbers."""

    histories: Any
    choices: Any
    before: Any
    last: Any


class StepCotangents(NamedTuple):
    """Gradients of the results of a step, or of all steps; None where they are known to be zero."""

    new: Any  # of State(t)
    choice: Any  # of the floats of the choice
    before: Any  # of the floats of the time skip's state before the step


class Differentiated(NamedTuple):
    """Arrays in which a step is differentiated, or their gradients; None for what a layer lacks."""

    products: list[Array]  # zeros that are added to the products, before their activations
    # Zeros that are added to the floats of the choice and of the time skip's new state
    choice_probes: Any
    # What is the same at all steps: parameters, recurrent dropout mask, λ and initial state
    shared: tuple[Any, ...]
    inputs: list[Array]  # projected inputs
    newest: Any  # State(t-1)
    window: Any  # what the choice observes of the last K states
    reads: Any  # states that the choice reads
    before: Any  # floats of the time skip's state before the step


class Loop(NamedTuple):
    """What is the same at all steps of the backward loop."""

    layer: Layer
    args: Arguments
    histories_RBH: Any  # states, (K + time, batch, hidden) each
    transposes: list[Callable[[Array], Array]]  # the function d -> d wᵀ of each matrix


class Emitted(NamedTuple):
    """What each step of the backward loop emits, and after it (time, batch, ...)."""

    d_products: Any  # gradients of the products; None for those that own an input
    operands: Any  # operands of the products; None for h, which is a result of the forward loop
    # Gradients of the floats of the choice and of the time skip's new state
    d_choice_probes: Any


class BackwardCarry(NamedTuple):
    """What a step of the backward loop passes to the one before it; after the loop, t is -1."""

    t: Int[Array, ""]  # number of the step
    # Gradient of State(t), from the steps after t; where a step reaches back, also from the caller
    d_newest: Any
    # Gradients of the histories, (K + time, batch, hidden) each, from the steps after t; None if a
    # step reads State(t-1) only
    adjoints_RBH: Any
    d_after: Any  # gradient of the time skip's state after step t
    # Gradients of the dropout mask, λ, the initial state, and of vectors that are used in another
    # way than as an addend of a product
    d_shared: tuple[Any, ...]
    # Up to row t, the projected inputs, or the results that have overwritten them; then gradients
    # of these inputs
    inputs: list[Array]
    rows: list[Array]  # row t of each projected input


def run_backward(layer: Layer, residuals: Residuals, d_result: ResultCotangents) -> Arguments:
    """Return the gradients of the arguments of an unroll: JAX wants them in the arguments' type."""
    args, result, _, entering_TBH = residuals
    if entering_TBH is None:
        entering_TBH = _entering_of_all(layer, args, result)
    carry, emitted = _run_loop(layer, residuals._replace(entering=entering_TBH), d_result)
    d_params, d_mask, d_mix, d_initial = carry.d_shared

    # Difference 2: one product after the loop for each weight, of all operands and all gradients.
    # The h that entered is known from the forward loop, so the loop does not emit it as an operand.
    mask = args.recurrent_mask
    if mask is not None:
        mask = mask[None]
    h_TBH = dropped(entering_TBH, mask, layer.recurrence.transition)[0]
    d_matrices, d_params = _gradients_of_params(layer, args, d_params, h_TBH, carry.inputs, emitted)
    d_skip, d_given, d_recent_inputs = _gradients_of_choices(
        layer, args, result, emitted.d_choice_probes
    )
    return Arguments(
        inputs=tuple(carry.inputs),
        matrices=d_matrices,
        params=d_params,
        newest=carry.d_newest,
        first_rows=_gradient_of_first_rows(layer, args, result, d_result, carry.adjoints_RBH),
        skip_state=carry.d_after,
        skip=d_skip,
        given=d_given,
        mix=d_mix,
        recurrent_mask=d_mask,
        initial=d_initial,
        flags=None,
        recent_inputs=d_recent_inputs,
    )


def _run_loop(
    layer: Layer, residuals: Residuals, d_result: ResultCotangents
) -> tuple[BackwardCarry, Emitted]:
    """Run the steps from the last to the first."""
    args, result, results, entering_TBH = residuals
    transposes = [times_transposed(w, args.newest[0].shape[0]) for w in args.matrices]

    # What each step gets, (time, batch, ...): its inputs, its saved values, and the gradients that
    # the caller has for its results.
    d_newest, adjoints_RBH, d_new_TBH = _gradients_of_states(layer, args, result, d_result)
    newest_TBH = newest_of_all(args, result.histories)
    steps = (
        loop_inputs(args),
        Saved(newest_TBH, entering_TBH, result.choices, result.before, results),
        StepCotangents(d_new_TBH, d_result.choices, d_result.before),
    )

    # What passes from a step to the one before it.
    d_shared = zeros_like((args.params, args.recurrent_mask, args.mix, args.initial))
    d_last = combined(d_result.last, zeros_like(floats(args.skip_state)))
    inputs = list(args.inputs)
    rows = [hist.at(array, args.time - 1) for array in inputs]
    last = jnp.full((), args.time - 1, jnp.int32)
    start = BackwardCarry(last, d_newest, adjoints_RBH, d_last, d_shared, inputs, rows)

    loop = Loop(layer, args, result.histories, transposes)
    carry, emitted = lax.scan(partial(_step_back, loop), start, steps, reverse=True)
    return carry, emitted


def _gradients_of_states(
    layer: Layer, args: Arguments, result: Result, d_result: ResultCotangents
) -> tuple[Any, Any, Any]:
    """Return the gradients of states that the caller has, as the loop takes them.

    These are the gradient of the last state, the histories to which the loop adds, and gradients
    that each step adds to State(t), (time, batch, hidden) each.
    """
    d_newest = zeros_like(args.newest)
    d_new_TBH = jax.tree.map(lambda rows: rows[layer.K :], d_result.histories)
    if not layer.reaches_back:
        return d_newest, None, d_new_TBH
    # Difference 3: one array collects the gradients of all reads. It begins with the gradients
    # that the caller has for the histories, so no step adds those to State(t).
    adjoints_RBH = combined(d_result.histories, zeros_like(result.histories))
    d_newest = jax.tree.map(lambda adjoint: adjoint[-1], adjoints_RBH)
    no_d_new = layer.recurrence.transition.state(*(None for _ in adjoints_RBH))
    return d_newest, adjoints_RBH, no_d_new


def _step_back(
    loop: Loop, carry: BackwardCarry, steps: tuple[LoopInputs, Saved, StepCotangents]
) -> tuple[BackwardCarry, Emitted]:
    """Send the gradients of the results of step t back to what it read."""
    layer = loop.layer
    args = loop.args
    x, saved, d = steps
    t = carry.t
    owned = layer.input_of_product
    # The row of an owned input holds the result that overwrote it. It stands in both places: only
    # `dense` would read the input, and it takes the kept result instead.
    x = x._replace(inputs=carry.rows, given=given_at(layer, args, t, x.given, x.flags))
    owned_rows = [carry.rows[i] for i in owned.values()]
    saved = saved._replace(results=with_rows(saved.results, owned, owned_rows))
    d = d._replace(new=added(carry.d_newest, d.new))
    d_variables, operands = _undo_step(loop, t, x, saved, d, carry.d_after)

    # An input that is added to a product has the gradient of the product.
    d_inputs = d_variables.inputs
    for product, d_product in zip(layer.products, d_variables.products, strict=True):
        if product.input is not None:
            d_inputs[product.input] = d_inputs[product.input] + d_product
    # At step 0 the next row would be -1; it is not used.
    inputs, rows = hist.overwrite(carry.inputs, dict(enumerate(d_inputs)), t, -1)

    # What this step sends to State(t-1), also by reads, and to older states. Row State(t-1) is now
    # complete: only steps t to t+K-1 read it, and all of them have run. So it becomes part of the
    # gradient from which step t-1 starts.
    d_newest = d_variables.newest
    adjoints_RBH = carry.adjoints_RBH
    if layer.reaches_back:
        adjoints_RBH, of_newest = _send_back(layer, adjoints_RBH, t, x, saved, d_variables)
        if args.flags.first is not None:
            # State(-1) is not in the history of a carry that is forgotten; see `newest_of_all`.
            of_newest = jax.tree.map(lambda row: jnp.where(t > 0, row, 0), of_newest)
        d_newest = jax.tree.map(jnp.add, d_newest, of_newest)
    d_before = added(d_variables.before, d.before)
    # What all steps share. Matrices, and vectors that are addends of products, have no gradient
    # here (Difference 2).
    d_shared = jax.tree.map(jnp.add, carry.d_shared, d_variables.shared)

    emitted = Emitted(
        d_products=without(d_variables.products, owned),
        operands=operands,
        d_choice_probes=d_variables.choice_probes,
    )
    return BackwardCarry(t - 1, d_newest, adjoints_RBH, d_before, d_shared, inputs, rows), emitted


def _undo_step(
    loop: Loop, t: Int[Array, ""], x: LoopInputs, saved: Saved, d: StepCotangents, d_after: Any
) -> tuple[Differentiated, list[Array | None]]:
    """Return the gradients of a step, and the operands of its products, None for h.

    `d_after` is the gradient of the time skip's state after the step.
    """
    layer = loop.layer
    args = loop.args
    # Difference 4: a choice without a derivative is not made again (`replay_step`), so it has no
    # probes, and no window is read.
    choice_probes = window_KBH = reads = None
    product_probes = zeros_like(saved.results)
    if layer.differentiable:
        choice_probes = zeros_like(floats((saved.choice, saved.before)))
        window_KBH = window_at(layer, loop.histories_RBH, t)
    if layer.reaches_back:
        reads = layer.read(saved.choice).fetch(loop.histories_RBH, t, x.flags.alive)
    variables = Differentiated(
        products=product_probes,
        choice_probes=choice_probes,
        shared=(args.params, args.recurrent_mask, args.mix, args.initial),
        inputs=x.inputs,
        newest=saved.newest,
        window=window_KBH,
        reads=reads,
        before=floats(saved.before),
    )
    # The step is an ordinary function of these variables, so JAX differentiates it.
    _, undo, operands = jax.vjp(partial(_replay, loop, t, x, saved), variables, has_aux=True)
    d_choice = combined(d.choice, zeros_like(floats(saved.choice)))
    d_new = layer.recurrence.transition.state(*d.new)
    (d_variables,) = undo((d_new, (d_choice, d_after)))
    return d_variables, operands


def _replay(
    loop: Loop, t: Int[Array, ""], x: LoopInputs, saved: Saved, variables: Differentiated
) -> tuple[Any, list[Array | None]]:
    """Return the results of step t as a function of `variables`, and the operands of its products.

    The results are State(t), and the floats of the choice and of the time skip's new state.
    """
    layer = loop.layer
    params, mask, mix, initial = variables.shared
    step_args = loop.args._replace(params=params, recurrent_mask=mask, mix=mix, initial=initial)

    # Difference 1: `dense` multiplies nothing, but returns the kept results. Their derivative in
    # the operands is d wᵀ; in the weights there is none here (Difference 2).
    operands: list[Array] = []
    # `dense` recognises these arrays by identity and gives them no gradient as addends: inputs get
    # theirs in `_step_back`, vectors in `_gradients_of_params`.
    without_gradient = [*jax.tree.leaves(params), *variables.inputs]
    # Each call of `dense` takes the next result and the next probe, in the order of the products.
    results = iter(saved.results)
    probes = iter(variables.products)
    dense = replay_results(results, probes, loop.transposes, without_gradient, operands)

    # The states are at hand (`variables.reads`). `again` only adds, to a mean of all K, the
    # derivative in its weights.
    def fetch(choice: Choice) -> Any:
        read = layer.read(choice)
        return read.again(loop.histories_RBH, t, x.flags.alive, variables.reads)

    new, choice, after = replay_step(
        layer,
        step_args,
        dense,
        x._replace(inputs=variables.inputs),
        saved,
        variables.newest,
        variables.window,
        combined(variables.before, saved.before),
        fetch,
        variables.choice_probes,
    )
    # The h that entered is known for all steps; see `run_backward`.
    for n, product in enumerate(layer.products):
        if product.of_h:
            operands[n] = None
    return (new, floats((choice, after))), operands


def _send_back(
    layer: Layer,
    adjoints_RBH: Any,
    t: Int[Array, ""],
    x: LoopInputs,
    saved: Saved,
    d_variables: Differentiated,
) -> tuple[Any, Any]:
    """Add the gradients of a step's reads to the adjoints; return these and row State(t-1)."""
    # Difference 3: JAX would keep K rows for each step, and add up whole histories at each step.
    # First the states that the choice read, then those that it observed.
    read = layer.read(saved.choice)
    adjoints_RBH, rows = read.send_back(adjoints_RBH, t, x.flags.alive, d_variables.reads)
    if d_variables.window is None:
        return adjoints_RBH, rows
    names = layer.recurrence.time_skip.observation_arrays(layer.recurrence.transition)
    parts = jnp.split(d_variables.window, len(names), -1)
    for name, part_KBH in zip(names, parts, strict=True):
        adjoint, row = hist.add_window(getattr(adjoints_RBH, name), t, part_KBH)
        adjoints_RBH = adjoints_RBH._replace(**{name: adjoint})
        rows = rows._replace(**{name: row})
    return adjoints_RBH, rows


def _entering_of_all(layer: Layer, args: Arguments, result: Result) -> Any:
    """Return the states that entered, (time, batch, hidden) each; not for choices with weights."""
    newest_TBH = newest_of_all(args, result.histories)
    if args.initial is not None:
        initial = jax.tree.map(
            lambda initial, rows: jnp.broadcast_to(initial, rows.shape), args.initial, newest_TBH
        )
        args = args._replace(initial=initial)
        newest_TBH = newest_or_initial(args.flags, newest_TBH, initial)
    if not layer.reaches_back:
        return newest_TBH
    read = layer.read(result.choices)
    fetched_TBH = read.fetch_all(result.histories, args.time)
    return enter(layer, args, args.flags, read, fetched_TBH, newest_TBH)


# Gradients after the loop.


def _gradient_of_first_rows(
    layer: Layer, args: Arguments, result: Result, d_result: ResultCotangents, adjoints_RBH: Any
) -> Any:
    """Return the gradient of the K states before the first step, each array (K, batch, hidden)."""
    # A loop that reads only State(t-1) adds nothing to the histories' own gradients.
    if not layer.reaches_back:
        adjoints_RBH = combined(d_result.histories, zeros_like(result.histories))
    d_first_KBH = jax.tree.map(lambda rows: rows[: layer.K], adjoints_RBH)
    # State(-1) is an argument twice: as the last of these rows and as `newest`, which has got the
    # row's gradient in the loop. A carry that is forgotten (`flags.first`) is `newest` only.
    if layer.reaches_back and args.flags.first is None:
        is_older = (jnp.arange(layer.K) < layer.K - 1)[:, None, None]
        d_first_KBH = jax.tree.map(lambda rows: jnp.where(is_older, rows, 0), d_first_KBH)
    return d_first_KBH


def _gradients_of_params(
    layer: Layer,
    args: Arguments,
    d_params: Any,
    h_TBH: Array,
    d_inputs: list[Array],
    emitted: Emitted,
) -> tuple[tuple[Any, ...], Any]:
    """Return the gradients of the matrices and of the vectors, each from all steps at once."""
    matrices: list[Any] = [None] * len(args.matrices)
    vectors, structure = jax.tree.flatten(d_params)
    calls = zip(layer.products, emitted.d_products, emitted.operands, strict=True)
    for product, d_product, operand in calls:
        d = d_product
        if product.owns_input:
            d = d_inputs[product.input]
        # The loop does not emit an operand that is the h that entered.
        x = operand
        if product.of_h:
            x = h_TBH
        gradient = outer_products(x, d, args.matrices[product.matrix])
        matrices[product.matrix] = added(matrices[product.matrix], gradient)
        for i in product.vectors:
            vectors[i] = vectors[i] + jnp.sum(d, axis=(0, 1)).astype(vectors[i].dtype)
    return tuple(matrices), structure.unflatten(vectors)


def _gradients_of_choices(
    layer: Layer, args: Arguments, result: Result, d_choice_probes: Any
) -> tuple[Any, Any, Any]:
    """Return the gradients of the time skip's parameters, of `given` and of `recent_inputs`."""
    if not layer.differentiable:
        return None, None, None
    # Difference 2, for the time skip: the loop has sent back the gradients of the observations and
    # of the state before each step, so only those of parameters and inputs remain.
    observations = observations_of_all(layer.recurrence, args, result.histories)
    given, before = swap_time_and_batch((args.given, result.before))

    def choose(skip, projected, temperature, recent_inputs):
        followed = followed_of_all(recent_inputs, layer.K, args.flags.alive)
        inputs = given._replace(projected=projected, temperature=temperature, followed=followed)
        time_skip = layer.recurrence.time_skip
        return floats(make_choice(time_skip, skip, inputs, observations, before, layer.mode))

    temperature = args.given.temperature
    _, undo = jax.vjp(choose, args.skip, given.projected, temperature, args.recent_inputs)
    d_skip, d_projected, d_temperature, d_recent_inputs = undo(swap_time_and_batch(d_choice_probes))
    d_given = SkipInputs(swap_time_and_batch(d_projected), temperature=d_temperature)
    return d_skip, d_given, d_recent_inputs
