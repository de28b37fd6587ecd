"""Checks of arguments: types and shapes always, values only if they are already known."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.policy import Policy
from dynskip_jax.functional.product import wider

IMPLEMENTATIONS = ("auto", "fused", "reference", "parallel")


def check_keys(key: Any) -> None:
    """Raise a `UserError` unless `key` is a new-style PRNG key (`jax.random.key`)."""
    if isinstance(key, jax.Array) and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        return
    found = described(key)
    if "uint32" in found:
        found += " (jax.random.PRNGKey makes legacy ones)"
    raise UserError(f"expected a PRNG key, such as jax.random.key(0), got {found}")


def check_key_of(key: Any, batch: tuple[int, ...]) -> None:
    """Raise a `UserError` unless `key` is a PRNG key, or has one per example, (*batch,)."""
    check_keys(key)
    if key.shape not in ((), batch):
        raise UserError(f"expected one key, or one per example, {batch}, got {key.shape}")


def check_rates(name: str, *rates: float) -> None:
    """Raise a `UserError` unless each of the rates that messages call `name` is in [0, 1)."""
    for rate in rates:
        if not 0.0 <= rate < 1.0:
            raise UserError(f"{name} lies in [0, 1), got {rate}")


def check_whole(name: str, value: Any, at_least: int = 1) -> int:
    """Return a whole number of at least `at_least` as a Python int, or raise a `UserError`."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or value < at_least:
        raise UserError(
            f"expected {name} to be a whole number of at least {at_least}, got {value!r}"
        )
    return int(value)


def check_fields(piece: Any) -> None:
    """Check the numbers among the fields of a frozen dataclass by their annotations.

    A field of `int` is a whole number, one of `bool` is True or False, and one of `float` is a real
    number. NumPy's numbers become Python's, so that the piece is hashable and compares by value.
    """
    kinds = {
        int: (int, np.integer),
        bool: (bool, np.bool_),
        float: (int, float, np.integer, np.floating),
    }
    wanted = {int: "a whole number", bool: "True or False", float: "a number"}
    for field in dataclasses.fields(piece):
        value = getattr(piece, field.name)
        # True and False are numbers to Python.
        if field.type not in kinds or isinstance(value, jax.core.Tracer):
            continue
        is_flag = isinstance(value, bool | np.bool_)
        is_kind = isinstance(value, kinds[field.type]) and is_flag == (field.type is bool)
        if not is_kind or (field.type is float and math.isnan(value)):
            name = f"{type(piece).__name__}.{field.name}"
            raise UserError(f"expected {name} to be {wanted[field.type]}, got {value!r}")
        if isinstance(value, np.generic):
            value = value.item()
        object.__setattr__(piece, field.name, value)


def check_whole_numbers(name: str, array: Any, shape: tuple[int, ...], meaning: str) -> None:
    """Check that `array` has whole numbers and this shape.

    `meaning` names its axes: `(batch, time)`.
    """
    if (
        not hasattr(array, "dtype")
        or not jnp.issubdtype(array.dtype, jnp.integer)
        or array.shape != shape
    ):
        wanted = f"an array of whole numbers, {meaning} = {shape}"
        raise UserError(f"expected {name} to be {wanted}, got {described(array)}")


def check_resets(resets: Any, shape: tuple[int, ...], meaning: str) -> None:
    """Check that `resets` are booleans of this shape, whose axes `meaning` names."""
    if getattr(resets, "dtype", None) != np.bool_ or resets.shape != shape:
        raise UserError(
            f"expected resets to be booleans, {meaning} = {shape}, got {described(resets)}"
        )


def known_values(array: Any) -> np.ndarray | None:
    """Return the values of an array; None if they are traced, or on devices of other processes."""
    if isinstance(array, jax.core.Tracer):
        return None
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return None
    return np.asarray(array)


def check_range(name: str, values: np.ndarray, low: int, high: Any) -> None:
    """Raise a `UserError` if any value is below `low` or above `high`."""
    if values.size and (values.min() < low or values.max() > high):
        raise UserError(
            f"{name} lie between {low} and {high}, got {values.min()} to {values.max()}"
        )


def check_lengths(seq_lengths: Any, batch: tuple[int, ...], num_steps: int) -> np.ndarray | None:
    """Check that lengths are whole numbers in 0..`num_steps`, (*batch,).

    Return them if they are known.
    """
    check_whole_numbers("seq_lengths", seq_lengths, batch, "(batch,)")
    values = known_values(seq_lengths)
    if values is not None:
        check_range("seq_lengths", values, 0, num_steps)
    return values


def valid_lengths(
    seq_lengths: Int[Array, "*batch"], num_steps: int, batch: tuple[int, ...] | None = None
) -> Int[Array, "*batch"]:
    """Check `seq_lengths` and return them as int32; traced lengths are clipped to 0..`num_steps`.

    All functions that take lengths follow this rule. If `batch` is None, there is at least one
    batch axis.
    """
    if isinstance(num_steps, bool | float):
        raise UserError(f"expected the number of steps to be a whole number, got {num_steps!r}")
    check_lengths(seq_lengths, batch or jnp.shape(seq_lengths) or (1,), num_steps)
    return jnp.clip(jnp.asarray(seq_lengths).astype(jnp.int32), 0, num_steps)


def check_mix(mix: Any) -> None:
    """Raise a `UserError` unless λ is a single number in [0, 1]; traced values are not checked."""
    check_number("mix (λ)", mix, "between 0 and 1", lambda known: 0 <= known <= 1)


def check_number(name: str, value: Any, range_: str, is_inside: Callable[[Any], bool]) -> None:
    """Raise a `UserError` unless `value` is a single real number inside the range.

    Traced values are not checked.
    """
    # A traced value has a dtype and no value.
    dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    is_real = jnp.issubdtype(dtype, jnp.number) and not jnp.issubdtype(dtype, jnp.complexfloating)
    if np.ndim(value) or not is_real:
        raise UserError(f"{name} is a single number, got {described(value)}")
    if not isinstance(value, jax.core.Tracer) and not is_inside(np.asarray(value)):
        raise UserError(f"{name} lies {range_}, got {value}")


def check_call(
    recurrences: Sequence[Any],
    x: Any,
    *,
    policies: Sequence[Policy],
    carry: Sequence[Any] | None = None,
    hidden: Sequence[int | None] | None = None,
    seq_lengths: Any = None,
    segment_ids: Any = None,
    resets: Any = None,
    actions: Sequence[Any] | None = None,
) -> None:
    """Check the arguments of a call of layers: shapes always, values if they are known.

    Sequences have one entry for each layer and direction. `x` is (*batch, time, in); `segment_ids`,
    `resets` and actions have its axes but the last. `hidden` is the size of each layer's state;
    None checks no sizes.
    """
    lead = x.shape[:-1]
    *batch, time = lead
    batch = tuple(batch)
    steps = "(batch, time)"
    lengths = np.asarray(time)
    if seq_lengths is not None:
        lengths = check_lengths(seq_lengths, batch, time)
    if segment_ids is not None:
        check_whole_numbers("segment_ids", segment_ids, lead, steps)
    if resets is not None:
        check_resets(resets, lead, steps)
        if segment_ids is not None:
            raise UserError("segment_ids and resets both say where sequences begin: pass one")
    sizes = hidden or [None] * len(recurrences)
    for i, recurrence in enumerate(recurrences):
        if carry is not None:
            check_carry(recurrence, carry[i], batch, sizes[i])
        check_policy(policies[i], recurrence.time_skip.max_skip, batch)
        if actions is None or actions[i] is None:
            continue
        # Padding may hold any action, and a step whose length is unknown is not checked.
        valid = None
        if lengths is not None and isinstance(time, int):
            valid = np.broadcast_to(np.arange(time) < lengths[..., None], lead)
        check_actions(recurrence.time_skip, actions[i], lead, steps, valid)


def check_implementation(implementation: str) -> None:
    """Raise a `UserError` unless `unroll` has an implementation of this name."""
    if implementation not in IMPLEMENTATIONS:
        raise UserError(
            f"unknown implementation {implementation!r}: choose {' or '.join(IMPLEMENTATIONS)}"
        )


def check_inputs(x: Any, shape: str = "(batch, time, in)", in_features: int | None = None) -> None:
    """Check that `x` are vectors of floats.

    An axis with `*` in `shape` stands for any number of axes.
    """
    axes = shape.count(",") + 1
    expected = shape
    if in_features is not None:
        expected = shape.replace("in)", f"{in_features})")
    fits = hasattr(x, "dtype") and x.ndim == axes
    if "*" in shape:
        fits = hasattr(x, "dtype") and x.ndim >= axes - 1
    if not fits or (in_features is not None and x.shape[-1] != in_features):
        raise UserError(f"expected inputs {expected}, got {described(x)}")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise UserError(
            f"expected inputs {expected} of floats, got {described(x)}: embed tokens first"
        )


def check_below(recurrence: Any, below: Any, lead: tuple[int, ...], hidden: int) -> None:
    """Check the depth skip's input, (*lead, features), for a layer of size `hidden`."""
    if below is None:
        return
    if recurrence.depth_skip is None:
        raise UserError("this layer has no skip over depth: leave out below")
    if not jnp.ndim(below) or jnp.shape(below)[:-1] != lead:
        raise UserError(f"expected below to be {(*lead, 'features')}, got {described(below)}")
    recurrence.depth_skip.check_below(below.shape[-1], hidden)


def check_actions(
    skip: Any,
    actions: Any,
    shape: tuple[int, ...],
    meaning: str,
    valid: Bool[np.ndarray, "..."] | bool | None = True,
) -> None:
    """Check actions to replay: their shape and dtype, and their values if they are known.

    `valid` is True where a sequence has a step, in a shape that broadcasts to `shape`. If it is
    None, it is not known where, and values are not checked.
    """
    check_whole_numbers("actions", actions, shape, meaning)
    values = known_values(actions)
    if values is not None and valid is not None:
        check_range("actions", values[np.broadcast_to(valid, shape)], *skip.action_range)


def check_dtypes(params: Any, carry: Any) -> None:
    """Check that no parameter is wider than the state, because a step keeps the state's dtype.

    Narrower ones are fine: products are multiplied in the dtype of the parameters, and summed in
    that of the state.
    """
    state = carry.dtype
    for path, leaf in jax.tree.leaves_with_path(params):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and wider(leaf.dtype, state) != state:
            raise UserError(
                f"expected parameters no wider than the state, which is {state}, "
                f"got {leaf.dtype} in params{jax.tree_util.keystr(path)}: "
                f"make the carry in {leaf.dtype}, or cast the parameters"
            )


def check_policy(policy: Policy, max_skip: int, batch: tuple[int, ...]) -> None:
    """Check the type of a layer's policy, its mask, λ and τ."""
    if not isinstance(policy, Policy):
        raise UserError(f"policy is a Policy, such as Policy('greedy'), not {policy!r}")
    if policy.mask is not None and getattr(policy.mask, "dtype", None) != np.bool_:
        raise UserError(f"a policy's mask is an array of booleans, got {described(policy.mask)}")
    if policy.mask is not None and jnp.shape(policy.mask) not in ((max_skip,), (*batch, max_skip)):
        raise UserError(
            f"a policy's mask is (K,) = {(max_skip,)} or (batch, K), got {described(policy.mask)}: "
            "give layers of different K a tuple of masks"
        )
    if policy.mix is not None:
        check_mix(policy.mix)
    check_number("a temperature (τ)", policy.temperature, "above 0", lambda known: known > 0)


@functools.lru_cache
def _skip_state_structure(time_skip: Any) -> Any:
    """Return the structure of a time skip's state, cached: steps outside of `jit` ask often."""
    return jax.tree.structure(jax.eval_shape(lambda: time_skip.init_skip_state((), jnp.float32)))


def check_carry(
    recurrence: Any, carry: Any, batch: tuple[int, ...], hidden: int | None = None
) -> None:
    """Check that a carry fits a layer and a batch; if `hidden` is None, its size is not checked."""
    if not hasattr(carry, "ring"):
        raise UserError(
            f"expected a SkipCarry, as initialize_carry makes it, got {described(carry)}"
        )
    kind = recurrence.transition.state
    K = recurrence.time_skip.max_skip
    if not isinstance(carry.ring, kind):
        raise UserError(
            f"expected a carry of {kind.__name__}, got one of {type(carry.ring).__name__}"
        )
    # The K states.
    for array in carry.ring:
        if array.shape[:-2] != batch or carry.step.shape != batch:
            raise UserError(
                f"expected a carry of the inputs' batch {batch}, got one of {array.shape[:-2]}"
            )
        if array.shape[-2] != K:
            raise UserError(f"expected a carry with K = {K} slots, got one with {array.shape[-2]}")
        if hidden is not None and array.shape[-1] != hidden:
            raise UserError(f"expected a carry of {hidden} features, got one of {array.shape[-1]}")
    # What the time skip keeps beside them.
    if jax.tree.structure(carry.skip_state) != _skip_state_structure(recurrence.time_skip):
        name = type(recurrence.time_skip).__name__
        raise UserError(f"expected a carry of {name}, got one of another skip over time")
    if recurrence.time_skip.observes_inputs:
        if carry.inputs is None or carry.inputs.shape[:-1] != (*batch, K):
            raise UserError(
                f"expected a carry with the inputs of {K} states, as initialize_carry makes it"
            )
    elif carry.inputs is not None:
        raise UserError("expected a carry without inputs: this time skip does not observe them")
    # Keys, which a carry of evaluation lacks.
    if carry.key is None:
        return
    check_keys(carry.key)
    if carry.key.shape != batch:
        raise UserError(
            f"expected a carry with one key per example, {batch}, got {carry.key.shape}: "
            "make it with `initial_carry`, which splits a single key"
        )
