"""Arrays with any number of batch axes, as layers with a single one see them."""

import math
from typing import Any

import jax


class BatchAxes:
    """The axes that lead an input: none, one or several.

    Args:
        shape: their sizes.
    """

    def __init__(self, shape: tuple[int, ...]):
        self.shape = tuple(shape)

    def merged(self, tree: Any) -> Any:
        """Every leaf, (*batch, ...), with one axis in their place."""
        if len(self.shape) == 1:
            return tree
        rest, size = len(self.shape), math.prod(self.shape)
        return jax.tree.map(lambda leaf: leaf.reshape(size, *leaf.shape[rest:]), tree)

    def split(self, tree: Any) -> Any:
        """The inverse."""
        if len(self.shape) == 1:
            return tree
        return jax.tree.map(lambda leaf: leaf.reshape(*self.shape, *leaf.shape[1:]), tree)
