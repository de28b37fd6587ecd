"""Calls as one compiled program: op by op, every operation is a program that is compiled by itself."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from dynskip_jax import functional as F


def compiled(function: Callable) -> Callable:
    """Returns a function, or a module's call, as one program for each set of arguments that are no arrays.

    A module is taken as it is at each call; what the call changes in it is lost.
    """
    programs: dict[Any, Callable] = {}

    def call(*args, **kwargs):
        module = nnx.split(function) if isinstance(function, nnx.Module) else None
        leaves, tree = jax.tree.flatten((args, kwargs))
        traced = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]
        static = tuple(None if of else leaf for leaf, of in zip(leaves, traced, strict=True))
        known = (tree, static, module and module[0])

        def run(arrays, state):
            rest = iter(arrays)
            merged = [next(rest) if of else leaf for leaf, of in zip(static, traced, strict=True)]
            args, kwargs = jax.tree.unflatten(tree, merged)
            return (nnx.merge(module[0], state) if module else function)(*args, **kwargs)

        if known not in programs:
            programs[known] = jax.jit(run)
        arrays = [leaf for leaf, of in zip(leaves, traced, strict=True) if of]
        return programs[known](arrays, module and module[1])

    return call


unroll = compiled(F.unroll)
