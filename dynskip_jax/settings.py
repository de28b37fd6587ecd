"""Settings as dataclasses: default, bounds and help of each stand in one place, beside its type."""

import dataclasses
import functools
import math
import numbers
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dynskip_jax.errors import UserError

Number = int | float


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Where a number has to lie; None: no bound on that side.

    Attributes:
        at_least: the smallest value allowed.
        above: below all values allowed.
        at_most: the largest value allowed.
        below: above all values allowed.
    """

    at_least: Number | None = None
    above: Number | None = None
    at_most: Number | None = None
    below: Number | None = None

    def hold(self, value: Number) -> bool:
        """Whether a value lies inside; NaN and infinity lie in no bounds."""
        return math.isfinite(value) and not (
            (self.at_least is not None and value < self.at_least)
            or (self.above is not None and value <= self.above)
            or (self.at_most is not None and value > self.at_most)
            or (self.below is not None and value >= self.below)
        )

    def __str__(self) -> str:
        """What a value outside is told."""
        has_end = self.at_most is not None or self.below is not None
        if self.at_least is not None and self.at_most is not None:
            return f"must lie between {_plain(self.at_least)} and {_plain(self.at_most)}"
        if self.at_least is not None and self.below is not None:
            return f"must lie in [{self.at_least:g}, {self.below:g})"
        if self.at_least == 0 and not has_end:
            return "must not be negative"
        if self.above == 0 and not has_end:
            return "must be positive and finite"
        sides = {name.replace("_", " "): value for name, value in vars(self).items() if value is not None}
        return "must be " + (" and ".join(f"{k} {v:g}" for k, v in sides.items()) or "a finite number")


def _plain(bound: Number) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


@dataclasses.dataclass(frozen=True)
class Other:
    """Any value of a setting but these.

    Attributes:
        values: the values that are not meant.
        text: which ones are, after the flag's name; empty where the flag's name says it.
    """

    values: tuple[Any, ...]
    text: str = ""


ON = Other((None, 0, "none"))  # the setting is used at all
Needs = Mapping[str, Any]  # by a setting's name the value, the values (a tuple) or the `Other`


def setting(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    at_least: Number | None = None,
    above: Number | None = None,
    at_most: Number | None = None,
    below: Number | None = None,
    sweep: bool = False,
    several: bool = False,
    positional: str | None = None,
    path: bool = False,
    needs: Needs | Sequence[Needs] = (),
    absent: Any = dataclasses.MISSING,
) -> Any:
    """Return a dataclass's field with what is known of it.

    Args:
        default: its value where nothing says another.
        help: what it is, for `--help` and for readers of the class.
        at_least: bound, as in `Bounds`; None and words have none.
        above: likewise.
        at_most: likewise.
        below: likewise.
        sweep: several values, a tuple, may be tried in one program.
        several: several values, a tuple, mean something else than one value.
        positional: given without a flag, once or several times; what help calls it.
        path: of a file or a folder: `~` is the user's home wherever it is typed.
        needs: other settings, and their values with which this one has an effect. One entry of a mapping
            suffices; of several mappings each has to hold.
        absent: its value in runs that are older than the setting, where that is not the default.
    """
    bounds = Bounds(at_least, above, at_most, below)
    needs = (needs,) if isinstance(needs, Mapping) else tuple(needs)
    metadata = {"help": help, "bounds": bounds, "sweep": sweep, "several": sweep or several}
    metadata |= {"positional": positional, "path": path, "needs": needs, "absent": absent}
    return dataclasses.field(default=default, metadata=metadata)


path_setting = functools.partial(setting, path=True)


@functools.cache
def field_types(kind: type) -> Mapping[str, Any]:
    """Returns the type of each field of a dataclass."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def words_of(kind: Any) -> tuple[str, ...]:
    """Returns the words that a field of this type may be; none if it is no `Literal`."""
    kind = without_none(kind)
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def without_none(kind: Any) -> Any:
    """Returns X of the type X | None, and any other as it is."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kinds = [other for other in typing.get_args(kind) if other is not type(None)]
        return kinds[0] if len(kinds) == 1 else kind
    return kind


def check(settings: Any, name: Callable[[str], str] = str) -> None:
    """Checks words and bounds of a dataclass of settings, and of those inside it.

    Args:
        settings: the dataclass.
        name: from a field's name to what messages call it.

    Raises:
        UserError: a value is none of the words of its type, or lies outside its bounds.
    """
    kinds = field_types(type(settings))
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            check(value, name)
            continue
        kind = kinds[field.name]
        several = field.metadata.get("several") and isinstance(value, tuple)
        has_type = all(_has_type(each, kind) for each in (value if several else (value,)))
        if value is not None and not words_of(kind) and not has_type:
            raise UserError(f"{name(field.name)} must be {_type_name(kind)}, got {str(value)[:40]!r}")
        for each in value if isinstance(value, tuple) else (value,):
            _check_value(name(field.name), each, kinds[field.name], field.metadata.get("bounds"))


def check_needs(
    fields: Iterable[dataclasses.Field],
    given: Mapping[str, Any],
    holds: Callable[[str, Any], bool],
    name: Callable[[str], str] = str,
) -> None:
    """Check that what was given has an effect; to give a default is always allowed.

    Args:
        fields: the settings.
        given: the values that were given, by name.
        holds: whether a setting, by its name, has what an entry of `Needs` says; see `allows`.
        name: from a field's name to what messages call it.

    Raises:
        UserError: a setting has no effect with the others.
    """
    for field in fields:
        if field.name not in given or given[field.name] == field.default:
            continue
        for needs in field.metadata["needs"]:
            if not any(holds(other, allowed) for other, allowed in needs.items()):
                raise UserError(
                    f"{name(field.name)} has no effect without {needs_text(needs, name)}: leave it out, or "
                    "add that"
                )


def allows(allowed: Any, value: Any) -> bool:
    """Return whether a value is what an entry of `Needs` asks for."""
    if isinstance(allowed, Other):
        return value not in allowed.values
    return value in allowed if isinstance(allowed, tuple) else value == allowed


def needs_text(needs: Needs, name: Callable[[str], str] = str, most: int = 3) -> str:
    """Return the settings as they are given, such as `--average non_monotone`.

    Args:
        needs: the settings.
        name: from a field's name to what messages call it.
        most: number of values of one setting that are all listed.
    """
    parts = []
    for other, allowed in needs.items():
        if isinstance(allowed, Other):
            text = allowed.text
        else:
            values = [str(value).lower() for value in (allowed if isinstance(allowed, tuple) else (allowed,))]
            text = listed(values) if len(values) <= most else ", ".join([*values[: most - 1], "…"])
        parts.append(f"{name(other)} {text}".rstrip())
    return " or ".join(parts)


_TYPES = {
    bool: (bool, "true or false"),
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    str: (str | os.PathLike, "text"),
}


def _has_type(value: Any, kind: Any) -> bool:
    """Whether a value is of a field's type; types that settings do not consist of hold everything."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return any(_has_type(value, each) for each in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        parts = [part for part in typing.get_args(kind) if part is not Ellipsis]
        entries = value if isinstance(value, tuple | list) else (value,)  # one stands for a list of one
        return len(parts) != 1 or all(_has_type(each, parts[0]) for each in entries)
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    if kind is type(None):
        return value is None
    if kind not in _TYPES:
        return True
    return isinstance(value, _TYPES[kind][0]) and (kind is bool or not isinstance(value, bool))


def _type_name(kind: Any) -> str:
    """What messages call a field's type."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(_type_name(each) for each in typing.get_args(kind) if each is not type(None))
    if typing.get_origin(kind) is tuple:
        return f"a list, each {_type_name(typing.get_args(kind)[0])}"
    return _TYPES[kind][1] if kind in _TYPES else "of another type"


def _check_value(name: str, value: Any, kind: Any, bounds: Bounds | None) -> None:
    words, may_be_none = words_of(kind), without_none(kind) is not kind
    if isinstance(value, bool) or (value is None and (may_be_none or not words)):
        return
    if words and value not in words:
        raise UserError(f"{name} is {value!r}: choose {listed(words)}")
    if isinstance(value, int | float) and not (bounds or Bounds()).hold(value):
        raise UserError(f"{name} {bounds or Bounds()}, got {value}")


def listed(words: Sequence[str]) -> str:
    """Returns `a, b or c`."""
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
