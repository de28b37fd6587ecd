"""Checks of rates, and of integer arrays: shapes are always checked, values only if they are known."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from dynskip_jax.errors import UserError, described


def check_rates(name: str, *rates: float) -> None:
    """Raise a `UserError` unless each of the rates that messages call `name` is in [0, 1)."""
    for rate in rates:
        if not 0.0 <= rate < 1.0:
            raise UserError(f"{name} lies in [0, 1), got {rate}")


def check_whole_numbers(name: str, array: Any, shape: tuple[int, ...], meaning: str) -> None:
    """Check that `array` is an integer array of the given shape.

    Args:
        name: Name of the argument, for the error message.
        array: Value of the argument.
        shape: Expected shape.
        meaning: Names of the axes, for the error message, such as `(batch, time)`.

    Raises:
        UserError: If `array` is not an array, or has another shape or a dtype that is not an integer type.
    """
    if not hasattr(array, "dtype") or not jnp.issubdtype(array.dtype, jnp.integer) or array.shape != shape:
        wanted = f"an array of whole numbers, {meaning} = {shape}"
        raise UserError(f"expected {name} to be {wanted}, got {described(array)}")


def known_values(array: Any) -> np.ndarray | None:
    """Return the values of an array; None if it is traced or partly on devices of other processes."""
    if isinstance(array, jax.core.Tracer):
        return None
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return None
    return np.asarray(array)


def check_range(name: str, values: np.ndarray, low: int, high: Any) -> None:
    """Raise a `UserError` if any value is below `low` or above `high`."""
    if values.size and (values.min() < low or values.max() > high):
        raise UserError(f"{name} lie between {low} and {high}, got {values.min()} to {values.max()}")


def check_lengths(seq_lengths: Any, batch: int, num_steps: int) -> None:
    """Check that lengths of sequences are integers from 0 to `num_steps`, one per row.

    Args:
        seq_lengths: Lengths to check, (batch,).
        batch: Number of rows.
        num_steps: Size of the time axis.

    Raises:
        UserError: If the shape or dtype is wrong, or a known length is out of range.
    """
    check_whole_numbers("seq_lengths", seq_lengths, (batch,), "(batch,)")
    values = known_values(seq_lengths)
    if values is not None:
        check_range("seq_lengths", values, 0, num_steps)


def valid_lengths(seq_lengths: Int[Array, " batch"], num_steps: int) -> Int[Array, " batch"]:
    """Check `seq_lengths` and return them as int32; traced lengths are clipped to 0..`num_steps`.

    All functions that take lengths follow this rule.

    Raises:
        UserError: See `check_lengths`.
    """
    check_lengths(seq_lengths, jnp.shape(seq_lengths)[0] if jnp.ndim(seq_lengths) else 1, num_steps)
    return jnp.clip(jnp.asarray(seq_lengths).astype(jnp.int32), 0, num_steps)
