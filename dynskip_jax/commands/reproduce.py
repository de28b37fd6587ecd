"""The commands behind each results table."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tyro.conf import Positional

from dynskip_jax.config.flags import listed, program
from dynskip_jax.errors import UserError
from dynskip_jax.terminal.console import say

_FOLDER = Path("runs", "reproduce")  # of all run folders
_VECTORS = "vectors.txt"  # word vectors of the tables that need some
_GLOVE = "glove.6B.50d.txt"


class Table(NamedTuple):
    """A table of results: its page in docs/results, the heading above it, and its commands by name.

    In a command, `{NAME}` is the run folder of an earlier one, and `{vectors}` a file of word
    vectors. With the flags `reduced` a table takes minutes, and its rows keep their order.
    """

    name: str
    page: str
    section: str
    runs: dict[str, str]
    reduced: str = ""


def all_tables() -> dict[str, Table]:
    """Return every table by its name, from the files in `dynskip_jax/tables`."""
    found = {}
    for path in sorted((Path(__file__).parents[1] / "tables").glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["table"]:
            found[entry["name"]] = Table(page=path.stem, **entry)
    return found


def reproduce(names: Positional[tuple[str, ...]] = (), reduced: bool = False) -> None:
    """Print the commands behind results tables, as in `reproduce numbers-11 | sh -e`.

    Data are looked for in $DYNSKIP_DATA_DIR, GloVe's vectors in glove.6B.50d.txt, and vectors
    trained on the experiments' own texts in vectors.txt, which is made if it is missing. Run
    folders are in runs/reproduce; what was stopped goes on with the same commands. The last one of
    a table is a report over all of them. Without a name, all tables are listed.

    Args:
        names: Tables.
        reduced: Print commands of minutes, not of hours, whose rows have the same order.
    """
    tables = all_tables()
    if not names:
        for table in tables.values():
            say(
                f"{table.name:<20} commands: {len(table.runs):>2}, {table.page}.md: {table.section}"
            )
    for name in names:
        if name not in tables:
            raise UserError(f"there is no {name!r}: choose {listed([*tables])}")
        if reduced and not tables[name].reduced:
            others = listed([name for name, table in tables.items() if table.reduced])
            raise UserError(f"{name} has no reduced size: choose {others}, or leave out --reduced")
        lines = list(commands_of(tables[name], reduced=reduced))
        if any(_VECTORS in line for line in lines):
            say(f"test -e {_VECTORS} || python docs/word_vectors.py {_VECTORS}")
        if any(_GLOVE in line for line in lines):
            say(f"ls {_GLOVE}")  # with `sh -e` the end, if it is missing
        # A command over an earlier run trains nothing, and is no row of the report.
        trained = [line[-1] for line in lines if _trains(line)]
        for first, *line in [*lines, ["report", *trained]]:
            start = f"python -m {first}" if first.startswith("benchmarks.") else program(first)
            say(shlex.join([*start.split(), *line]))


def commands_of(table: Table, *, reduced: bool = False) -> Iterator[list[str]]:
    """Yield each command line of a table, which begins with an experiment or a module."""
    folder = _FOLDER / (f"{table.name}-reduced" if reduced else table.name)
    flags = shlex.split(table.reduced) if reduced else []
    paths = {"vectors": _VECTORS} | {run: str(folder / run) for run in table.runs}
    for run, command in table.runs.items():
        line = [
            re.sub(r"\{(.*?)\}", lambda found: paths[found[1]], part)
            for part in shlex.split(command)
        ]
        if not _trains(line):
            yield line
            continue
        # The reduced flags take the place of the table's own, which would be given twice.
        yield [*_without(line, flags[::2]), *flags, "--run-dir", paths[run]]


def _trains(line: list[str]) -> bool:
    """Return whether a command trains a model: it is not one over an earlier run."""
    return line[1].startswith("--") and not line[0].startswith("benchmarks.")


def _without(line: list[str], flags: list[str]) -> list[str]:
    """Return a command line without some flags and their values."""
    kept = []
    for i, word in enumerate(line):
        is_value = not word.startswith("--") and line[i - 1] in flags
        if word not in flags and not is_value:
            kept.append(word)
    return kept
