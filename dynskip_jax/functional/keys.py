"""PRNG keys for single examples: an example's noise depends neither on other examples nor on devices."""

from typing import Any

import jax
from jaxtyping import Array, Int, Key

from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.engine.sharding import match_batch


def check_keys(key: Any) -> None:
    """Raise a `UserError` unless `key` is a new-style PRNG key (`jax.random.key`)."""
    if isinstance(key, jax.Array) and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        return
    found = described(key)
    legacy = " (jax.random.PRNGKey makes legacy ones)" if "uint32" in found else ""
    raise UserError(f"expected a PRNG key, such as jax.random.key(0), got {found}{legacy}")


def check_key_of(key: Any, batch: tuple[int, ...]) -> None:
    """Raise a `UserError` unless `key` is a PRNG key, or has one per example, (*batch,)."""
    check_keys(key)
    if key.shape not in ((), batch):
        raise UserError(f"expected one key, or one per example, {batch}, got {key.shape}")


def example_keys(key: Key[Array, "..."], batch: tuple[int, ...]) -> Key[Array, "..."]:
    """Return one key per example, (*batch,): `key` itself if it has this shape; a single key is split."""
    check_key_of(key, batch)
    return key if key.shape == batch else jax.random.split(key, batch)


def split_each(keys: Key[Array, "..."], num: int) -> tuple[Key[Array, "..."], ...]:
    """Split every key into `num` keys, and return `num` arrays of the shape of `keys`."""

    def split(key: Key[Array, ""]) -> tuple[Key[Array, ""], ...]:
        return tuple(jax.random.split(key, num))

    for _ in keys.shape:
        split = jax.vmap(split)
    return split(keys)


def fold_in_each(keys: Key[Array, "..."], numbers: Int[Array, "..."] | int) -> Key[Array, "..."]:
    """Apply `jax.random.fold_in` to each key, with one number for each of them, or one int for all."""
    fold_in, axes = jax.random.fold_in, (0, None if isinstance(numbers, int) else 0)
    for _ in keys.shape:
        fold_in = jax.vmap(fold_in, axes)
    if keys.ndim and not isinstance(numbers, int):
        numbers = match_batch(numbers, keys)
    return fold_in(keys, numbers)
