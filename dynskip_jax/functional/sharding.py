"""Types of arrays on several devices: explicit sharding, and axes of `jax.shard_map` along which they vary.

Arrays that a function creates have neither, and a loop over time refuses a carry whose type changes.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Shaped


def varying_axes(tree: Any) -> frozenset[str]:
    """Return the mesh axes of `jax.shard_map` along which any array of a tree varies."""
    axes: frozenset[str] = frozenset()
    for leaf in jax.tree.leaves(tree):
        kind = jax.typeof(leaf)
        manual = getattr(kind, "manual_axis_type", None)  # the set has stood in two places
        axes |= getattr(kind, "vma", frozenset()) if manual is None else manual.varying
    return axes


def vary_along(tree: Any, axes: frozenset[str]) -> Any:
    """Return a tree of the same values that vary along these axes; gradients are summed over new ones."""

    def vary(leaf: Array) -> Array:
        missing = axes - varying_axes(leaf)
        return jax.lax.pcast(leaf, tuple(sorted(missing)), to="varying") if missing else leaf

    return jax.tree.map(vary, tree) if axes else tree


def explicit_spec(array: Array) -> PartitionSpec | None:
    """Return the partition of an array whose type says how it is sharded; None for all others."""
    spec = jax.typeof(array).sharding.spec
    return spec if any(axis is not None for axis in spec) else None


def sharding_of_gradient(parameter: Array, like: Array) -> NamedSharding:
    """Return how the gradient of a parameter is sharded: as the parameter, on the mesh of `like`."""
    sharding = jax.typeof(parameter).sharding
    spec = PartitionSpec() if sharding.mesh.empty else sharding.spec
    return NamedSharding(jax.typeof(like).sharding.mesh, spec)


def match_batch(tree: Any, like: Array) -> Any:
    """Return a tree of the same values whose leading axis is sharded and varies as that of `like`.

    Args:
        tree: arrays that lead with the batch.
        like: any array that leads with the batch.
    """
    spec = explicit_spec(like)

    def match(leaf: Array) -> Array:
        own = jax.typeof(leaf).sharding.spec
        if spec is not None and own[0] != spec[0]:
            return jax.sharding.reshard(leaf, PartitionSpec(spec[0], *own[1:]))
        return leaf

    return vary_along(tree if spec is None else jax.tree.map(match, tree), varying_axes(like))


def zeros_like_batch(like: Array, shape: tuple[int, ...], dtype: Any) -> Shaped[Array, "..."]:
    """Return zeros whose leading axis is sharded and varies as that of `like`."""
    return match_batch(jnp.zeros(shape, dtype), like)
