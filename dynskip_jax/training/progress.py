"""Show the progress of a long loop: a bar in a terminal, an occasional line elsewhere."""

import datetime
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from dynskip_jax.console import LITERAL

_REDRAW_SECONDS = 0.25  # in a terminal
_LINE_SECONDS = 30  # elsewhere
_FIRST_SECONDS = 5  # elsewhere, from the first step's end to the first line, which has an estimate
_LONG = 1e9  # seconds: the estimate uses all steps that were drawn


class Progress:
    """Progress display of a loop: steps done, elapsed time, estimated time left, and current
    metrics.

    In a terminal it is a bar. Elsewhere it is a plain line soon after the first step, then at most
    every 30 seconds, and at the end.
    Use it as a context manager, and its `print` while it is open (by default to standard error).
    The `start` steps that an earlier process has done do not count in the estimate.
    """

    def __init__(
        self,
        total: int,
        description: str,
        *,
        start: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.console = console or Console(stderr=True)
        self._clock = clock
        self._done = float(start)
        self._start = start
        self._changed = True  # since the last drawing
        self._metrics: dict[str, Callable[[], float]] = {}
        self._status = ""
        self._interval = _REDRAW_SECONDS if self.console.is_terminal else _LINE_SECONDS
        self._next_draw = clock() + self._interval
        columns = [
            TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[text]")
        ]
        percentage = TextColumn("{task.percentage:.1f}%")
        self._bar = RichProgress(
            *(columns[0], BarColumn(), percentage, TimeElapsedColumn(), columns[1]),
            console=self.console,
            refresh_per_second=1 / _REDRAW_SECONDS,
            speed_estimate_period=_LONG,
            get_time=clock,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task(description, total=total, completed=start, text="ETA -")

    def advance(self, n: float = 1, **metrics: Callable[[], float]) -> None:
        """Count `n` steps, which may be a fraction, and redraw if the last drawing is old enough.

        Metrics are functions, which are called only when drawing.
        """
        if self._done == self._start:
            # The estimate begins here, because the first step compiles. Its metrics wait until it
            # is done.
            for value in metrics.values():
                value()
            self._bar.update(self._task, completed=self._done + n)
            self._next_draw = self._clock() + min(self._interval, _FIRST_SECONDS)
        self._done += n
        self._status = ""
        self._changed = True
        self._metrics.update(metrics)
        if self._clock() >= self._next_draw:
            self._draw()

    def show(self, status: str) -> None:
        """Show what takes long now, in place of the metrics, until the next step."""
        self._status = status
        self._changed = True
        if self.console.is_terminal or self._clock() >= self._next_draw:
            self._draw()

    def print(self, line: str) -> None:
        """Print a line as it is, above the bar."""
        self.console.print(line, **LITERAL, soft_wrap=True)

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status = ""
        try:
            if self._changed:
                self._draw()
        finally:
            self._bar.stop()

    def _draw(self) -> None:
        # Metrics first: they wait for steps that still run, and the estimate counts only finished
        # ones.
        shown = [f"{name} {_text(value())}" for name, value in self._metrics.items()]
        self._changed = False
        self._next_draw = self._clock() + self._interval
        self._bar.update(self._task, completed=round(self._done, 6))
        task = self._bar.tasks[0]
        left = "-" if task.time_remaining is None else _duration(task.time_remaining)
        text = f"ETA {left}  {self._status or '  '.join(shown)}".rstrip()
        self._bar.update(self._task, text=text)
        if not self.console.is_terminal:
            line = f"{task.description}  {task.percentage:.1f}%  {self._done:.0f}/{task.total}  "
            line += f"elapsed {_duration(task.elapsed)}  {text}"
            self.print(line)


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


def _text(number: float) -> str:
    """Format a number with four significant digits; large ones are written in full."""
    return f"{number:.0f}" if 1e4 <= abs(number) < 1e9 else f"{number:.4g}"
