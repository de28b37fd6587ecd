"""PRNG keys, one per example: what an example draws then depends on no other, on one device or on many."""

from typing import Any

import jax
from jaxtyping import Array, Int, Key

from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.sharding import match_batch


def check_keys(key: Any) -> None:
    """Raises a `UserError` for what is no PRNG key of JAX's current kind."""
    if isinstance(key, jax.Array) and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        return
    found = described(key)
    legacy = " (jax.random.PRNGKey makes legacy ones)" if "uint32" in found else ""
    raise UserError(f"expected a PRNG key, such as jax.random.key(0), got {found}{legacy}")


def example_keys(key: Key[Array, "..."], batch: tuple[int, ...]) -> Key[Array, "..."]:
    """Returns one key per example: the given ones, (*batch,), or as many split from a single one.

    Raises:
        UserError: it is no key, or there are several, of another shape.
    """
    check_keys(key)
    if key.shape not in ((), batch):
        raise UserError(f"expected one key, or one per example, {batch}, got {key.shape}")
    return key if key.shape == batch else jax.random.split(key, batch)


def split_each(keys: Key[Array, "..."], num: int) -> tuple[Key[Array, "..."], ...]:
    """Splits every key into `num`; returns `num` arrays of keys of the same shape."""

    def split(key: Key[Array, ""]) -> tuple[Key[Array, ""], ...]:
        return tuple(jax.random.split(key, num))

    for _ in keys.shape:
        split = jax.vmap(split)
    return split(keys)


def fold_in_each(keys: Key[Array, "..."], numbers: Int[Array, "..."]) -> Key[Array, "..."]:
    """`jax.random.fold_in` of each key and its own number, of the same shape."""
    fold_in = jax.random.fold_in
    for _ in keys.shape:
        fold_in = jax.vmap(fold_in)
    return fold_in(keys, match_batch(numbers, keys) if keys.ndim else numbers)
