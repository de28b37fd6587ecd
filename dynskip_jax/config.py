"""Settings as dataclasses, and how they are read: command lines (by tyro), presets and JSON. Imports no JAX.

A setting is one line: name, type with bounds, default, and a docstring that is the text of `--help`.
"""

import contextlib
import dataclasses
import difflib
import functools
import inspect
import io
import itertools
import math
import re
import shutil
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from dynskip_jax.errors import UserError
from dynskip_jax.extras import needs

MAX_SEED = 2**32 - 1  # for larger seeds JAX would repeat the keys of smaller ones
_MOST_QUOTED = 80  # characters of a value in a message


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Bounds of a number: `at_least` and `at_most` are allowed values, `above` and `below` are not."""

    at_least: int | float | None = None
    at_most: int | float | None = None
    above: int | float | None = None
    below: int | float | None = None

    def hold(self, value: float) -> bool:
        """Return whether `value` satisfies the bounds; NaN and infinity never do."""
        is_finite = isinstance(value, int) or math.isfinite(value)
        return is_finite and not (
            (self.at_least is not None and value < self.at_least)
            or (self.at_most is not None and value > self.at_most)
            or (self.above is not None and value <= self.above)
            or (self.below is not None and value >= self.below)
        )

    def __str__(self) -> str:
        """Return the requirement as part of an error message, such as "at least 1"."""
        sides = {name.replace("_", " "): value for name, value in vars(self).items() if value is not None}
        return " and ".join(f"{side} {value:,}" for side, value in sides.items()) or "finite"


@dataclasses.dataclass(frozen=True)
class For:
    """Mark a setting that has an effect only on some models, named as on the command line."""

    models: tuple[str, ...]


Count = Annotated[int, Bounds(1, 1_000_000)]
Layers = Annotated[int, Bounds(1, 100)]
Size = Annotated[int, Bounds(1, 100_000)]
Natural = Annotated[int, Bounds(0, 1_000_000)]
Seed = Annotated[int, Bounds(0, MAX_SEED)]
Rate = Annotated[float, Bounds(at_least=0, below=1)]  # of dropout
Share = Annotated[float, Bounds(at_least=0, at_most=1)]
Positive = Annotated[float, Bounds(above=0)]
Weight = Annotated[float, Bounds(at_least=0)]


# --- Types ---


class _Leaf(typing.NamedTuple):
    """One alternative of a setting's type: one value, or a tuple of `several`, of a kind and with bounds."""

    kind: Any
    bounds: Bounds | None = None
    several: bool = False


@functools.cache
def hints_of(kind: type) -> Mapping[str, Any]:
    """Return the type of each field of a dataclass, with its bounds, by the field's name."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def path_names(fields: Mapping[str, tuple[str, Any, Any]]) -> set[str]:
    """Return the names of the settings that are paths."""
    return {name for name, (_, hint, _) in fields.items() if any(x.kind is Path for x in _leaves(hint))}


@functools.cache
def _leaves(hint: Any) -> tuple[_Leaf, ...]:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        bounds = next((each for each in inside[1:] if isinstance(each, Bounds)), None)
        return tuple(leaf._replace(bounds=leaf.bounds or bounds) for leaf in _leaves(inside[0]))
    if origin in (typing.Union, types.UnionType):
        return tuple(leaf for each in inside for leaf in _leaves(each))
    if origin is tuple:
        return tuple(leaf._replace(several=True) for leaf in _leaves(inside[0]))
    return (_Leaf(hint),)


def bounds_of(hint: Any) -> Bounds:
    """Return the bounds of a type's numbers."""
    return next((leaf.bounds for leaf in _leaves(hint) if leaf.bounds), Bounds())


def words_of(hint: Any) -> tuple[str, ...]:
    """Return the words that a type allows, in its `Literal`s."""
    return tuple(w for leaf in _leaves(hint) for w in _words(leaf.kind))


def _words(kind: Any) -> tuple[str, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


_NAMES = {int: "a whole number", float: "a number", str: "text", Path: "a path", bool: "true or false"}


def read_value(text: str, hint: Any) -> Any:
    """Convert a text to a type of a setting. A text that does not fit stays as it is: see `problem`."""
    leaves = _leaves(hint)
    if any(leaf.several and _words(leaf.kind) for leaf in leaves):
        return tuple(text.split(","))
    if text in words_of(hint):
        return text
    if text == "none" and any(leaf.kind is types.NoneType for leaf in leaves):
        return None
    for leaf in leaves:
        if leaf.kind in (int, float, str, Path):
            with contextlib.suppress(ValueError):
                values = tuple(leaf.kind(part) for part in (text.split(",") if leaf.several else [text]))
                values = tuple(v.expanduser() if isinstance(v, Path) else v for v in values)
                return values if leaf.several else values[0]
    return text


def problem(value: Any, hint: Any) -> str | None:
    """Return what is wrong with a value of a setting, as the end of a sentence, or None."""
    leaves, bad = _leaves(hint), None
    for leaf in leaves:
        values = value if isinstance(value, tuple) else (value,)
        if isinstance(value, tuple) != leaf.several or not all(_is(each, leaf.kind) for each in values):
            continue
        allowed = leaf.bounds or Bounds()
        bad = next((v for v in values if isinstance(v, int | float) and not allowed.hold(v)), None)
        if bad is None:
            swept = leaf.several and any(not other.several for other in leaves)
            return f"names a value twice: {shown(value)}" if swept and len({*values}) < len(values) else None
        return f"must be {allowed}, got {short(bad)}"
    words = words_of(hint)
    kinds = [
        f"{_NAMES[leaf.kind].removeprefix('a ')}s, separated by commas" if leaf.several else _NAMES[leaf.kind]
        for leaf in leaves
        if leaf.kind in _NAMES
    ]
    return f"takes {listed([*words, *dict.fromkeys(kinds)])}, got {short(value)}"


def _is(value: Any, kind: Any) -> bool:
    if words := _words(kind):
        return isinstance(value, str) and value in words
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def short(value: Any) -> str:
    """Return a value for a message: at most 80 characters of it."""
    is_number = isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**100)
    text = str(value) if is_number else repr(str(value)[:10_000])
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}…"


def listed(words: Sequence[str]) -> str:
    """Return the words as one text, such as `a, b or c`."""
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def flag(name: str) -> str:
    """Return the name of a setting on the command line."""
    return f"--{name.replace('_', '-')}"


# --- Command lines ---


def program(name: str) -> str:
    """Return a command as users of this process type it: `dynskip NAME` or `python -m experiments.NAME`."""
    return f"dynskip {name}" if Path(sys.argv[0]).stem == "dynskip" else f"python -m experiments.{name}"


def parse(
    prog: str, about: str, parameters: Sequence[inspect.Parameter], arguments: Sequence[str]
) -> dict[str, Any]:
    """Read a command line with a flag for each parameter, or for each field of one that is a dataclass.

    Args:
        prog: Name of the program, for `--help`.
        about: Text of `--help`; a function's docstring describes its flags.
        parameters: Parameters as of a function, with annotations.
        arguments: Command-line arguments.

    Raises:
        UserError: If the command line cannot be read, or a value is invalid.
        SystemExit: If `--help` was given.
    """
    with needs("experiments"):
        import tyro  # takes a tenth of a second, which a program that only loads runs need not spend

    def values_of(**values: Any) -> dict[str, Any]:
        return values

    values_of.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    values_of.__annotations__ = {each.name: each.annotation for each in parameters}
    values_of.__doc__ = about
    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(_primitive)
    told = io.StringIO()
    how = dict(
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff),
        description="",  # tyro joins and splits lines of its own
        return_unknown_args=True,
    )
    if {"-h", "--help"} & set(arguments):
        print(_wrapped(re.split(r"^(?:Args|Raises|Returns):$", about, maxsplit=1, flags=re.MULTILINE)[0]))
    try:
        with contextlib.redirect_stderr(told):
            values, unknown = tyro.cli(values_of, prog=prog, args=arguments, registry=registry, **how)
    except SystemExit as left:
        if not left.code:
            raise
        raise UserError(f"{_first_part(told.getvalue())} (--help lists the flags)") from None
    hints = dict(_flat(parameters))
    if unknown:
        typed = unknown[0].partition("=")[0]
        flags = [flag(name) for name in hints] + [flag(f"no_{n}") for n, h in hints.items() if h is bool]
        alike = difflib.get_close_matches(typed, flags, n=1, cutoff=0.7)
        meant = f": did you mean {alike[0]}?" if alike else ""
        raise UserError(f"there is no flag {short(' '.join(unknown))}{meant} (--help lists the flags)")
    groups = [vars(value) for value in values.values() if dataclasses.is_dataclass(value)]
    flat = values | {name: value for group in groups for name, value in group.items()}
    for name, hint in hints.items():
        if (what := problem(flat[name], hint)) is not None:
            raise UserError(f"{flag(name)} {what}")
    return values


def text_width() -> int:
    """Return how many columns of the terminal a text may fill."""
    return min(100, shutil.get_terminal_size().columns)


def _wrapped(text: str) -> str:
    """Return a text with its paragraphs wrapped; indented ones, such as commands and tables, stay."""
    parts = [part for part in re.split(r"\n\s*\n", text.rstrip()) if part.strip()]
    how = dict(break_on_hyphens=False, break_long_words=False)
    return (
        "".join(
            (part if part.startswith(" ") else textwrap.fill(" ".join(part.split()), text_width(), **how))
            + "\n\n"
            for part in parts
        ).rstrip("\n")
        + "\n"
    )


def _first_part(box: str) -> str:
    """Return the text in the box that tyro draws around an error, up to its first rule."""
    lines = [line.strip("│|╭╮╰╯+ ") for line in box.splitlines()[1:]]
    text = itertools.dropwhile(lambda line: not line.strip("─-"), lines)
    return " ".join(" ".join(itertools.takewhile(lambda line: line.strip("─-"), text)).split())


def _flat(parameters: Sequence[inspect.Parameter]) -> Iterator[tuple[str, Any]]:
    for each in parameters:
        if dataclasses.is_dataclass(each.annotation):
            yield from hints_of(each.annotation).items()
        else:
            yield each.name, each.annotation


def _primitive(info: Any) -> Any:
    """Return tyro's description of a setting's type, or None for types that tyro reads alone."""
    import tyro

    leaves = _leaves(info.type)
    if tyro.conf.Positional in info.markers or any(
        not _words(leaf.kind) and leaf.kind not in _READ for leaf in leaves
    ):
        return None
    names = [*words_of(info.type), *(_READ[x.kind] + ",…" * x.several for x in leaves if _READ.get(x.kind))]
    several = {name.removesuffix(",…") for name in names if name.endswith(",…")}
    metavar = "|".join(name for name in names if name not in several)
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda texts: read_value(texts[0], info.type),
        is_instance=lambda value: True,
        str_from_instance=lambda value: [shown(value)],
    )


_READ = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", types.NoneType: ""}


_WORDS = ("folders", "names")  # parameters that are words without a flag


def _as_words(hint: Any) -> Any:
    import tyro

    shown_as = tyro.conf.arg(metavar="[WORD …]", help_behavior_hint="")
    return tyro.conf.Positional[Annotated[hint, shown_as]]


def call(function: Callable[..., Any], prog: str, arguments: Sequence[str]) -> Any:
    """Call a function with the flags of a command line: its signature, and its docstring as help."""
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = []
    for each in inspect.signature(function).parameters.values():
        hint = _as_words(hints[each.name]) if each.name in _WORDS else hints[each.name]
        parameters.append(each.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))
    values = parse(prog, inspect.getdoc(function) or "", parameters, arguments)
    for each in parameters:
        if each.default is each.empty and values[each.name] == ():
            raise UserError(f"name {each.name}, before all flags: {prog} DIR DIR")
    return function(**values)


def shown(value: Any) -> str:
    """Return a value as it is typed on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(shown, value))
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
