"""Named tuples of outputs that raise a helpful error when they are used as the array that they hold."""

from typing import Any

from dynskip_jax.errors import UserError

_OPERATORS = (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "matmul", "rmatmul"),
    *("neg", "pow", "array"),
)


def holds_array(field: str) -> Any:
    """Return a class decorator for named tuples whose array is in `field`.

    Using an instance as an array (arithmetic, conversion, array indices) raises a `UserError` that names
    `field`. An unknown attribute raises an `AttributeError` that also names `field`.
    """

    def decorate(cls: type) -> type:
        message = f"{cls.__name__} is no array: take its .{field}, as in out.{field}"

        def refuse(self: Any, *_: Any, **__: Any) -> Any:
            raise UserError(message)

        def item(self: Any, index: Any) -> Any:
            if isinstance(index, str) and index in self._fields:  # nnx.tabulate indexes outputs by field
                return getattr(self, index)
            return tuple.__getitem__(self, index) if isinstance(index, int | slice) else refuse(self)

        def attribute(self: Any, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            raise AttributeError(f"{cls.__name__} has no {name!r}; the array is its .{field}")

        for name in (*(f"__{operator}__" for operator in _OPERATORS), "__jax_array__"):
            setattr(cls, name, refuse)
        cls.__getitem__, cls.__getattr__ = item, attribute
        return cls

    return decorate
