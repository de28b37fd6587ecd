"""Modules that the others are made of: modes, a linear layer, and parameters by name."""

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.product import product, row


class HasModes(nnx.Module):
    """A module whose choices and dropout depend on its mode: training or evaluation."""

    deterministic: bool = False  # True in evaluation; `.train()` and `.eval()` set it

    def set_view(self, deterministic: bool | None = None):
        """Set the mode, as `nnx.view` does; None keeps it."""
        if deterministic is not None:
            self.deterministic = deterministic


class Linear(nnx.Linear):
    """`nnx.Linear` that multiplies in `dtype`, but sums in a wider one.

    Sums and results have the wider of `dtype` and the input's dtype. `dtype` is `param_dtype` by
    default. With bfloat16 and float32 inputs the result is float32; Flax's own layer would return
    bfloat16.
    """

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        """Return x W + b; x W if the layer has no bias."""
        y = product(x, self.kernel[...].astype(self.dtype or self.param_dtype))
        if self.bias is None:
            return y
        # The sum stays in the dtype of the product, whatever the bias has.
        return y + row(self.bias[...], y).astype(y.dtype)


def _are_arrays(values: tuple[Any, ...]) -> bool:
    """Return whether all values are arrays, tuples of arrays, or None."""
    leaves = []
    for value in values:
        leaves += value if isinstance(value, tuple) else [value]
    return all(leaf is None or hasattr(leaf, "dtype") for leaf in leaves)


class Weights(nnx.Module):
    """Module with one `nnx.Param` for each field of a named tuple, under the field's name.

    A field that is a tuple of arrays becomes a list of `nnx.Param`, and None stays None. `read`
    returns the named tuple for the pure functions.
    """

    def __init__(self, values: Any):
        if not hasattr(values, "_fields") or not _are_arrays(values):
            wanted = "a named tuple of arrays, or of tuples of arrays"
            raise UserError(
                f"a layer keeps {wanted} as parameters, got {described(values)} from `init`"
            )
        # These are static, so they must not contain classes of arrays: those of traced ones differ.
        self.kind = type(values)
        self.kinds = tuple(type(value) if isinstance(value, tuple) else None for value in values)

        for name, value in zip(values._fields, values, strict=True):
            if isinstance(value, tuple):
                value = nnx.List([nnx.Param(array) for array in value])
            elif value is not None:
                value = nnx.Param(value)
            setattr(self, name, nnx.data(value))

    def read(self) -> Any:
        """Return the named tuple of arrays."""
        # Flax stores a list, also where the transition declared a tuple of its own kind.
        values = [getattr(self, name) for name in self.kind._fields]
        return self.kind(*map(_read_field, self.kinds, values))


def _read_field(kind: type | None, value: Any) -> jax.Array | tuple[jax.Array, ...] | None:
    """Return the array of a parameter, or those of a list of parameters as a tuple of this kind."""
    if value is None:
        return None
    if not isinstance(value, nnx.List):
        return value[...]
    leaves = tuple(param[...] for param in value)
    if hasattr(kind, "_fields"):  # a named tuple takes its fields one by one
        return kind(*leaves)
    return leaves
