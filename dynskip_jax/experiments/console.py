"""Where tables and text are printed. Text of users and of their files is shown, and never obeyed."""

import sys
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from dynskip_jax.data.messages import printable


class PlainConsole(Console):
    """A console that takes no text for markup, and escapes control characters in it."""

    def __init__(self, **options: Any):
        """Make the console; options are those of Rich's."""
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return what stands for a text in tables and lines."""
        return super().render_str(printable_lines(text), **options)


def wide_console() -> PlainConsole:
    """Return the terminal, or 120 columns of a file, which has no width of its own."""
    console = PlainConsole()
    return console if console.is_terminal else PlainConsole(width=120)


def printable_lines(text: str) -> str:
    """Return text with the control characters escaped that do not end a line."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def say(text: object, file: TextIO | None = None) -> None:
    """Print a message, with the control characters in it escaped."""
    print(printable_lines(str(text)), file=file, flush=True)


def write(text: str) -> None:
    """Write results to standard output: as they are into a file or a pipe, escaped on a terminal."""
    if sys.stdout.isatty():
        text = "\t".join(map(printable_lines, text.split("\t")))
    sys.stdout.write(text)
