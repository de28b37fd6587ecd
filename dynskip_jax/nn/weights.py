"""A module that owns the arrays of a params tuple: pure functions get them, optimizers find them."""

from typing import Any

import jax
from flax import nnx


class Weights(nnx.Module):
    """Each field of a named tuple as an `nnx.Param` of that name; a tuple of arrays as a list of them.

    Args:
        values: the named tuple, its leaves arrays or None.

    Example::

        >>> import jax
        >>> from dynskip_jax.functional import GRU, Initializers
        >>> weights = Weights(GRU().init(jax.random.key(0), 3, 8, Initializers()))
        >>> weights.w_h.shape, weights.read().w_h.shape
        ((8, 16), (8, 16))
    """

    def __init__(self, values: Any):
        self.kind = type(values)
        for name, value in zip(values._fields, values, strict=True):
            if isinstance(value, tuple):
                value = nnx.List([nnx.Param(array) for array in value])
            elif value is not None:
                value = nnx.Param(value)
            setattr(self, name, nnx.data(value))

    def read(self, dtype: Any = None) -> Any:
        """Returns the named tuple: matrices in `dtype` (by default their own), vectors as they are."""

        def array(param: nnx.Param) -> jax.Array:
            value = param[...]
            return value.astype(dtype) if dtype is not None and value.ndim > 1 else value

        def field(value: Any) -> Any:
            if value is None:
                return None
            return tuple(map(array, value)) if isinstance(value, nnx.List) else array(value)

        return self.kind(*(field(getattr(self, name)) for name in self.kind._fields))
