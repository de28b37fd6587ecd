"""Show the progress of a long loop with rich: a bar in a terminal, an occasional line elsewhere."""

import time
from collections.abc import Callable

from rich import progress as rich_progress
from rich.console import Console

from dynskip_jax.terminal.console import LITERAL

_REDRAW_SECONDS = 0.25  # in a terminal
_LINE_SECONDS = 30  # elsewhere
_FIRST_LINE_SECONDS = 5  # after the first step, which is compiled: then the time left is known
_ESTIMATE_SECONDS = 3600  # the estimate rests on the steps of the last hour: some take minutes


class Progress:
    """Progress of a loop: steps done, elapsed time, estimated time left, and metrics.

    Use it as a context manager, and its `print` while it is open (by default to standard error).
    The `start` steps that an earlier process has done do not count in the estimate.
    """

    def __init__(
        self, total: int, description: str, *, start: int = 0, console: Console | None = None
    ):
        self.console = console or Console(stderr=True)
        self._interval = _LINE_SECONDS
        bar = []
        if self.console.is_terminal:
            self._interval = _REDRAW_SECONDS
            bar = [rich_progress.BarColumn()]
        self._bar = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}", markup=False),
            *bar,
            rich_progress.MofNCompleteColumn(),
            rich_progress.TimeElapsedColumn(),
            rich_progress.TextColumn("ETA"),
            rich_progress.TimeRemainingColumn(),
            rich_progress.TextColumn("{task.fields[text]}", markup=False),
            console=self.console,
            speed_estimate_period=_ESTIMATE_SECONDS,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task(description, total=total, completed=start, text="")
        self._metrics: dict[str, Callable[[], float]] = {}
        self._next_draw: float | None = None  # before the first step

    def advance(self, n: float = 1, **metrics: Callable[[], float]) -> None:
        """Count `n` steps, which may be a fraction; metrics are functions, called only to draw."""
        self._metrics = metrics
        self._bar.advance(self._task, n)
        if self._next_draw is None:
            self._next_draw = time.monotonic() + min(self._interval, _FIRST_LINE_SECONDS)
        if time.monotonic() >= self._next_draw:
            self._draw()

    def show(self, status: str) -> None:
        """Show what takes long now, in place of the metrics, until the next step."""
        self._bar.update(self._task, text=status)

    def print(self, line: str) -> None:
        """Print a line as it is, above the bar."""
        self.console.print(line, **LITERAL, soft_wrap=True)

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._draw()
        finally:
            self._bar.stop()

    def _draw(self) -> None:
        # A metric is a result of the last step, which may still run.
        metrics = [f"{name} {_text(value())}" for name, value in self._metrics.items()]
        self._bar.update(self._task, text="  ".join(metrics))
        if not self.console.is_terminal:
            self.console.print(self._bar.get_renderable(), soft_wrap=True)
        self._next_draw = time.monotonic() + self._interval


def _text(number: float) -> str:
    """Return a number with four significant digits; large ones are written in full."""
    return f"{number:.0f}" if 1e4 <= abs(number) < 1e9 else f"{number:.4g}"
