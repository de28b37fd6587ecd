"""Define settings as dataclass fields with type, default, bounds and help, and check their values."""

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
    """Bounds of a number; None means no such bound.

    Attributes:
        at_least: Inclusive lower bound.
        above: Exclusive lower bound.
        at_most: Inclusive upper bound.
        below: Exclusive upper bound.
    """

    at_least: Number | None = None
    above: Number | None = None
    at_most: Number | None = None
    below: Number | None = None

    def hold(self, value: Number) -> bool:
        """Return whether `value` satisfies the bounds; NaN and infinity never do."""
        return math.isfinite(value) and not (
            (self.at_least is not None and value < self.at_least)
            or (self.above is not None and value <= self.above)
            or (self.at_most is not None and value > self.at_most)
            or (self.below is not None and value >= self.below)
        )

    def __str__(self) -> str:
        """Return the requirement as part of an error message, such as "must be positive and finite"."""
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
    """An entry of `Needs` that allows any value of a setting except some.

    Attributes:
        values: Excluded values.
        text: Description of the allowed values, printed after the flag's name. Empty if the flag's name is
            enough.
    """

    values: tuple[Any, ...]
    text: str = ""


ON = Other((None, 0, "none"))  # the setting is given, and turns its feature on
Needs = Mapping[str, Any]  # maps a setting's name to its allowed value, values (a tuple) or `Other`


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
    """Return a dataclass field whose metadata describe a setting.

    Args:
        default: Default value.
        help: Description, for `--help` and for readers of the class.
        at_least: Inclusive lower bound; see `Bounds`. Bounds apply only to numbers.
        above: Exclusive lower bound.
        at_most: Inclusive upper bound.
        below: Exclusive upper bound.
        sweep: Whether a tuple of values may be given, to train one model for each value in one program.
        several: Whether a tuple may be given in place of one value. Implied by `sweep`.
        positional: Name in the help of a setting that is given without a flag, once or several times.
        path: Whether the value is the path of a file or a folder, in which `~` is the user's home.
        needs: Other settings, with the values for which this setting has an effect. One entry of a mapping
            has to hold; of several mappings, each one has to hold.
        absent: Value in runs that are older than the setting, if it differs from the default.
    """
    bounds = Bounds(at_least, above, at_most, below)
    needs = (needs,) if isinstance(needs, Mapping) else tuple(needs)
    metadata = {"help": help, "bounds": bounds, "sweep": sweep, "several": sweep or several}
    metadata |= {"positional": positional, "path": path, "needs": needs, "absent": absent}
    return dataclasses.field(default=default, metadata=metadata)


path_setting = functools.partial(setting, path=True)


@functools.cache
def field_types(kind: type) -> Mapping[str, Any]:
    """Return the type of each field of a dataclass, by the field's name."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def words_of(kind: Any) -> tuple[str, ...]:
    """Return the values of a `Literal` type, or of one with `| None`; an empty tuple for other types."""
    kind = without_none(kind)
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def without_none(kind: Any) -> Any:
    """Return X for a type `X | None`, and any other type unchanged."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kinds = [other for other in typing.get_args(kind) if other is not type(None)]
        return kinds[0] if len(kinds) == 1 else kind
    return kind


def check(settings: Any, name: Callable[[str], str] = str) -> None:
    """Check the type and the bounds of every value in a dataclass of settings and in nested dataclasses.

    Args:
        settings: An instance of the dataclass.
        name: Function from a field's name to its name in error messages.

    Raises:
        UserError: If a value has the wrong type, is none of the values of a `Literal`, or is out of bounds.
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
    """Check that every given setting has an effect; the default value is always allowed.

    Args:
        fields: Fields of the settings.
        given: Values that the user has given, by the field's name.
        holds: Function from another setting's name and its entry in `Needs` to whether that setting has an
            allowed value; see `allows`.
        name: Function from a field's name to its name in error messages.

    Raises:
        UserError: If a given setting has no effect because of the other settings.
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
    """Return whether `value` is among the values that an entry of `Needs` allows."""
    if isinstance(allowed, Other):
        return value not in allowed.values
    return value in allowed if isinstance(allowed, tuple) else value == allowed


def needs_text(needs: Needs, name: Callable[[str], str] = str, most: int = 3) -> str:
    """Return the needed settings as command-line flags, such as `--average non_monotone`.

    Args:
        needs: Needed settings, one of which has to hold.
        name: Function from a field's name to its name in error messages.
        most: Largest number of values of one setting that are all listed.
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
    """Return whether `value` has the type `kind`; types that are not checked accept every value."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return any(_has_type(value, each) for each in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        parts = [part for part in typing.get_args(kind) if part is not Ellipsis]
        entries = value if isinstance(value, tuple | list) else (value,)  # a single value is a list of one
        return len(parts) != 1 or all(_has_type(each, parts[0]) for each in entries)
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    if kind is type(None):
        return value is None
    if kind not in _TYPES:
        return True
    return isinstance(value, _TYPES[kind][0]) and (kind is bool or not isinstance(value, bool))


def _type_name(kind: Any) -> str:
    """Return the name of a field's type in error messages."""
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
    """Return the words as one text, such as `a, b or c`."""
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
