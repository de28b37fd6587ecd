"""Create user-defined time skips and transitions, named on the command line as `my_module:MyClass(16)`."""

import ast
import dataclasses
import importlib
import re
import sys
from collections.abc import Collection
from typing import Any

from dynskip_jax.config import short
from dynskip_jax.errors import UserError

_PIECE = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)(?P<arguments>\(.*\))?")


class NotImported(UserError):
    """A piece of one's own is asked for by a file, and its module is not imported."""


def is_own_piece(text: str, known: Collection[str]) -> bool:
    """Return whether a name refers to a class in a module, as in `my_pieces:LogSpaced(16)`.

    Args:
        text: Name on the command line.
        known: Names of the library's skips or transitions, which are never read as the name of a module.
    """
    return text.partition(":")[0] not in known and _PIECE.fullmatch(text) is not None


def make_own_piece(text: str, kind: type, options: dict[str, Any], *, may_import: bool) -> Any:
    """Create the user-defined skip or transition that a name describes.

    Args:
        text: `module:Class`, or with literal arguments: `module:Class(16, mix=0.5)`.
        kind: Base class that the class must be derived from.
        options: Values of other fields; those that the class does not have are ignored.
        may_import: Whether to import the module. If not, the program must have imported it already: only
            names that are typed on the command line import code.

    Raises:
        UserError: If there is no such module or class, or it does not accept these arguments.
    """
    found = _PIECE.fullmatch(text)
    module = _module(found["module"], text, may_import=may_import)
    piece = getattr(module, found["name"], None)
    if not (isinstance(piece, type) and issubclass(piece, kind)):
        raise UserError(
            f"{text}: {found['module']} has no class {found['name']} derived from {kind.__name__}"
        )
    positional, named = _arguments(found["arguments"] or "()", text)
    fields = [field.name for field in dataclasses.fields(piece)]
    given = dict(zip(fields, positional, strict=False)) | named
    try:
        return piece(**{name: value for name, value in options.items() if name in fields} | given)
    except TypeError as error:
        raise UserError(f"{text}: {error}") from None


def import_module(name: str, flag: str) -> Any:
    """Import a module that the command line names, from the current folder or the environment.

    Raises:
        UserError: If the module cannot be imported.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")  # the current folder, as in `python -m`
    try:
        return importlib.import_module(name)
    except (ImportError, ValueError) as error:
        raise UserError(f"{flag} {short(name)} cannot be imported: {error}") from error


def _module(name: str, text: str, *, may_import: bool) -> Any:
    if may_import:
        return import_module(name, f"the module of {short(text)},")
    if name not in sys.modules:
        raise NotImported(
            f"{short(text)} is a piece of your own, and reading a run imports no code: type its name on the "
            f"command line, or give --code {name}"
        )
    return sys.modules[name]


def _arguments(text: str, piece: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the keyword arguments of a call, which must be literals."""
    try:
        call = ast.parse(f"f{text}", mode="eval").body
        positional = [ast.literal_eval(argument) for argument in call.args]
        named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError, AttributeError):
        raise UserError(f"{piece}: arguments are numbers, words in quotes, True, False or None") from None
    return positional, named
