"""Arrays made inside a function, laid out over devices as the batch they belong to.

With explicit sharding, and inside `jax.shard_map`, the type of an array says how it is divided among devices.
Arrays that a function makes itself have to agree with those that came in.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Shaped


def batch_zeros(
    like: Shaped[Array, "*batch"], shape: tuple[int, ...], dtype: Any, *, axis: int = 0
) -> Shaped[Array, "..."]:
    """Return zeros whose batch axes are divided among devices as those of `like`.

    Args:
        like: any array of the batch axes alone, (*batch,), such as `SkipCarry.step`.
        shape: of the zeros; its axes from `axis` on are the batch axes.
        dtype: of the zeros.
        axis: place of the first batch axis.
    """
    base = jnp.zeros_like(like, dtype)
    ones_behind = len(shape) - axis - like.ndim
    return jnp.broadcast_to(base.reshape((1,) * axis + like.shape + (1,) * ones_behind), shape)


def as_batch(array: Shaped[Array, "..."], like: Shaped[Array, "*batch"]) -> Shaped[Array, "..."]:
    """Return an array with its batch axes divided among devices as those of `like`.

    Args:
        array: (*batch, ...); a PRNG key array or numbers.
        like: any array of the batch axes alone.
    """
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        data = as_batch(jax.random.key_data(array), like)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
    spec = jax.typeof(like).sharding.spec
    if any(axis is not None for axis in spec):
        rest = (None,) * (array.ndim - like.ndim)
        array = jax.sharding.reshard(array, PartitionSpec(*spec, *rest))
    return array + batch_zeros(like, array.shape, array.dtype)


def as_varying(tree: Any, like: Shaped[Array, "..."]) -> Any:
    """Return a tree whose arrays vary over every mapped axis of `jax.shard_map` over which `like` does.

    The transpose sums over these axes, so that a derivative of one's own need not.
    """

    def cast(leaf: Array) -> Array:
        missing = _varying(like) - _varying(leaf)
        return jax.lax.pcast(leaf, tuple(missing), to="varying") if missing else leaf

    return jax.tree.map(cast, tree)


def _varying(array: Shaped[Array, "..."]) -> frozenset:
    """Return the mapped axes over which an array varies."""
    kind = jax.typeof(array)
    manual = getattr(kind, "manual_axis_type", None)
    return getattr(kind, "vma", frozenset()) if manual is None else manual.varying


def gradient_sharding(parameter: Shaped[Array, "..."], like: Shaped[Array, "..."]) -> Any:
    """Return how the gradient of a parameter is divided among devices, as `out_sharding` takes it.

    Args:
        parameter: the parameter, whose gradient is divided as it is.
        like: an array of the batch, which says what the mesh is. Without an explicit mesh the answer is None.
    """
    mesh = jax.typeof(like).sharding.mesh
    if mesh.empty or not mesh.explicit_axes:
        return None
    of_parameter = jax.typeof(parameter).sharding
    spec = PartitionSpec() if of_parameter.mesh.empty else of_parameter.spec
    return NamedSharding(mesh, spec)
