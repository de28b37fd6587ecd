"""Give new arrays the explicit sharding and the varying axes (`jax.shard_map`) of a batch.

On several devices both are part of an array's type. A newly created array has neither, and
`jax.lax.scan` requires that the type of its carry does not change.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Shaped


def varying_axes(tree: Any) -> frozenset[str]:
    """Return the mesh axes of `jax.shard_map` along which any array of `tree` varies."""
    axes: frozenset[str] = frozenset()
    for leaf in jax.tree.leaves(tree):
        kind = jax.typeof(leaf)
        manual = getattr(kind, "manual_axis_type", None)  # JAX versions differ in where it is
        if manual is None:
            axes |= getattr(kind, "vma", frozenset())
        else:
            axes |= manual.varying
    return axes


def vary_along(tree: Any, axes: frozenset[str]) -> Any:
    """Return `tree` marked as varying along `axes`; gradients are summed over added axes."""

    def vary(leaf: Any) -> Any:
        missing = axes - varying_axes(leaf)
        if not missing:
            return leaf
        return jax.lax.pcast(leaf, tuple(sorted(missing)), to="varying")

    if not axes:
        return tree
    return jax.tree.map(vary, tree)


def explicit_spec(array: Array) -> PartitionSpec | None:
    """Return the `PartitionSpec` of an array with explicit sharding; None for other arrays."""
    spec = jax.typeof(array).sharding.spec
    if all(axis is None for axis in spec):
        return None
    return spec


def sharding_of_gradient(parameter: Array, like: Array) -> NamedSharding:
    """Return the sharding of a gradient: that of its parameter, on the mesh of `like`."""
    sharding = jax.typeof(parameter).sharding
    spec = sharding.spec
    if sharding.mesh.empty:
        spec = PartitionSpec()
    return NamedSharding(jax.typeof(like).sharding.mesh, spec)


def match_batch(tree: Any, like: Array) -> Any:
    """Return `tree` with the sharding of the leading axis and the varying axes of `like`."""
    spec = explicit_spec(like)
    mesh = jax.typeof(like).sharding.mesh

    # The leading axis gets the axis of the batch; the other axes keep theirs.
    def match(leaf: Array) -> Array:
        own = jax.typeof(leaf).sharding
        if own.spec[0] == spec[0] and own.mesh == mesh:
            return leaf
        # The mesh is that of the array, which need not be that of `jax.set_mesh`.
        return jax.sharding.reshard(
            leaf, NamedSharding(mesh, PartitionSpec(spec[0], *own.spec[1:]))
        )

    if spec is not None:
        tree = jax.tree.map(match, tree)
    return vary_along(tree, varying_axes(like))


def zeros_like_batch(like: Array, shape: tuple[int, ...], dtype: Any) -> Shaped[Array, "..."]:
    """Return zeros with the sharding and varying axes of `like`; see `match_batch`."""
    return match_batch(jnp.zeros(shape, dtype), like)


def zeros_like(array: Array) -> Array:
    """Return zeros of the shape and dtype of `array`, with its sharding and varying axes."""
    zeros = jnp.zeros_like(array)
    sharding = jax.typeof(array).sharding
    if explicit_spec(array) is not None and jax.typeof(zeros).sharding != sharding:
        zeros = jax.sharding.reshard(zeros, sharding)  # JAX 0.12 forgets a mesh that is not set
    return vary_along(zeros, varying_axes(array))


def on_mesh_of(tree: Any, like: Array) -> Any:
    """Return `tree` with its arrays that are on no mesh replicated over the mesh of `like`.

    JAX does not know how to shard the gradient of an array that is on no mesh.
    """
    if explicit_spec(like) is None:
        return tree
    replicated = NamedSharding(jax.typeof(like).sharding.mesh, PartitionSpec())

    def put(leaf: Array) -> Array:
        if not jax.typeof(leaf).sharding.mesh.empty:
            return leaf
        return jax.sharding.reshard(leaf, replicated)

    return jax.tree.map(put, tree)
