"""Trees of arrays as the loops use them: None stands for a gradient that is zero or missing."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from dynskip_jax.functional import sharding


def floats(tree: Any) -> Any:
    """Return `tree` with None for leaves that are not floats."""

    def only_float(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf
        return None

    return jax.tree.map(only_float, tree)


def combined(some: Any, tree: Any) -> Any:
    """Return `tree` with the leaves that `some` has, where it has any."""

    def first(a: Any, b: Any) -> Any:
        if a is None:
            return b
        return a

    return _map_with_none(first, some, tree)


def added(a: Any, b: Any) -> Any:
    """Return the sum of two trees, in which None is zero."""

    def add(a: Any, b: Any) -> Any:
        if a is None:
            return b
        if b is None:
            return a
        return a + b

    return _map_with_none(add, a, b)


def _map_with_none(function: Callable[..., Any], *trees: Any) -> Any:
    # JAX takes None for an empty tree, not for a leaf.
    return jax.tree.map(function, *trees, is_leaf=lambda leaf: leaf is None)


def zeros_like(tree: Any) -> Any:
    """Return zeros with the shapes, the shardings and the varying axes of `tree`."""
    return jax.tree.map(sharding.zeros_like, tree)


def without(items: Sequence[Any], places: Iterable[int]) -> list[Any]:
    """Return a list of `items` with None at `places`."""
    places = {*places}
    return [None if place in places else item for place, item in enumerate(items)]


def with_rows(items: Sequence[Any], places: Iterable[int], rows: Sequence[Any]) -> list[Any]:
    """Return a list of `items` with `rows` at `places`."""
    items = list(items)
    for place, row in zip(places, rows, strict=True):
        items[place] = row
    return items


def swap_time_and_batch(tree: Any) -> Any:
    """Return a tree with the first two axes of each array exchanged; numbers stay."""

    def exchange(leaf: Any) -> Any:
        if jnp.ndim(leaf) < 2:
            return leaf
        return jnp.swapaxes(leaf, 0, 1)

    return jax.tree.map(exchange, tree)
