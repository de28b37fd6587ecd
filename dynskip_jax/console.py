"""Print tables and text. Markup and control characters in users' text and files have no effect."""

import sys
from collections.abc import Sequence
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dynskip_jax.data.messages import printable

_LEAST = 12  # cells of a text column


class PlainConsole(Console):
    """A Rich console that does not interpret markup in text, and escapes control characters."""

    def __init__(self, **options: Any):
        """Create the console; `options` are those of `rich.console.Console`."""
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text in the form that tables and lines show, with control characters escaped."""
        return super().render_str(printable_lines(text), **options)


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
    console, kept = PlainConsole(), [*headings]
    names = max(cell_len(printable_lines(row[0])) for row in ([headings[0]], *rows, *published))
    while True:
        table = Table(title=title, title_justify="left")
        table.add_column(kept[0], overflow="fold", min_width=_LEAST)
        for heading in kept[1:]:
            table.add_column(heading, no_wrap=True, justify="right")
        for part in (rows, published):
            for row in part:
                cells = [*row, *[""] * (len(headings) - len(row))]
                shown = zip(headings, cells, strict=True)
                table.add_row(*(cell for heading, cell in shown if heading in kept))
            table.add_section()
        whole = PlainConsole(width=10_000).measure(table).maximum
        least = whole - max(0, names - _LEAST)
        left = [heading for heading in drop if heading in kept]
        if not console.is_terminal or least <= console.width or not left:
            break
        kept.remove(left[0])
    PlainConsole(width=max(least, min(whole, console.width)) if console.is_terminal else whole).print(table)


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
