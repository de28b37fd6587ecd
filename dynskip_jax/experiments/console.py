"""Print tables and text. Markup and control characters in users' text and files have no effect."""

import sys
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from dynskip_jax.data.messages import printable


class PlainConsole(Console):
    """A Rich console that does not interpret markup in text, and escapes control characters."""

    def __init__(self, **options: Any):
        """Create the console; `options` are those of `rich.console.Console`."""
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text in the form that tables and lines show, with control characters escaped."""
        return super().render_str(printable_lines(text), **options)


def wide_console() -> PlainConsole:
    """Return a console of standard output, 120 columns wide if it is not a terminal."""
    console = PlainConsole()
    return console if console.is_terminal else PlainConsole(width=120)


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
