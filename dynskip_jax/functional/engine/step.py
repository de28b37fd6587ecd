"""The step of both loops: taken by the forward loop, and replayed by the backward loop.

`functional/step.py` has the reference step, which defines the meaning of this one.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynskip_jax.functional.engine import history as hist
from dynskip_jax.functional.engine.deferred import with_value
from dynskip_jax.functional.engine.problem import Arguments, Flags, Layer
from dynskip_jax.functional.engine.read import Read
from dynskip_jax.functional.engine.trees import added, combined, floats
from dynskip_jax.functional.memory import Memory, followed_memory
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.functional.sharding import match_batch
from dynskip_jax.functional.step import dropped, mixed, observation_of
from dynskip_jax.functional.time_skips import Choice, SkipInputs
from dynskip_jax.functional.time_skips.calls import make_choice


class LoopInputs(NamedTuple):
    """Inputs of a step that both loops read, or those of all steps, (time, batch, ...)."""

    inputs: Sequence[Any]  # projected inputs
    given: Any  # inputs of the choice that need no state (`SkipInputs`)
    flags: Flags  # of the step


def loop_inputs(args: Arguments) -> LoopInputs:
    """Return the inputs of all steps that both loops scan over; τ is the same at all steps."""
    return LoopInputs(None, args.given._replace(temperature=None), args.flags)


class Saved(NamedTuple):
    """Values of a step, or of all, that the backward loop knows from the forward loop."""

    newest: Any  # State(t-1)
    entering: Any  # state that entered
    choice: Choice  # choice that was made
    before: Any  # state of the time skip before the step
    results: Any  # results of products


class Taken(NamedTuple):
    """Results of a step."""

    new: Any  # State(t)
    entering: Any  # state that entered
    choice: Choice  # choice that was made
    before: Any  # state of the time skip before the step
    after: Any  # state of the time skip after the step


def take_step(
    layer: Layer,
    args: Arguments,
    dense: Callable[..., Any],
    x: LoopInputs,
    newest: Any,
    window_KBH: Float[Array, "K batch observed"] | None,
    before: Any,
    fetch: Callable[[Choice], Any],
) -> Taken:
    """Take a step from State(t-1), `newest`.

    `window_KBH` is what the choice observes of the last K states, `before` the time skip's state
    before the step, and `fetch` reads the states of a choice.
    """
    newest, before = _begin(layer, args, x.flags, newest, before)

    # Choose k.
    choice, after = choose(layer, args, x, newest, window_KBH, before)
    after = _held(x.flags, after, before)

    # The state that enters.
    entering = newest
    if layer.reaches_back:
        read = layer.read(choice)
        entering = enter(layer, args, x.flags, read, fetch(choice), newest)

    # The cell.
    new = _new_state(layer, args, dense, x, entering, newest, choice)
    return Taken(new, entering, choice, before, after)


def replay_step(
    layer: Layer,
    args: Arguments,
    dense: Callable[..., Any],
    x: LoopInputs,
    saved: Saved,
    newest: Any,
    window_KBH: Float[Array, "K batch observed"] | None,
    before: Any,
    fetch: Callable[[Choice], Any],
    choice_probes: Any,
) -> tuple[Any, Choice, Any]:
    """Take a step with the values of `saved`; return State(t), the choice and the skip's state.

    Derivatives are those of `take_step`. `choice_probes` are zeros whose gradients are those of the
    floats of the choice and of the new state of the time skip. See `take_step` for the other
    arguments.
    """
    newest, before = _begin(layer, args, x.flags, newest, before)

    # A choice without a derivative is not made again (Difference 4 of `backward.py`):
    # `make_choice` stops its gradient and that of the time skip's state. A differentiable one has
    # the saved value and the derivative of `chosen` (Difference 1).
    choice = saved.choice
    after = jax.lax.stop_gradient(before)
    if layer.differentiable:
        chosen, after = choose(layer, args, x, newest, window_KBH, before)
        choice = combined(with_value(floats(saved.choice), floats(chosen)), saved.choice)
        choice, after = combined(added(floats((choice, after)), choice_probes), (choice, after))
    after = _held(x.flags, after, before)

    entering = newest
    if layer.reaches_back:
        read = layer.read(choice)
        entering = enter(layer, args, x.flags, read, fetch(choice), newest)
    # The same for the state that entered, so that nothing before it is computed again.
    entering = with_value(saved.entering, entering)
    new = _new_state(layer, args, dense, x, entering, newest, choice)
    return new, choice, after


# Parts of a step.


def _begin(
    layer: Layer, args: Arguments, flags: Flags, newest: Any, before: Any
) -> tuple[Any, Any]:
    """Return State(t-1) and the time skip's state: initial ones where a sequence begins."""
    newest = newest_or_initial(flags, newest, args.initial)
    if flags.alive is None:
        return newest, before
    time_skip = layer.recurrence.time_skip
    fresh = time_skip.init_skip_state(flags.alive.shape, newest[0].dtype)
    fresh = match_batch(fresh, newest[0])
    return newest, where_each(flags.alive == 0, fresh, before)


def newest_or_initial(flags: Flags, newest: Any, initial: Any) -> Any:
    """Return State(t-1), or the initial state where a sequence begins inside a packed row."""
    if flags.alive is None:
        return newest
    return where_each(flags.alive == 0, initial, newest)


def choose(
    layer: Layer,
    args: Arguments,
    x: LoopInputs,
    newest: Any,
    window_KBH: Float[Array, "K batch observed"] | None,
    before: Any,
) -> tuple[Choice, Any]:
    """Make the choice of a step; return it, and the state of the time skip after it."""
    skip = layer.recurrence.time_skip
    # An observation of State(t-1) only needs no window of the histories.
    observation = observation_of(layer.recurrence, newest)
    if window_KBH is not None:
        initial = args.initial and observation_of(layer.recurrence, args.initial)
        window_BKH = jnp.moveaxis(window_KBH, 0, 1)
        known = Memory(window_BKH, layer.K, alive=x.flags.alive, initial=initial)
        observation = known.as_observation(skip.observation_kind)
    return make_choice(skip, args.skip, x.given, observation, before, layer.mode)


def enter(
    layer: Layer, args: Arguments, flags: Flags, read: Read, fetched: Any, newest: Any
) -> Any:
    """Return the state that enters, λ State(t-k) + (1 - λ) State(t-1) (Eq. 2)."""
    chosen = read.combine(fetched, flags.alive, args.initial)
    mix = layer.mix if args.mix is None else args.mix
    entering = mixed(layer.recurrence.transition, mix, chosen, newest)
    if flags.first is None:
        return entering
    return where_each(flags.first, newest, entering)


def _new_state(
    layer: Layer,
    args: Arguments,
    dense: Callable[..., Any],
    x: LoopInputs,
    entering: Any,
    newest: Any,
    choice: Choice,
) -> Any:
    """Return State(t). Past its end a sequence holds State(t-1), so that padding stays finite."""
    mask = args.recurrent_mask
    kept = dropped(entering, mask, layer.recurrence.transition)
    new = layer.cell(dense, args.params, x.inputs, kept, newest, choice.update, mask)
    return _held(x.flags, new, newest)


def _held(flags: Flags, after: Any, before: Any) -> Any:
    """Return `after`, or `before` past the end of a sequence."""
    if flags.valid is None:
        return after
    return where_each(flags.valid, after, before)


# What a step reads of histories.


def window_at(
    layer: Layer, histories_RBH: Any, t: Int[Array, ""]
) -> Float[Array, "K batch observed"] | None:
    """Return what choices observe of the K states before step t; None for State(t-1) only."""
    if layer.recurrence.time_skip.observation_kind == "previous":
        return None
    window = jax.tree.map(lambda rows: hist.read_window(rows, t, layer.K), histories_RBH)
    return observation_of(layer.recurrence, window)


def given_at(
    layer: Layer, args: Arguments, t: Int[Array, ""], given: SkipInputs, flags: Flags
) -> SkipInputs:
    """Return the inputs of the choice at step t, with those that followed the K states before."""
    given = given._replace(temperature=args.given.temperature)
    if args.recent_inputs is None:
        return given
    inputs_KBF = hist.read_window(args.recent_inputs, t, layer.K)
    inputs_BKF = jnp.moveaxis(inputs_KBF, 0, 1)
    return given._replace(followed=followed_memory(inputs_BKF, layer.K, flags.alive))
