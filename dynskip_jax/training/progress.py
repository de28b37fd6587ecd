"""Show the progress of a long loop: a bar in a terminal, an occasional line elsewhere."""

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

_REDRAW_SECONDS = 0.25


class Progress:
    """Progress display of a loop: steps done, elapsed time, estimated time left, and current metrics.

    In a terminal it is a bar. Elsewhere it is a plain line, at most every `every` seconds and once at the
    end. Use it as a context manager.

    Args:
        total: Number of steps of the whole loop.
        description: Short name of the loop.
        start: Number of steps that an earlier process has done. They do not count in the estimate.
        console: Console to draw on, and to print to while the bar is visible; by default standard error.
        every: Minimum number of seconds between two lines outside of a terminal.
        clock: Function that returns the time in seconds.
    """

    def __init__(
        self,
        total: int,
        description: str,
        *,
        start: int = 0,
        console: Console | None = None,
        every: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.console = console or Console(stderr=True)
        self._total, self._description, self._clock = total, description, clock
        self._done: float = start
        self._began = clock()
        self._after_first: tuple[float, float] | None = None  # time and steps done: the first one compiles
        self._metrics: dict[str, Any] = {}
        self._status = ""  # what is being compiled
        self._interval = _REDRAW_SECONDS if self.console.is_terminal else every
        self._next_draw = self._began + self._interval
        columns = [TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[text]")]
        percentage = TextColumn("{task.percentage:.1f}%")
        self._bar = RichProgress(
            *(columns[0], BarColumn(), percentage, TimeElapsedColumn(), columns[1]),
            console=self.console,
            refresh_per_second=1 / _REDRAW_SECONDS,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task(description, total=total, completed=start, text="ETA -")

    def advance(self, n: float = 1, **metrics: Any) -> None:
        """Count steps, and redraw if the last drawing is old enough; other calls are cheap.

        Args:
            n: Number of steps that were done, which may be a fraction.
            **metrics: Current values by name: numbers, text, arrays (their mean is shown), or functions
                without arguments that return one of these and are called only when drawing. A metric that is
                not passed keeps its last value.
        """
        self._done += n
        self._after_first = self._after_first or (self._clock(), self._done)
        self._metrics.update(metrics)
        if self._clock() >= self._next_draw:
            self._draw()

    @contextlib.contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        """Show what is being compiled in the body of a `with` statement, in place of the metrics."""
        self._status = what
        if self.console.is_terminal or self._clock() >= self._next_draw:
            self._draw()
        try:
            yield
        finally:
            self._status = ""

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._draw()
        finally:
            self._bar.stop()

    def _draw(self) -> None:
        now = self._clock()
        self._next_draw = now + self._interval
        metrics = self._status or "  ".join(f"{name} {_text(value)}" for name, value in self._metrics.items())
        text = f"ETA {self._eta(now)}  {metrics}".rstrip()
        self._bar.update(self._task, completed=self._done, text=text)
        if not self.console.is_terminal:
            percentage = self._bar.tasks[0].percentage if self._total else 100.0
            line = f"{self._description}  {percentage:.1f}%  {self._done:.0f}/{self._total}  "
            line += f"elapsed {_duration(now - self._began)}  {text}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _eta(self, now: float) -> str:
        left = max(0, self._total - self._done)
        began, before = self._after_first or (now, self._done)
        if left and (self._status or self._done <= before):
            return "-"
        return _duration((now - began) * left / (self._done - before) if left else 0)


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


def _text(value: Any) -> str:
    """Format a metric with four significant digits; integers and large numbers are written in full."""
    value = value() if callable(value) else value
    if isinstance(value, str | int):
        return str(value)
    number = float(np.mean(np.asarray(value, np.float64)))
    return f"{number:.0f}" if 1e4 <= abs(number) < 1e9 else f"{number:.4g}"
