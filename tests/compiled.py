"""Run calls as one compiled program; without it, JAX compiles each operation separately."""

from collections.abc import Callable
from functools import partial

import jax
import numpy as np
from flax import nnx

from dynskip_jax import functional as F


def compiled(function: Callable) -> Callable:
    """Return `function`, or a module's call, as one program; changes that it makes to the module
    are lost.
    """

    def call(*args, **kwargs):
        definition, state = (
            nnx.split(function) if isinstance(function, nnx.Module) else (function, None)
        )
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = [leaf if isinstance(leaf, jax.Array | np.ndarray) else None for leaf in leaves]
        others = tuple(
            leaf if array is None else None for leaf, array in zip(leaves, arrays, strict=True)
        )
        return _program(definition, tree, others, state, arrays)

    return call


@partial(jax.jit, static_argnums=(0, 1, 2))
def _program(definition, tree, others, state, arrays):
    """Call the function or module on the leaves of `arrays`, or of `others` where `arrays` has
    None.
    """
    leaves = [
        other if array is None else array for array, other in zip(arrays, others, strict=True)
    ]
    args, kwargs = jax.tree.unflatten(tree, leaves)
    return (definition if state is None else nnx.merge(definition, state))(*args, **kwargs)


unroll = compiled(F.unroll)


def on_device(tree):
    """Return `tree` with its NumPy arrays put on the device, for which no program is compiled."""
    return jax.tree.map(
        lambda leaf: jax.device_put(leaf) if isinstance(leaf, np.ndarray) else leaf, tree
    )


def drawn(make: Callable[[], nnx.Module], seed: int = 0, scale: float = 0.5) -> nnx.Module:
    """Return the module that `make` makes, with parameters drawn by NumPy: no initializer is
    compiled.
    """
    module, rng = nnx.eval_shape(make), np.random.default_rng(seed)

    def draw(leaf):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(seed)
        numbers = (
            scale * rng.normal(size=leaf.shape)
            if jax.numpy.issubdtype(leaf.dtype, np.floating)
            else 0
        )
        return jax.device_put(np.broadcast_to(numbers, leaf.shape).astype(leaf.dtype))

    nnx.update(module, jax.tree.map(draw, nnx.state(module)))
    return module
