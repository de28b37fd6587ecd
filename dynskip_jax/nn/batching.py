"""Arrays with any number of batch axes, as layers with a single one see them."""

import dataclasses
import math
from typing import Any

import jax

from dynskip_jax import functional as F


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

    def merged_policy(self, policy: F.Policy) -> F.Policy:
        """The policy, the mask of which may lead with the batch."""
        if policy.mask is None or policy.mask.ndim == 1:
            return policy
        return dataclasses.replace(policy, mask=self.merged(policy.mask))

    def split(self, tree: Any) -> Any:
        """The inverse."""
        if len(self.shape) == 1:
            return tree
        return jax.tree.map(lambda leaf: leaf.reshape(*self.shape, *leaf.shape[1:]), tree)
