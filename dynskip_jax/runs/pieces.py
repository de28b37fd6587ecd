"""Create the time skip and the transition of a model: known ones, or `my_module:MyClass(16)`."""

import ast
import dataclasses
import importlib
import re
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

from dynskip_jax import functional as F
from dynskip_jax.config.flags import short
from dynskip_jax.config.settings import Settings, first
from dynskip_jax.errors import UserError

_PIECE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)(\(.*\))?")


class NotImported(UserError):
    """A piece of one's own is asked for by a file, and its module is not imported."""


def check_names(names: Sequence[str], settings: Settings) -> None:
    """Raise a `UserError` for an unknown time skip or transition, before data are loaded."""
    for name in names:
        make_time_skip(name, settings, may_import=True)
    make_transition(settings, may_import=True)


def make_time_skip(name: str, settings: Settings, may_import: bool) -> F.TimeSkip:
    """Create the time skip that a model's name describes, before a control replaces it."""
    agent = settings.agent
    # A skip has the settings of agents that are fields of its class, also those without a flag.
    kinds = type(agent).__mro__
    names = {name for kind in kinds for name in vars(kind).get("__annotations__", {})}
    options = {name: getattr(agent, name) for name in names}
    options["mix"] = first(agent.mix)
    if settings.model.recipe == "released":
        options |= dict(agent_input="mean", first_step="carried")
    return _make_piece(name, F.TimeSkip, F.TIME_SKIPS, F.parse_time_skip, may_import, **options)


def make_transition(settings: Settings, may_import: bool) -> F.Transition:
    """Create the recurrent cell of every layer."""
    name = settings.model.transition
    return _make_piece(name, F.Transition, F.TRANSITIONS, F.parse_transition, may_import)


def _make_piece(
    text: str,
    kind: type,
    known: Collection[str],
    parse: Callable[..., Any],
    may_import: bool,
    **options: Any,
) -> Any:
    """Create a known piece by `parse`, or the subclass of `kind` in `module:Class(16, mix=0.5)`.

    Of `options`, which are values of other fields, those that a class does not have are ignored.
    Without `may_import`, the program must have imported the module: only names typed on the command
    line import code.
    """
    found = _PIECE.fullmatch(text)
    if found is None or text.partition(":")[0] in known:
        return parse(text, **options)
    module, name, arguments = found.groups()
    if may_import:
        import_module(module, f"the module of {short(text)},")
    elif module not in sys.modules:
        raise NotImported(
            f"{short(text)} is a piece of your own, and reading a run imports no code: type its "
            f"name on the command line, give --code {module}, or import it in Python"
        )
    piece = getattr(sys.modules[module], name, None)
    if not (isinstance(piece, type) and issubclass(piece, kind)):
        raise UserError(f"{short(text)}: {module} has no class {name} derived from {kind.__name__}")
    fields = [field.name for field in dataclasses.fields(piece) if field.init]
    try:
        call = ast.parse(f"f{arguments or '()'}", mode="eval").body
        listed = [ast.literal_eval(each) for each in call.args]
        named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError, AttributeError, TypeError, RecursionError, MemoryError):
        # Python raises the last two for arguments that are nested too deep.
        problem = "arguments are numbers, words in quotes, True, False or None"
        raise UserError(f"{short(text)}: {problem}") from None
    given = {name: options[name] for name in fields[len(listed) :] if name in options}
    try:
        return piece(*listed, **given | named)
    except TypeError as error:
        raise UserError(f"{short(text)}: {error}") from None


def import_module(name: str, flag: str) -> None:
    """Import a module that the command line names, from the current folder or the environment."""
    if "" not in sys.path:
        sys.path.insert(0, "")  # the current folder, as in `python -m`
    try:
        importlib.import_module(name)
    except Exception as error:  # whatever the module raises
        raise UserError(f"{flag} {short(name)} cannot be imported: {error!r}") from error
