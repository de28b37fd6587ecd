"""Print tables and text. Markup and control characters in users' text and files have no effect."""

import itertools
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from dynskip_jax.data.messages import printable

_LEAST = 12  # cells of a text column
_LITERAL = dict(markup=False, emoji=False, highlight=False)


def print_table(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    published: Sequence[Sequence[str]] = (),
    drop: Sequence[str] = (),
) -> None:
    """Print a table. Numbers are never cut: only the first column is folded, and only on a terminal.

    Args:
        title: Title of the table.
        headings: Heading of each column.
        rows: Cells of each row; missing ones are empty.
        published: Further rows, below a line.
        drop: Headings of columns that are left out, in this order, on a terminal that is too narrow.
    """
    (headings,), *parts = (
        [[printable_lines(cell) for cell in row] for row in part] for part in ([headings], rows, published)
    )
    names = max(cell_len(row[0]) for row in (headings, *parts[0], *parts[1]))
    console, kept = Console(**_LITERAL), headings
    while True:
        table = Table(title=printable_lines(title), title_justify="left")
        table.add_column(kept[0], overflow="fold", min_width=_LEAST)
        for heading in kept[1:]:
            table.add_column(heading, no_wrap=True, justify="right")
        for part in parts:
            for row in part:
                cells = itertools.zip_longest(headings, row, fillvalue="")
                table.add_row(*(cell for heading, cell in cells if heading in kept))
            table.add_section()
        whole = Console(**_LITERAL, width=10_000).measure(table).maximum
        least = whole - max(0, names - _LEAST)
        left = [heading for heading in drop if heading in kept]
        if not console.is_terminal or least <= console.width or not left:
            break
        kept = [heading for heading in kept if heading != left[0]]
    width = max(least, min(whole, console.width)) if console.is_terminal else whole
    Console(**_LITERAL, width=width).print(table)


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
