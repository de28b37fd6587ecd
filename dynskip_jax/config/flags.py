"""Read settings, which are dataclasses, from command lines (by tyro), presets and JSON.

This module imports no JAX. A setting is one line: name, type with bounds, default, and a docstring
that is the text of `--help`.
"""

import dataclasses
import functools
import inspect
import math
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from dynskip_jax.data.files import expanded
from dynskip_jax.errors import UserError, needs

MAX_SEED = 2**32 - 1  # for larger seeds JAX would repeat the keys of smaller ones
_MOST_QUOTED = 80  # characters of a value in a message


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Bounds of a number: `at_least` and `at_most` are allowed, `above` and `below` are not."""

    at_least: int | float | None = None
    at_most: int | float | None = None
    above: int | float | None = None
    below: int | float | None = None

    def hold(self, value: float) -> bool:
        """Return whether `value` satisfies the bounds; NaN and infinity never do."""
        if not isinstance(value, int) and not math.isfinite(value):
            return False
        given = {name: bound for name, bound in vars(self).items() if bound is not None}
        return all(_COMPARISONS[name](value, bound) for name, bound in given.items())

    def __str__(self) -> str:
        """Return the requirement as part of an error message, such as "at least 1"."""
        given = {name: bound for name, bound in vars(self).items() if bound is not None}
        sides = [f"{name.replace('_', ' ')} {bound:,}" for name, bound in given.items()]
        return " and ".join(sides) or "finite"


_COMPARISONS = {
    "at_least": operator.ge,
    "at_most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
}


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
    """One alternative of a setting's type: a value of a kind, or a tuple of `several`."""

    kind: Any
    bounds: Bounds = Bounds()
    several: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """The words that a `Literal` allows."""
        if typing.get_origin(self.kind) is not Literal:
            return ()
        return typing.get_args(self.kind)

    def read(self, text: str) -> Any:
        """Return one value from its text, or raise a `ValueError` or a `TypeError`."""
        if not text or (self.words and text not in self.words):
            raise ValueError(text)
        # Python also reads 1_0, and the digits of every script.
        if self.kind in (int, float) and ("_" in text or not text.isascii()):
            raise ValueError(text)
        if self.words:
            return text
        if self.kind is Path:
            return expanded(text)
        return self.kind(text)


@functools.cache
def hints_of(kind: type) -> Mapping[str, Any]:
    """Return the type of each field of a dataclass, with its bounds, by the field's name."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@functools.cache
def _leaves(hint: Any) -> tuple[_Leaf, ...]:
    """Return the alternatives of a type, such as those of `float | tuple[float, ...] | None`."""
    origin = typing.get_origin(hint)
    inside = typing.get_args(hint)
    if origin is Annotated:
        leaves = _leaves(inside[0])
        for bounds in inside[1:]:
            if isinstance(bounds, Bounds):
                leaves = tuple(leaf._replace(bounds=bounds) for leaf in leaves)
        return leaves
    if origin in (typing.Union, types.UnionType):
        return tuple(leaf for each in inside for leaf in _leaves(each))
    if origin is tuple:
        return tuple(leaf._replace(several=True) for leaf in _leaves(inside[0]))
    return (_Leaf(hint),)


def is_path(hint: Any) -> bool:
    """Return whether a type allows nothing but a path, or None."""
    kinds = {leaf.kind for leaf in _leaves(hint)}
    return Path in kinds and kinds <= {Path, types.NoneType}


def _words_of(leaves: Sequence[_Leaf]) -> tuple[str, ...]:
    return tuple(word for leaf in leaves for word in leaf.words)


_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    bool: "true or false",
}


class Refused(str):
    """What is wrong with a text for a setting, as the end of a sentence."""


def read_value(text: str, hint: Any) -> Any:
    """Convert a text to a type of a setting; a `Refused` says what is wrong with one."""
    leaves = _leaves(hint)
    if text == "none" and _allows_none(leaves):
        return None
    for leaf in leaves:
        try:
            if not leaf.several:
                return leaf.read(text)
            values = tuple(map(leaf.read, text.split(",")))
        except UserError:
            raise
        except (TypeError, ValueError):
            continue
        # Several values of what may also be one value are a sweep.
        is_swept = any(one.kind == leaf.kind and not one.several for one in leaves)
        if is_swept and len({*values}) < len(values):
            return Refused(f"names a value twice: {text}")
        return values
    return Refused(f"takes {_kinds(leaves)}, got {short(text)}")


def _allows_none(leaves: Sequence[_Leaf]) -> bool:
    return any(leaf.kind is types.NoneType for leaf in leaves)


def _out_of_bounds(value: Any, hint: Any) -> str | None:
    """Return what is wrong with a number or several, as the end of a sentence, or None."""
    leaves = _leaves(hint)
    is_several = isinstance(value, tuple)
    values = value if is_several else (value,)
    for leaf in leaves:
        if leaf.kind not in (int, float) or leaf.several != is_several:
            continue
        for number in values:
            if isinstance(number, int | float) and not leaf.bounds.hold(number):
                return f"must be {_demand(number, leaf, leaves)}, got {short(number)}"
    return None


def _demand(number: int | float, leaf: _Leaf, leaves: Sequence[_Leaf]) -> str:
    """Return what a number outside the bounds of its kind had to be."""
    demand = str(leaf.bounds)
    is_finite = isinstance(number, int) or math.isfinite(number)
    if not is_finite and leaf.bounds != Bounds():
        demand = f"finite and {demand}"
    if _allows_none(leaves):
        return f"{demand}, or none"
    return demand


def _kinds(leaves: Sequence[_Leaf]) -> str:
    """Return the words and kinds of values that a setting takes, such as `a number or none`."""
    kinds = []
    for leaf in leaves:
        name = _NAMES.get(leaf.kind)
        if name and leaf.several:
            name = f"{name.removeprefix('a ')}s, separated by commas"
        if name and name not in kinds:
            kinds.append(name)
    return listed([*_words_of(leaves), *kinds])


def short(value: Any) -> str:
    """Return a value for a message: at most 80 characters of it."""
    # Python refuses to write a whole number of thousands of digits.
    is_number = isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**100)
    text = str(value) if is_number else repr(str(value)[:10_000])
    if len(text) <= _MOST_QUOTED:
        return text
    return f"{text[:_MOST_QUOTED]}…"


def listed(words: Sequence[str]) -> str:
    """Return the words as one text, such as `a, b or c`."""
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def flag(name: str) -> str:
    """Return the name of a setting on the command line."""
    return f"--{name.replace('_', '-')}"


# --- Command lines ---


def program(name: str) -> str:
    """Return a command as users of this process type it."""
    if Path(sys.argv[0]).stem == "dynskip":
        return f"dynskip {name}"
    return f"python -m experiments.{name}"


def parse(
    prog: str, about: str, parameters: Sequence[tuple], arguments: Sequence[str]
) -> dict[str, Any]:
    """Read a command line with a flag for each parameter, or each field of a dataclass.

    `about` is the text of `--help`: a docstring whose `Args` describe the flags. Each parameter is
    a tuple of its name, its type and, if the flag may be left out, a default.
    """
    with needs("experiments"):
        # takes a tenth of a second, which a program that only loads runs need not spend
        import tyro

    kind = dataclasses.make_dataclass(
        "Flags", parameters, kw_only=True, namespace={"__doc__": about}
    )
    rules = tyro.constructors.ConstructorRegistry()
    rules.primitive_rule(_primitive)
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff)
    text = re.split(r"^(?:Args|Raises|Returns):$", about, maxsplit=1, flags=re.MULTILINE)[0]
    with rules:
        values = vars(tyro.cli(kind, prog=prog, description=text, args=arguments, config=config))
    # tyro keeps bounds to itself.
    for parameter, of, *_ in parameters:
        value = values[parameter]
        is_group = dataclasses.is_dataclass(of)
        settings = vars(value) if is_group else {parameter: value}
        hints = hints_of(of) if is_group else {parameter: of}
        for name, one in settings.items():
            wrong = one
            if not isinstance(one, Refused):
                wrong = _out_of_bounds(one, hints[name])
            if wrong is not None:
                raise UserError(f"{flag(name)} {wrong}")
    return values


_READ = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", types.NoneType: ""}


def _primitive(info: Any) -> Any:
    """Return tyro's description of a setting's type, or None for types that tyro reads alone."""
    import tyro

    leaves = _leaves(info.type)
    is_known = all(leaf.words or leaf.kind in _READ for leaf in leaves)
    if tyro.conf.Positional in info.markers or not is_known:
        return None
    names = [*_words_of(leaves)]
    for leaf in leaves:
        if name := _READ.get(leaf.kind):
            names.append(f"{name},…" if leaf.several else name)
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        # FLOAT,… includes FLOAT
        metavar="|".join(name for name in names if f"{name},…" not in names),
        instance_from_str=lambda texts: read_value(texts[0], info.type),
        is_instance=lambda value: True,
        str_from_instance=lambda value: [shown(value)],
    )


def call(function: Callable[..., Any], prog: str, arguments: Sequence[str]) -> Any:
    """Call a function with a command line's flags, which are its parameters."""
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = []
    for name, parameter in inspect.signature(function).parameters.items():
        has_default = parameter.default is not parameter.empty
        parameters.append((name, hints[name], *[parameter.default] * has_default))
    return function(**parse(prog, inspect.getdoc(function) or "", parameters, arguments))


def shown(value: Any) -> str:
    """Return a value as it is typed on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(shown, value))
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
