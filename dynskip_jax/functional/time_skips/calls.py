"""How steps call a time skip: its results are checked, and cut off from gradients they lack."""

from typing import Any

import jax
import jax.numpy as jnp

from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.agent import ActionMode
from dynskip_jax.functional.relaxation import RELAXATIONS
from dynskip_jax.functional.time_skips.base import Choice, Decision, SkipInputs, TimeSkip


def make_choice(
    skip: TimeSkip,
    params: Any,
    inputs: SkipInputs,
    observation: Any,
    skip_state: Any,
    mode: ActionMode,
) -> tuple[Choice, Any]:
    """Return the result of `skip.choose`, checked."""
    made = skip.choose(params, inputs, observation, skip_state, mode)
    _check_choice(skip, made, inputs.step.shape)
    if inputs.action is None:
        _check_trainable(skip, made[0], mode)
    choice, skip_state = made
    # Slots of a distribution over the K states are among them, and each operation of a step has its
    # price on a TPU.
    if choice.slot is not None and not skip.has_distribution:
        choice = choice._replace(slot=jnp.clip(choice.slot, 0, skip.max_skip - 1))
    if skip.differentiable(mode, inputs.action is not None):
        return choice, skip_state
    return jax.lax.stop_gradient((choice, skip_state))


def decide(
    skip: TimeSkip,
    params: Any,
    inputs: SkipInputs,
    observation: Any,
    choice: Choice,
    mode: ActionMode,
) -> Decision:
    """Return `skip.trace`, without credit for a first step that uses the carried state."""
    decision = skip.trace(params, inputs, observation, choice, mode)
    lead = inputs.step.shape
    _check_arrays(f"{type(skip).__name__}.trace", decision, Decision(lead, lead, lead, lead))
    if not skip.forgets_carried:
        return decision
    first = inputs.step == 0
    nothing = Decision(1, 0, 0)
    return jax.tree.map(lambda new, old: jnp.where(first, new, old), nothing, decision)


def _check_trainable(skip: TimeSkip, choice: Choice, mode: ActionMode) -> None:
    """Check that something trains the parameters by which `skip` has chosen a slot."""
    if not skip.has_agent or choice.weights is not None:
        return
    name = type(skip).__name__
    if skip.num_choices == 0:
        raise UserError(
            f"expected weights from {name}.choose, got a slot, which trains no parameters: declare "
            "`num_choices`, and sample the slot with inputs.noise"
        )
    if skip.mode_of(mode) in RELAXATIONS:
        raise UserError(
            f"expected weights from {name}.choose in mode {mode!r}, got a slot: return weights, or "
            "write `mode_of`, so that it is sampled instead"
        )


def _check_choice(skip: TimeSkip, made: Any, lead: tuple[int, ...]) -> None:
    """Check what `skip.choose` has returned for steps with the axes `lead`."""
    name = f"{type(skip).__name__}.choose"
    if type(made) is not tuple or len(made) != 2 or not isinstance(made[0], Choice):
        raise UserError(
            f"expected {name} to return a Choice and the skip's state, got {described(made)}"
        )
    choice = made[0]
    if skip.fixed_slot is None and choice.slot is None and choice.weights is None:
        raise UserError(f"expected a slot or weights from {name}, got neither")
    if skip.writes_all == (choice.update is not None):
        raise UserError(f"expected an update from {name} if writes_all is False, and only then")
    # Weights are those of all K states, or of the n states in `slot`.
    of_states = lead
    if choice.weights is not None and choice.slot is not None:
        of_states = (*lead, *jnp.shape(choice.slot)[-1:])
    elif choice.weights is not None:
        of_states = (*lead, skip.max_skip)
    _check_arrays(name, choice, Choice(of_states, of_states, lead, lead))


def _check_arrays(name: str, made: Any, shapes: Choice | Decision) -> None:
    """Check the arrays of what the method `name` has returned; what is optional may be None."""
    if not isinstance(made, type(shapes)):
        raise UserError(
            f"expected {name} to return a {type(shapes).__name__}, got {described(made)}"
        )
    for field, value, shape in zip(made._fields, made, shapes, strict=True):
        if value is None and (isinstance(made, Choice) or field == "update"):
            continue
        kind = jnp.floating
        if field in ("slot", "action"):
            kind = jnp.integer
        is_kind = hasattr(value, "dtype") and jnp.issubdtype(value.dtype, kind)
        if not is_kind or value.shape != shape:
            raise UserError(
                f"expected {field} of {name} to be {kind.__name__} {shape}, got {described(value)}"
            )
