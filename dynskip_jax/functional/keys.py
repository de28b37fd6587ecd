"""PRNG keys for single examples, whose noise depends on neither other examples nor devices."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from dynskip_jax.functional.checks import check_key_of, check_keys, check_whole
from dynskip_jax.functional.sharding import match_batch


def example_keys(key: Key[Array, "..."], batch: tuple[int, ...]) -> Key[Array, "..."]:
    """Return one key per example, (*batch,): `key` if it has this shape, else its parts."""
    check_key_of(key, batch)
    if key.shape == batch:
        return key
    return jax.random.split(key, batch)


def rollouts(tree: Any, num: int) -> Any:
    """Return arrays with `num` rollouts of each row along a new leading axis.

    Arrays are repeated, and every PRNG key is split into `num`: with copies of one key, all
    rollouts of a row would make the same choices. Use it for inputs and targets, and for a carry
    with keys::

        x, lengths, y, carry = F.rollouts((x, lengths, y, carry), 4)
    """
    num = check_whole("the number of rollouts", num)

    def repeated(leaf: Any) -> Array:
        if jnp.result_type(leaf) == jnp.uint32 and jnp.shape(leaf)[-1:] == (2,):
            check_keys(leaf)  # copies of a legacy key would be refused nowhere
        if jax.dtypes.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
            return jnp.stack(split_each(leaf, num))
        return jnp.stack([leaf] * num)

    return jax.tree.map(repeated, tree)


def split_each(keys: Key[Array, "..."], num: int) -> tuple[Key[Array, "..."], ...]:
    """Split every key into `num` keys, and return `num` arrays of the shape of `keys`."""

    def split(key: Key[Array, ""]) -> tuple[Key[Array, ""], ...]:
        return tuple(jax.random.split(key, num))

    for _ in keys.shape:
        split = jax.vmap(split)
    return split(keys)


def fold_in_each(keys: Key[Array, "..."], numbers: Int[Array, "..."] | int) -> Key[Array, "..."]:
    """Apply `jax.random.fold_in` to each key, with a number of its own or one int for all."""
    fold_in = jax.random.fold_in
    axes = (0, 0)
    if isinstance(numbers, int):
        axes = (0, None)
    elif keys.ndim:
        numbers = match_batch(numbers, keys)
    for _ in keys.shape:
        fold_in = jax.vmap(fold_in, axes)
    return fold_in(keys, numbers)
