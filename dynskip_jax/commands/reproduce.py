"""The commands behind each results table."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dynskip_jax.config import listed, program
from dynskip_jax.console import say
from dynskip_jax.errors import UserError

_GENERATED = ("number_prediction", "agreement", "recall")  # experiments that read no files


class Table(NamedTuple):
    """A table of results: its page in docs/results, the heading above it, and its commands by name.

    In a command, `{NAME}` is the run folder of an earlier one, and `{vectors}` the file of --embeddings.
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


def reproduce(
    names: tuple[str, ...] = (),
    data: Path | None = None,
    embeddings: Path | None = None,
    out: Path = Path("runs", "reproduce"),
) -> None:
    """Print the commands behind results tables: `reproduce numbers-11`, and with `| sh -e` run them.

    Each command has a run folder below --out. The last one of a table is a report over all of them. What was
    stopped goes on with the same commands. Without a name, all tables are listed.

    Args:
        names: Tables.
        data: Folder of the tables' corpus; by default where the experiments look for it.
        embeddings: File of word vectors, which some tables need; word_vectors makes one.
        out: Folder of all run folders.
    """
    tables = all_tables()
    if not names:
        for table in tables.values():
            say(f"{table.name:<20} commands: {len(table.runs):>2}, {table.page}.md: {table.section}")
    for name in names:
        if name not in tables:
            raise UserError(f"there is no {name!r}: choose {listed([*tables])}")
        trained = []
        for run, (experiment, *line) in commands_of(tables[name], data, embeddings, out / name):
            say(shlex.join([*program(experiment).split(), *line]))
            if line[0].startswith("--"):
                trained.append(out / name / run)
        say(shlex.join([*program("report").split(), *map(str, trained)]))


def commands_of(
    table: Table, data: Path | None, embeddings: Path | None, out: Path
) -> Iterator[tuple[str, list[str]]]:
    """Yield each run of a table with its command line, which begins with the experiment's name."""
    paths = {run: str(out / run) for run in table.runs} | {"vectors": str(embeddings)}
    for run, command in table.runs.items():
        if "{vectors}" in command and embeddings is None:
            raise UserError(
                f"{run} begins with word vectors: give --embeddings FILE; "
                "python -m experiments.word_vectors --output FILE makes one"
            )
        experiment, *line = shlex.split(command)
        is_training, is_embedded = line[0].startswith("--"), "pydoc-topics" in line
        if data is not None and "--run-dir" not in line and not (is_embedded or experiment in _GENERATED):
            line += ["--data", str(data)]
        line = [re.sub(r"\{(.*?)\}", lambda found: paths[found[1]], part) for part in line]
        yield run, [experiment, *line, *(["--run-dir", paths[run]] if is_training else [])]
