"""Where tables are printed."""

from rich.console import Console


def wide_console() -> Console:
    """Returns the terminal, or 120 columns of a file, which has no width of its own."""
    console = Console()
    return console if console.is_terminal else Console(width=120)
