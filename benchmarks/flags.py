"""Flags of a benchmark: a dataclass whose fields have a default, a help text and bounds."""

import dataclasses
import functools
import inspect
import os
import typing
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from dynskip_jax.config import Bounds, listed, parse

__all__ = ["listed", "path_setting", "read_flags", "setting"]


def setting(default: Any = dataclasses.MISSING, help: str = "", *, path: bool = False, **bounds: Any) -> Any:
    """Return a dataclass field that describes a flag; `bounds` are those of `config.Bounds`."""
    metadata = {"help": help, "bounds": Bounds(**bounds), "path": path}
    return dataclasses.field(default=default, metadata=metadata)


path_setting = functools.partial(setting, path=True)


def read_flags(prog: str, about: str, kind: type, arguments: Sequence[str]) -> Any:
    """Read a command line into a dataclass."""
    parameters, hints = [], typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        bounds, text = field.metadata["bounds"], field.metadata["help"]
        hint = Annotated[hints[field.name], bounds, tyro.conf.arg(help=text)]
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        how = dict(annotation=hint, default=default)
        parameters.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, **how))
    values = parse(prog, about, parameters, arguments)
    for field in dataclasses.fields(kind):
        if field.metadata["path"] and isinstance(values[field.name], str):
            values[field.name] = os.path.expanduser(values[field.name])
    return kind(**values)
