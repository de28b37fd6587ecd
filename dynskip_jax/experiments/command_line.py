"""Parse command lines into dataclasses of settings; importing this module does not import JAX."""

import argparse
import ast
import dataclasses
import difflib
import inspect
import os
import re
import shutil
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynskip_jax.errors import UserError
from dynskip_jax.experiments.settings import Resolved, check_effects, fields_of, flag, get, resolve
from dynskip_jax.experiments.stored_settings import RENAMED, read_config_file
from dynskip_jax.settings import (
    Bounds,
    allows,
    check,
    check_needs,
    field_types,
    listed,
    needs_text,
    setting,
    without_none,
    words_of,
)

if TYPE_CHECKING:
    from dynskip_jax.experiments.experiment import Experiment

_GLUE = "\0"  # joins a flag and its value, so that wrapping keeps them on one line


def program(name: str) -> str:
    """Return a command as users of this process type it: `dynskip NAME` or `python -m experiments.NAME`."""
    return f"dynskip {name}" if Path(sys.argv[0]).stem == "dynskip" else f"python -m experiments.{name}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        """Raise a `UserError` of one line instead of printing the usage."""
        raise UserError(f"{message} (--help lists the flags)")

    def parse_args(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments; the error for an unknown flag suggests a similar one, or its new name."""
        found, unknown = self.parse_known_args(arguments)
        if unknown:
            flags = [name for action in self._actions for name in action.option_strings]
            typed = unknown[0].partition("=")[0]
            renamed = RENAMED.get(typed.removeprefix("--").replace("-", "_"))
            if renamed is not None and flag(renamed) in flags:
                meant = f": it is called {flag(renamed)} now"
            else:
                alike = difflib.get_close_matches(typed, flags, n=1)
                meant = f": did you mean {alike[0]}?" if alike else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
        return found


def read_training(
    experiment: "type[Experiment]", arguments: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse the command line of training.

    Args:
        experiment: Class of the experiment.
        arguments: Command-line arguments.

    Returns:
        The settings that the command line gives, by name, and the flags that are not settings.

    Raises:
        UserError: If the command line cannot be parsed.
        SystemExit: If `--help` was given.
    """
    name = program(experiment.name)
    width = min(shutil.get_terminal_size().columns, 110)
    parser = _Parser(
        prog=name,
        usage=f"{name} [{'|'.join(['train', *experiment.commands])}] [--flag value …]",
        description=experiment.about(),
        epilog=_epilog(experiment, width),
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=width),
        allow_abbrev=False,
    )
    plain = {"model": experiment.default_model, **experiment.presets[experiment.default_preset({})]}
    for group, group_type in field_types(experiment.settings_type).items():
        _add(parser.add_argument_group(group, group_type.__doc__.strip()), group_type, plain)
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="Print every setting and where it comes from, without training.",
    )
    parser.add_argument("--debug", action="store_true", help="Show the traceback of an error.")
    parser.add_argument("--log-file", metavar="TEXT", help="Also write what is printed to this file.")
    given = vars(parser.parse_args(arguments))
    if given.get("model", "") is None:
        raise UserError("there is no model 'none': --model lstm trains the plain LSTM")
    return given, {name: given.pop(name) for name in ("print_config", "debug", "log_file")}


def resolve_training(experiment: "type[Experiment]", given: Mapping[str, Any]) -> Resolved:
    """Return all settings of a training command, from the settings that its flags give.

    Args:
        experiment: Class of the experiment.
        given: Settings that the command line gives, by name; see `read_training`.

    Raises:
        UserError: If a setting is invalid, or a flag has no effect.
    """
    kind, stored = experiment.settings_type, None
    if given.get("config") is not None:
        if given.get("preset") is not None:
            raise UserError("--preset and --config both say where settings come from: leave one out")
        stored = read_config_file(kind, experiment.name, given["config"])
    resolved = resolve(kind, experiment.presets, experiment.default_preset(given), given, stored)
    check_effects(resolved, experiment.default_model)
    return resolved


def read_flags(prog: str, about: str, kind: type, arguments: Sequence[str]) -> Any:
    """Parse a command line into a flat dataclass of settings.

    Args:
        prog: Name of the program, for `--help`.
        about: Description of the program, for `--help`.
        kind: Dataclass of settings that defines the flags.
        arguments: Command-line arguments.

    Returns:
        An instance of `kind`.

    Raises:
        UserError: If the command line cannot be parsed, or a value is invalid.
        SystemExit: If `--help` was given.
    """
    parser = _Parser(
        prog=prog,
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add(parser, kind)
    given = vars(parser.parse_args(arguments))
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING and field.name not in given:
            raise UserError(f"{flag(field.name)} is needed (--help lists the flags)")
    flags = kind(**given)
    check(flags, flag)
    holds = lambda name, allowed: allows(allowed, getattr(flags, name))  # noqa: E731
    check_needs(dataclasses.fields(kind), given, holds, flag)
    return flags


def about(command: str) -> str:
    """Return the first line of a command's help, without importing the command."""
    path = Path(__file__).parents[1] / "commands" / f"{command}.py"
    (function,) = (
        node for node in ast.parse(path.read_text("utf-8")).body if getattr(node, "name", "") == command
    )
    return ast.get_docstring(function).splitlines()[0]


def call(function: Callable[..., Any], prog: str, arguments: Sequence[str], **given: Any) -> Any:
    """Call a function with the flags of a command line: its signature, and its docstring as help.

    Args:
        function: The function; arguments without a default are needed.
        prog: Name of the program, for `--help`.
        arguments: Command-line arguments.
        given: Arguments that are no flags.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    text, _, of_flags = inspect.getdoc(function).partition("\nArgs:\n")
    helps = dict(re.findall(r"^    (\w+): ((?:.|\n(?!    \w+:))*)", of_flags, re.MULTILINE))
    fields, paths = [], set()
    for name, parameter in inspect.signature(function).parameters.items():
        if name in given:
            continue
        hint, bounds = _without_bounds(hints[name])
        if "Path" in str(hint):
            paths.add(name)
            hint = (tuple[str, ...] if "tuple" in str(hint) else str) | None
        help = " ".join(helps[name].split())
        default = dataclasses.MISSING if parameter.default is parameter.empty else parameter.default
        fields.append((name, hint, setting(default, help, path=name in paths, **vars(bounds))))
    flags = read_flags(
        prog, text, dataclasses.make_dataclass("Flags", fields, frozen=True, kw_only=True), arguments
    )
    values = {**vars(flags), **given}
    for name in paths & {name for name, value in values.items() if value}:
        is_one = isinstance(values[name], str)
        values[name] = Path(values[name]) if is_one else tuple(map(Path, values[name]))
    return function(**values)


def _without_bounds(hint: Any) -> tuple[Any, Bounds]:
    """Return a type without the bounds of its numbers, and the bounds."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return inside[0], inside[1]
    if origin in (tuple, typing.Union, types.UnionType) and typing.get_origin(inside[0]) is typing.Annotated:
        kind, bounds = typing.get_args(inside[0])
        return (tuple[kind, ...] if origin is tuple else kind | None), bounds
    return hint, Bounds()


def config_table(experiment: "type[Experiment]", resolved: Resolved) -> str:
    """Return a table of every setting with its value and its source, one setting per line."""
    rows = []
    for group, field, _ in fields_of(type(resolved.settings)):
        value = _shown(get(resolved.settings, field.name))
        if field.name == "model" and resolved.settings.run.compare is None:
            (value,) = resolved.settings.run.models(experiment.default_model)
        rows.append((f"{group}.{field.name}", value, resolved.sources[field.name]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _epilog(experiment: "type[Experiment]", width: int) -> str:
    commands = {"train (the default)": "everything above"}
    commands |= {name: about(name) for name in experiment.commands}
    presets = {
        name: " ".join(_typed(key, value) for key, value in values.items()) or "the defaults"
        for name, values in experiment.presets.items()
    }
    lines = ["commands (each has --help):", *_listed(commands, width)]
    return "\n".join([*lines, "", "presets, and what they set:", *_listed(presets, width)])


def _listed(entries: Mapping[str, str], width: int) -> list[str]:
    """Return the entries as lines of an indented list, wrapped to `width`."""
    how = dict(
        initial_indent="  ", subsequent_indent="      ", break_long_words=False, break_on_hyphens=False
    )
    wrapped = [textwrap.wrap(f"{name}: {text}", width, **how) for name, text in entries.items()]
    return [line.replace(_GLUE, " ") for lines in wrapped for line in lines]


def _typed(name: str, value: Any) -> str:
    """Return a setting in the form in which it is typed on the command line."""
    if isinstance(value, bool):
        return flag(name) if value else flag(f"no_{name}")
    return f"{flag(name)}{_GLUE}{_shown(value)}"


def _add(parser: Any, kind: type, plain: Mapping[str, Any] | None = None) -> None:
    """Add a flag to `parser` for each field of `kind`; flags that are not given are absent from the result.

    The help text shows the default in brackets: the value in `plain` if there is one, otherwise that of the
    field.
    """
    for field in dataclasses.fields(kind):
        hint = field_types(kind)[field.name]
        help = field.metadata["help"].replace("%", "%%")
        if field.metadata["sweep"]:
            help += " Several values (a,b,…) are a sweep."
        default = (plain or {}).get(field.name, field.default)
        if needs := field.metadata["needs"]:
            help += f" (with {' and '.join(needs_text(each, flag, most=2) for each in needs)})"
        if default not in (None, dataclasses.MISSING):
            help += f" [{_shown(default)}]"
        if field.metadata["positional"]:
            times = "+" if field.default is dataclasses.MISSING else "*"
            options = dict(nargs=times, metavar=field.metadata["positional"], help=help)
            parser.add_argument(field.name, default=argparse.SUPPRESS, **options)
            continue
        options: dict[str, Any] = dict(default=argparse.SUPPRESS, help=help)
        if without_none(hint) is bool:
            options |= dict(action=argparse.BooleanOptionalAction)
        else:
            options |= dict(type=_reader(field, hint), metavar=_metavar(field, hint))
        parser.add_argument(flag(field.name), **options)


def _metavar(field: dataclasses.Field, hint: Any) -> str:
    if words := words_of(hint):
        return "|".join(words)
    one = {int: "INT", float: "FLOAT", str: "TEXT"}[_number_of(hint)]
    return f"{one},…" if field.metadata["several"] or _is_tuple(hint) else one


def _is_tuple(hint: Any) -> bool:
    return "tuple" in str(without_none(hint))


def _number_of(hint: Any) -> type:
    """Return the type of a field's value, or of each of its values: int, float or str."""
    text = str(hint)
    return int if "int" in text else float if "float" in text else str


def _reader(field: dataclasses.Field, hint: Any) -> Callable[[str], Any]:
    kind = str if words_of(hint) else _number_of(hint)
    kind = os.path.expanduser if field.metadata["path"] else kind
    several = field.metadata["several"] or _is_tuple(hint)
    optional = type(None) in typing.get_args(hint)

    def read(text: str) -> Any:
        if optional and text == "none":
            return None
        try:
            values = tuple(kind(part) for part in text.split(",")) if several else (kind(text),)
        except ValueError:
            what = "whole numbers" if kind is int else "numbers"
            more = f"{what}, several separated by commas" if several else f"a {what[:-1]}"
            raise argparse.ArgumentTypeError(f"takes {more}; got {text!r}") from None
        if len(set(values)) < len(values) and field.metadata["several"]:
            raise argparse.ArgumentTypeError(f"names a value twice: {text}")
        always_several = _is_tuple(hint) and not field.metadata["several"]
        return values if always_several or len(values) > 1 else values[0]

    return read


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def unknown(name: str, known: Sequence[str]) -> UserError:
    """Return the error for a name that is not in `known`."""
    return UserError(f"there is no {name!r}: choose {listed(list(known))}")
