"""Print tables and text. Markup and control characters in users' text and files have no effect."""

import sys
from collections.abc import Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from dynskip_jax.terminal.messages import printable

_LEAST = 12  # cells of a text column
LITERAL = dict(markup=False, emoji=False, highlight=False)


def print_table(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    published: Sequence[Sequence[str]] = (),
) -> None:
    """Print a table, with `published` rows below a line; missing cells of a row are empty.

    Numbers are never cut: only the first column is folded, and only on a terminal.
    """
    (headings,), *parts = (
        [[printable_lines(cell) for cell in row] for row in part]
        for part in ([headings], rows, published)
    )
    table = Table(title=printable_lines(title), title_justify="left")
    table.add_column(headings[0], overflow="fold", min_width=_LEAST)
    for heading in headings[1:]:
        table.add_column(heading, no_wrap=True, justify="right")
    for part in parts:
        for row in part:
            table.add_row(*row)
        table.add_section()
    console, width = Console(**LITERAL), Console(**LITERAL, width=10_000).measure(table).maximum
    if console.is_terminal:
        names = max(cell_len(row[0]) for row in (headings, *parts[0], *parts[1]))
        width = max(width - max(0, names - _LEAST), min(width, console.width))
    Console(**LITERAL, width=width).print(table)


def printable_lines(text: str) -> str:
    """Return `text` with all control characters escaped except line feeds."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def say(text: object, file: TextIO | None = None) -> None:
    """Print a message to `file` (default: standard output), with its control characters escaped."""
    print(printable_lines(str(text)), file=file, flush=True)


def write(text: str) -> None:
    """Write results to standard output: unchanged to a file or a pipe, escaped to a terminal."""
    if sys.stdout.isatty():
        text = "\t".join(map(printable_lines, text.split("\t")))
    sys.stdout.write(text)
