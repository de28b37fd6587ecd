"""Flax NNX module that holds the arrays of a named tuple of parameters."""

from typing import Any

import jax
from flax import nnx


class Weights(nnx.Module):
    """Module with one `nnx.Param` for each field of a named tuple, under the field's name.

    A field that is a tuple of arrays becomes a list of `nnx.Param`. Optimizers find the parameters in the
    module, and `read` returns the named tuple for the pure functions.

    Args:
        values: Named tuple whose fields are arrays, tuples of arrays or None.

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
        """Return the named tuple of arrays.

        Args:
            dtype: Dtype to which matrices are cast; None casts nothing. Vectors are never cast.
        """

        def array(param: nnx.Param) -> jax.Array:
            value = param[...]
            return value.astype(dtype) if dtype is not None and value.ndim > 1 else value

        def field(value: Any) -> Any:
            if value is None:
                return None
            return tuple(map(array, value)) if isinstance(value, nnx.List) else array(value)

        return self.kind(*(field(getattr(self, name)) for name in self.kind._fields))
