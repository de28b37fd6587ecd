"""Arrays with any number of batch axes, as layers with a single one see them."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError, described


class BatchAxes:
    """The axes that lead an input: none, one or several.

    Args:
        shape: their sizes.
    """

    def __init__(self, shape: tuple[int, ...]):
        self.shape = tuple(shape)

    def merged(self, tree: Any) -> Any:
        """Every leaf, (*batch, ...), with one axis in their place.

        Raises:
            UserError: one is shaped otherwise.
        """
        if len(self.shape) == 1:
            return tree
        rest, size = len(self.shape), math.prod(self.shape)

        def merge(leaf):
            if np.shape(leaf)[:rest] != self.shape or not hasattr(leaf, "reshape"):
                raise UserError(
                    f"expected arrays that begin with the batch, {self.shape}, got {described(leaf)}"
                )
            return leaf.reshape(size, *leaf.shape[rest:])

        return jax.tree.map(merge, tree)

    def merged_policy(self, policy: F.Policy) -> F.Policy:
        """The policy, the mask of which may lead with the batch."""
        if policy.mask is None or np.ndim(policy.mask) == 1:
            return policy
        return dataclasses.replace(policy, mask=self.merged(policy.mask))

    def split(self, tree: Any) -> Any:
        """The inverse."""
        if len(self.shape) == 1:
            return tree
        return jax.tree.map(lambda leaf: leaf.reshape(*self.shape, *leaf.shape[1:]), tree)
