"""PRNG keys, one per example: what an example draws then depends on no other, on one device or on many."""

import jax
from jaxtyping import Array, Key


def example_keys(key: Key[Array, "..."], batch: tuple[int, ...]) -> Key[Array, "..."]:
    """Returns one key per example: the given ones, (*batch,), or as many split from a single one."""
    return key if key.shape == batch else jax.random.split(key, batch)


def split_each(keys: Key[Array, "..."], num: int) -> tuple[Key[Array, "..."], ...]:
    """Splits every key into `num`; returns `num` arrays of keys of the same shape."""

    def split(key: Key[Array, ""]) -> tuple[Key[Array, ""], ...]:
        return tuple(jax.random.split(key, num))

    for _ in keys.shape:
        split = jax.vmap(split)
    return split(keys)
