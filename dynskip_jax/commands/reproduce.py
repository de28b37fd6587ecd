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
    vectors.
    """

    name: str
    page: str
    section: str
    runs: dict[str, str]


def all_tables() -> dict[str, Table]:
    """Return every table by its name, from the files in `dynskip_jax/tables`."""
    found = {}
    for path in sorted((Path(__file__).parents[1] / "tables").glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["table"]:
            found[entry["name"]] = Table(page=path.stem, **entry)
    return found


def reproduce(names: Positional[tuple[str, ...]] = ()) -> None:
    """Print the commands behind results tables, as in `reproduce numbers-11 | sh -e`.

    Data are looked for in $DYNSKIP_DATA_DIR, GloVe's vectors in glove.6B.50d.txt, and vectors
    trained on the experiments' own texts in vectors.txt, which is made if it is missing. Run
    folders are in runs/reproduce; what was stopped goes on with the same commands. The last one of
    a table is a report over all of them. Without a name, all tables are listed.

    Args:
        names: Tables.
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
        lines = list(commands_of(tables[name]))
        if any(_VECTORS in line for line in lines):
            say(f"test -e {_VECTORS} || python docs/word_vectors.py {_VECTORS}")
        if any(_GLOVE in line for line in lines):
            say(f"ls {_GLOVE}")  # with `sh -e` the end, if it is missing
        # A command over an earlier run trains nothing, and is no row of the report.
        trained = [line[-1] for line in lines if _trains(line)]
        for first, *line in [*lines, ["report", *trained]]:
            start = f"python -m {first}" if first.startswith("benchmarks.") else program(first)
            say(shlex.join([*start.split(), *line]))


def commands_of(table: Table) -> Iterator[list[str]]:
    """Yield each command line of a table, which begins with an experiment or a module."""
    paths = {"vectors": _VECTORS} | {run: str(_FOLDER / table.name / run) for run in table.runs}
    for run, command in table.runs.items():
        line = [
            re.sub(r"\{(.*?)\}", lambda found: paths[found[1]], part)
            for part in shlex.split(command)
        ]
        yield [*line, "--run-dir", paths[run]] if _trains(line) else line


def _trains(line: list[str]) -> bool:
    """Return whether a command trains a model: it is not one over an earlier run."""
    return line[1].startswith("--") and not line[0].startswith("benchmarks.")
