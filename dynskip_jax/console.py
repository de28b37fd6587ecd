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


def width() -> int:
    """Return the width of standard output, in cells."""
    return PlainConsole().width


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
    console = PlainConsole()
    kept = list(range(len(headings)))
    while True:
        table = Table(title=title, title_justify="left")
        for number in kept:
            how = (
                dict(overflow="fold", min_width=_LEAST)
                if number == 0
                else dict(no_wrap=True, justify="right")
            )
            table.add_column(headings[number], **how)
        for part in (rows, published):
            for row in part:
                cells = [*row, *[""] * (len(headings) - len(row))]
                table.add_row(*(cells[number] for number in kept))
            table.add_section()
        whole = PlainConsole(width=10_000).measure(table).maximum
        names = max(cell_len(printable_lines(row[0])) for row in ([headings[0]], *rows, *published))
        least = whole - max(0, names - _LEAST)
        left = [name for name in drop if headings.index(name) in kept]
        if not console.is_terminal or least <= console.width or not left:
            break
        kept.remove(headings.index(left[0]))
    PlainConsole(width=max(least, min(whole, console.width)) if console.is_terminal else whole).print(table)


def printable_lines(text: str) -> str:
    """Return `text` with all control characters escaped except line feeds."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def say(text: object, file: TextIO | None = None) -> None:
    """Print a message to `file` (default: standard output), with its control characters escaped."""
    print(printable_lines(str(text)), file=file, flush=True)


def write(text: str) -> None:
    """Write results to standard output: escaped on a terminal, unchanged to a file or a pipe.

    On a terminal, all control characters are escaped except tabs and line feeds.
    """
    if sys.stdout.isatty():
        text = "\t".join(map(printable_lines, text.split("\t")))
    sys.stdout.write(text)
