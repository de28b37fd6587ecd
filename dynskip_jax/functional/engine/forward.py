"""The forward loop, and what is computed from its histories for all steps at once."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from dynskip_jax.functional.engine import history as hist
from dynskip_jax.functional.engine.deferred import keep_results
from dynskip_jax.functional.engine.problem import Arguments, Layer
from dynskip_jax.functional.engine.step import (
    LoopInputs,
    given_at,
    loop_inputs,
    take_step,
    window_at,
)
from dynskip_jax.functional.engine.trees import swap_time_and_batch, without
from dynskip_jax.functional.memory import Memory, followed_memory, observations_in
from dynskip_jax.functional.step import Recurrence, observation_of
from dynskip_jax.functional.time_skips import Choice


class Result(NamedTuple):
    """Result of an unroll."""

    histories: Any  # each array of the state over time, (K + time, batch, hidden)
    choices: Choice  # choices, (time, batch, ...)
    before: Any  # state of the time skip before each step, (time, batch, ...)
    last: Any  # state of the time skip after the last step


class ForwardCarry(NamedTuple):
    """What a step of the forward loop passes to the next one."""

    t: Int[Array, ""]  # number of the step
    newest: Any  # State(t-1)
    # The states up to State(t-2), then zeros; None if a step reads State(t-1) only
    histories_RBH: Any
    before: Any  # state of the time skip before step t
    # The projected inputs, (time, batch, ...) each; results that are kept have overwritten those
    # that a product owns, up to row t - 1
    inputs: list[Array]
    rows: list[Array]  # row t of each projected input


class Kept(NamedTuple):
    """What the forward loop keeps for the backward loop, beside its result."""

    results: Any  # results of the products that overwrite no projected input
    # States that entered, (time, batch, hidden) each, if choices have `weights`; otherwise None
    entering: Any
    inputs: list[Array]  # the projected inputs, with the results that have overwritten them


def run_forward(layer: Layer, args: Arguments) -> tuple[Result, Kept]:
    """Run all steps; return the result, and what the backward loop needs.

    The loop is the same if no gradient is asked for: XLA leaves out what nobody reads.
    """
    # What passes from step to step. Histories have K rows before the first step, and zeros where
    # the loop will write.
    histories_RBH = None
    if layer.reaches_back:
        histories_RBH = jax.tree.map(
            lambda rows: jnp.pad(rows, ((0, args.time), (0, 0), (0, 0))), args.first_rows
        )
    inputs = list(args.inputs)
    rows = [hist.at(array, 0) for array in inputs]
    first = jnp.zeros((), jnp.int32)
    start = ForwardCarry(first, args.newest, histories_RBH, args.skip_state, inputs, rows)

    step = partial(_step_forward, layer, args)
    steps = loop_inputs(args)
    carry, (states_TBH, choices, before, kept) = lax.scan(step, start, steps)

    # If steps read State(t-1) only, the loop emits the states, and the histories are made of them.
    if layer.reaches_back:
        histories_RBH = _with_newest(layer, args, carry, hist.write)
    else:
        histories_RBH = jax.tree.map(
            lambda first, states: jnp.concatenate([first, states]), args.first_rows, states_TBH
        )
    results, entering_TBH = kept
    result = Result(histories_RBH, choices, before, carry.before)
    return result, Kept(results, entering_TBH, carry.inputs)


def _with_newest(
    layer: Layer, args: Arguments, carry: ForwardCarry, write: Callable[..., Array]
) -> Any:
    """Return the histories with State(t-1), by `write`."""

    def add(rows: Array, newest: Array, first_rows_KBH: Array) -> Array:
        # A state that is forgotten has been replaced in its row.
        if args.flags.first is not None:
            newest = jnp.where(carry.t > 0, newest, first_rows_KBH[-1])
        return write(rows, carry.t + layer.K - 1, newest)

    return jax.tree.map(add, carry.histories_RBH, carry.newest, args.first_rows)


def _step_forward(
    layer: Layer, args: Arguments, carry: ForwardCarry, x: LoopInputs
) -> tuple[ForwardCarry, tuple[Any, Choice, Any, Any]]:
    """Take step t; return what passes on, and State(t), the choice, what was before, and is kept.

    State(t) is None if it is written into the histories.
    """
    t = carry.t
    owned = layer.input_of_product
    # The histories get State(t-1) before this step reads them.
    histories_RBH = None
    if layer.reaches_back:
        histories_RBH = _with_newest(layer, args, carry, hist.write_first)
    x = x._replace(inputs=carry.rows, given=given_at(layer, args, t, x.given, x.flags))

    def fetch(choice: Choice) -> Any:
        return layer.read(choice).fetch(histories_RBH, t, x.flags.alive)

    results: list[Any] = []
    dense = keep_results(args.matrices, results)
    window_KBH = window_at(layer, histories_RBH, t)
    taken = take_step(layer, args, dense, x, carry.newest, window_KBH, carry.before, fetch)

    # State(t) is emitted if later steps do not read it in the histories.
    emitted = taken.new
    if layer.reaches_back:
        emitted = None
    owned_rows = {i: results[n] for n, i in owned.items()}
    inputs, rows = hist.overwrite(carry.inputs, owned_rows, t, 1)
    # A state that was chosen is read from the histories again; an average is kept.
    average = None
    if taken.choice.weights is not None:
        average = taken.entering
    kept = (without(results, owned), average)
    carry = ForwardCarry(t + 1, taken.new, histories_RBH, taken.after, inputs, rows)
    return carry, (emitted, taken.choice, taken.before, kept)


# Values of all steps at once.


def newest_of_all(args: Arguments, histories_RBH: Any) -> Any:
    """Return State(t-1) of all steps, (time, batch, hidden) each."""
    before = args.first_rows[0].shape[0] - 1
    newest_TBH = jax.tree.map(lambda rows: rows[before : before + args.time], histories_RBH)
    if args.flags.first is None:
        return newest_TBH
    # The carried state entered the first step; the history has the state that replaced it.
    return jax.tree.map(lambda carried, rows: hist.write(rows, 0, carried), args.newest, newest_TBH)


def observations_of_all(recurrence: Recurrence, args: Arguments, histories_RBH: Any) -> Any:
    """Return the observations of all steps, with the batch axis first."""
    skip = recurrence.time_skip
    alive_TB = args.flags.alive
    initial = args.initial and observation_of(recurrence, args.initial)
    if skip.observation_kind == "previous":
        newest_TBH = observation_of(recurrence, newest_of_all(args, histories_RBH))
        if alive_TB is not None:
            newest_TBH = jnp.where((alive_TB == 0)[..., None], initial[None], newest_TBH)
        return swap_time_and_batch(newest_TBH)
    # Without packed rows, there is no initial state to see.
    rows_RBH = observation_of(recurrence, histories_RBH)
    rows_BRH, alive_BT = swap_time_and_batch((rows_RBH, alive_TB))
    kind = skip.observation_kind
    return observations_in(rows_BRH, kind, skip.max_skip, args.time, alive_BT, initial)


def followed_of_all(
    recent_inputs_RBF: Float[Array, "rows batch in"] | None,
    K: int,
    alive_TB: Int[Array, "time batch"] | None,
) -> Memory | None:
    """Return the inputs that followed the last K states of all steps, with the batch axis first."""
    if recent_inputs_RBF is None:
        return None
    rows_BRF, alive_BT = swap_time_and_batch((recent_inputs_RBF, alive_TB))
    return followed_memory(rows_BRF, K, alive_BT, has_time=True)
