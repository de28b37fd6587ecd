"""Settings as dataclasses, and how they are read: command lines (by tyro), presets and JSON.
Imports no JAX.

A setting is one line: name, type with bounds, default, and a docstring that is the text of
`--help`.
"""

import ast
import contextlib
import dataclasses
import functools
import inspect
import io
import itertools
import math
import operator
import re
import shutil
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from dynskip_jax.errors import UserError, needs

MAX_SEED = 2**32 - 1  # for larger seeds JAX would repeat the keys of smaller ones
_MOST_QUOTED = 80  # characters of a value in a message


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Bounds of a number: `at_least` and `at_most` are allowed values, `above` and `below` are
    not.
    """

    at_least: int | float | None = None
    at_most: int | float | None = None
    above: int | float | None = None
    below: int | float | None = None

    def hold(self, value: float) -> bool:
        """Return whether `value` satisfies the bounds; NaN and infinity never do."""
        holds = dict(
            at_least=operator.ge, at_most=operator.le, above=operator.gt, below=operator.lt
        )
        is_finite = isinstance(value, int) or math.isfinite(value)
        return is_finite and all(
            b is None or holds[name](value, b) for name, b in vars(self).items()
        )

    def __str__(self) -> str:
        """Return the requirement as part of an error message, such as "at least 1"."""
        sides = [
            f"{name.replace('_', ' ')} {b:,}" for name, b in vars(self).items() if b is not None
        ]
        return " and ".join(sides) or "finite"


@dataclasses.dataclass(frozen=True)
class For:
    """Mark a setting that has an effect only on some models, named as on the command line."""

    models: tuple[str, ...]


Count = Annotated[int, Bounds(1, 1_000_000)]
Layers = Annotated[int, Bounds(1, 100)]
Size = Annotated[int, Bounds(1, 100_000)]
Natural = Annotated[int, Bounds(0, 1_000_000)]
Seed = Annotated[int, Bounds(0, MAX_SEED)]
Rate = Annotated[float, Bounds(at_least=0, below=1)]
Share = Annotated[float, Bounds(at_least=0, at_most=1)]
Positive = Annotated[float, Bounds(above=0)]
Weight = Annotated[float, Bounds(at_least=0)]


# --- Types ---


class _Leaf(typing.NamedTuple):
    """One alternative of a setting's type: one value, or a tuple of `several`, of a kind and with
    bounds.
    """

    kind: Any
    bounds: Bounds | None = None
    several: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """The words that a `Literal` allows."""
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else ()

    def read(self, text: str) -> Any:
        """Return one value from its text; raise a `ValueError` or `TypeError` if it is not of this
        kind.
        """
        if not text or (self.words and text not in self.words):
            raise ValueError(text)
        # Python also reads 1_0, and the digits of every script.
        if self.kind in (int, float) and ("_" in text or not text.isascii()):
            raise ValueError(text)
        value = text if self.words else self.kind(text)
        return value.expanduser() if isinstance(value, Path) else value

    def has(self, value: Any) -> bool:
        """Return whether one value is of this kind; `bool` is no number, and whole numbers are
        numbers.
        """
        if self.words:
            return isinstance(value, str) and value in self.words
        if isinstance(value, bool):
            return self.kind is bool
        return isinstance(value, int | float if self.kind is float else self.kind)


@functools.cache
def hints_of(kind: type) -> Mapping[str, Any]:
    """Return the type of each field of a dataclass, with its bounds, by the field's name."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


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


def is_path(hint: Any) -> bool:
    """Return whether a type allows nothing but a path, or None."""
    return Path in (kinds := {leaf.kind for leaf in _leaves(hint)}) and kinds <= {
        Path,
        types.NoneType,
    }


def _words_of(leaves: Sequence[_Leaf]) -> tuple[str, ...]:
    return tuple(word for leaf in leaves for word in leaf.words)


_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    bool: "true or false",
}


def read_value(text: str, hint: Any) -> Any:
    """Convert a text to a type of a setting. A text that does not fit stays as it is: see
    `problem`.
    """
    leaves = _leaves(hint)
    if text == "none" and any(leaf.kind is types.NoneType for leaf in leaves):
        return None
    for leaf in leaves:
        with contextlib.suppress(TypeError, ValueError):
            values = tuple(
                leaf.read(part) for part in (text.split(",") if leaf.several else [text])
            )
            return values if leaf.several else values[0]
    return text


def problem(value: Any, hint: Any) -> str | None:
    """Return what is wrong with a value of a setting, as the end of a sentence, or None."""
    leaves, values = _leaves(hint), value if isinstance(value, tuple) else (value,)
    for leaf in leaves:
        if isinstance(value, tuple) != leaf.several or not all(map(leaf.has, values)):
            continue
        allowed = leaf.bounds or Bounds()
        bad = next((v for v in values if isinstance(v, int | float) and not allowed.hold(v)), None)
        if bad is not None:
            is_finite = isinstance(bad, int) or math.isfinite(bad)
            demand = str(allowed) if is_finite or allowed == Bounds() else f"finite and {allowed}"
            if any(other.kind is types.NoneType for other in leaves):
                demand += ", or none"
            return f"must be {demand}, got {short(bad)}"
        is_swept = leaf.several and any(o.kind == leaf.kind and not o.several for o in leaves)
        if is_swept and len({*values}) < len(values):
            return f"names a value twice: {shown(value)}"
        return None
    kinds = [
        f"{_NAMES[leaf.kind].removeprefix('a ')}s, separated by commas"
        if leaf.several
        else _NAMES[leaf.kind]
        for leaf in leaves
        if leaf.kind in _NAMES
    ]
    return f"takes {listed([*_words_of(leaves), *dict.fromkeys(kinds)])}, got {short(value)}"


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
    """Return a command as users of this process type it: `dynskip NAME` or `python -m
    experiments.NAME`.
    """
    return (
        f"dynskip {name}"
        if Path(sys.argv[0]).stem == "dynskip"
        else f"python -m experiments.{name}"
    )


# Parameters that are words before all flags, and how the help shows them.
_WORDS = {"folders": "[WORD …]", "names": "[WORD …]", "file": "FILE", "place": "FILE:LINE:COLUMN"}


def parse(
    prog: str, about: str, parameters: Sequence[tuple], arguments: Sequence[str]
) -> dict[str, Any]:
    """Read a command line with a flag for each parameter, or for each field of one that is a
    dataclass.

    `about` is the text of `--help`: a docstring whose `Args` describe the flags. Each parameter is
    a tuple of its name, its type and, if the flag may be left out, a default.
    """
    arguments = words_of(arguments)
    with needs("experiments"):
        # takes a tenth of a second, which a program that only loads runs need not spend
        import tyro

    def word(name: str, of: Any) -> Any:
        how = tyro.conf.arg(metavar=_WORDS[name], help_behavior_hint="")
        return tyro.conf.Positional[Annotated[of, how]]

    fields = [
        (name, word(name, of) if name in _WORDS else of, *default)
        for name, of, *default in parameters
    ]
    flags = dataclasses.make_dataclass("Flags", fields, kw_only=True, namespace={"__doc__": about})
    rules = tyro.constructors.ConstructorRegistry()
    rules.primitive_rule(_primitive)
    rules.struct_rule(_group)
    how = dict(
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff),
        description="",  # tyro joins and splits lines of its own
    )
    if {"-h", "--help"} & set(arguments):
        print(
            _wrapped(
                re.split(r"^(?:Args|Raises|Returns):$", about, maxsplit=1, flags=re.MULTILINE)[0]
            )
        )
    with rules, contextlib.redirect_stderr(io.StringIO()) as box:
        try:
            values = vars(tyro.cli(flags, prog=prog, args=arguments, **how))
        except SystemExit as left:
            if not left.code:
                raise
            raise UserError(f"{_inside(box.getvalue())} (--help lists the flags)") from None
    for parameter, of, *_ in parameters:
        is_group, value = dataclasses.is_dataclass(of), values[parameter]
        hints = hints_of(of) if is_group else {parameter: of}
        for name, hint in hints.items():
            if (what := problem(getattr(value, name) if is_group else value, hint)) is not None:
                raise UserError(f"{flag(name)} {what}")
    return values


def words_of(arguments: Sequence[str]) -> list[str]:
    """Return the words of a command line without line breaks at their ends; refuse empty ones.

    Shells remove these line breaks from what `$(command)` prints. An empty word is mostly an unset
    variable, and as a path it would be the current folder.
    """
    words = [word.rstrip("\r\n") for word in arguments]
    for before, word in itertools.pairwise(["", *words]):
        name, is_given, value = word.partition("=")
        if not word:
            name = before if before.startswith("--") else "an argument"
        if not word or (name.startswith("--") and is_given and not value):
            raise UserError(f"{name} is empty: give it a value, or leave it out")
    return words


def _wrapped(text: str) -> str:
    """Return a text with its paragraphs wrapped; indented ones, such as commands and tables,
    stay.
    """
    width = min(100, shutil.get_terminal_size().columns)
    how = dict(width=width, break_on_hyphens=False, break_long_words=False)
    parts = [part for part in re.split(r"\n\s*\n", text.rstrip()) if part.strip()]
    parts = [p if p.startswith(" ") else textwrap.fill(" ".join(p.split()), **how) for p in parts]
    return "\n\n".join(parts) + "\n"


def _inside(box: str) -> str:
    """Return the text in the box that tyro draws around an error, without the help of flags and of
    itself.
    """
    lines = (line[2:-1].rstrip() for line in box.splitlines()[1:])
    lines = itertools.takewhile(lambda line: not line.startswith("For full helptext"), lines)
    return " ".join(
        line.strip() for line in lines if line.strip(" ─-") and not line.startswith(8 * " ")
    )


def _group(info: Any) -> Any:
    """Return tyro's description of a group of settings, each docstring as one paragraph.

    tyro keeps the line breaks of docstrings whose lines are indented.
    """
    import docstring_parser  # tyro depends on it
    import tyro

    if not dataclasses.is_dataclass(info.type) or info.type.__name__ == "Flags":
        return None
    texts = {}
    for base in reversed(info.type.__mro__[:-1]):
        for field in docstring_parser.parse_from_object(base).params:
            texts[field.arg_name] = " ".join((field.description or "").split())
    fields = []
    for field in dataclasses.fields(info.type):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is dataclasses.MISSING:
            default = tyro.MISSING
        default = getattr(info.default, field.name, default)
        hint = hints_of(info.type)[field.name]
        fields.append(
            tyro.constructors.StructFieldSpec(
                field.name, hint, default, helptext=texts.get(field.name)
            )
        )
    return tyro.constructors.StructConstructorSpec(instantiate=info.type, fields=tuple(fields))


_READ = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", types.NoneType: ""}


def _primitive(info: Any) -> Any:
    """Return tyro's description of a setting's type, or None for types that tyro reads alone."""
    import tyro

    leaves = _leaves(info.type)
    is_known = all(leaf.words or leaf.kind in _READ for leaf in leaves)
    if tyro.conf.Positional in info.markers or not is_known:
        return None
    names = [
        *_words_of(leaves),
        *(_READ[x.kind] + ",…" * x.several for x in leaves if _READ.get(x.kind)),
    ]
    alone = [name for name in names if f"{name},…" not in names]
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="|".join(alone),
        instance_from_str=lambda texts: read_value(texts[0], info.type),
        is_instance=lambda value: True,
        str_from_instance=lambda value: [shown(value)],
    )


def call(function: Callable[..., Any], prog: str, arguments: Sequence[str]) -> Any:
    """Call a function with the flags of a command line: its signature, and its docstring as
    help.
    """
    hints, signature = (
        typing.get_type_hints(function, include_extras=True),
        inspect.signature(function),
    )
    parameters = [
        (name, hints[name]) if each.default is each.empty else (name, hints[name], each.default)
        for name, each in signature.parameters.items()
    ]
    return function(**parse(prog, docstring(function), parameters, arguments))


def docstring(of: types.FunctionType | types.ModuleType) -> str:
    """Return the docstring of a function or a module, from its source where Python has stripped it
    (-OO).
    """
    text = inspect.getdoc(of)
    if text is None:
        tree = ast.parse(inspect.getsource(of))
        text = ast.get_docstring(tree if isinstance(of, types.ModuleType) else tree.body[0])
    return text or ""


def shown(value: Any) -> str:
    """Return a value as it is typed on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(shown, value))
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
