"""Give new arrays the explicit sharding and the varying axes (`jax.shard_map`) of a batch.

On several devices both are part of an array's type. A newly created array has neither, and
`jax.lax.scan` requires that the type of its carry does not change.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
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
    """Return the `PartitionSpec` of an array on an explicit mesh; None for other arrays."""
    sharding = jax.typeof(array).sharding
    if not _is_explicit(sharding.mesh):
        return None
    return sharding.spec


def _is_explicit(mesh: AbstractMesh) -> bool:
    return AxisType.Explicit in mesh.axis_types


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


def features_together(x: Shaped[Array, "*batch features"]) -> Shaped[Array, "*batch features"]:
    """Return `x` with all features of an example on one device."""
    spec = explicit_spec(x)
    if spec is None or spec[-1] is None:
        return x
    mesh = jax.typeof(x).sharding.mesh
    return jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec(*spec[:-1], None)))


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


def on_one_mesh(tree: Any) -> Any:
    """Return `tree` with its arrays that are on no mesh replicated over the mesh of the others.

    Otherwise it is that of `jax.set_mesh`. Loops and their gradients cannot mix both kinds.
    """
    meshes = [jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(tree)]
    mesh = next((mesh for mesh in meshes if not mesh.empty), jax.sharding.get_abstract_mesh())
    if not _is_explicit(mesh):
        return tree
    replicated = NamedSharding(mesh, PartitionSpec())

    def put(leaf: Array) -> Array:
        if not jax.typeof(leaf).sharding.mesh.empty:
            return leaf
        return jax.sharding.reshard(leaf, replicated)

    return jax.tree.map(put, tree)
