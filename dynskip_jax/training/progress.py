"""Show the progress of a long loop: a bar in a terminal, an occasional line elsewhere."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

_REDRAW_SECONDS = 0.25
_ROUNDING = 1e-6  # tolerance for the rounding of fractions of steps


class Progress:
    """Progress display of a loop: steps done, elapsed time, estimated time left, and current metrics.

    In a terminal it is a bar. Elsewhere it is a plain line, at most every `every` seconds and once at the
    end.

    Args:
        total: Number of steps of the whole loop.
        description: Short name of the loop.
        start: Number of steps that an earlier process has done. They do not count in the estimate.
        console: Console to draw on, and to print to while the bar is visible; by default standard error.
        every: Minimum number of seconds between two lines outside of a terminal.
        clock: Function that returns the time in seconds.

    Example:
        >>> with Progress(3, "training") as progress:  # doctest: +SKIP
        ...     for _ in range(3):
        ...         progress.advance(perplexity=lambda: 123.4)
    """

    def __init__(
        self,
        total: int,
        description: str,
        *,
        start: int = 0,
        console: Console | None = None,
        every: float | int = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.console = console or Console(stderr=True)
        self._total, self._description, self._clock = total, description, clock
        self._done: float = start
        self._began = clock()
        # Steps and seconds that do not count in the estimate: an earlier process's, and compiling.
        self._other_steps, self._other_seconds = start, 0.0
        self._metrics: dict[str, Any] = {}
        self._status = ""  # what is being compiled
        self._closed = False
        self._bar = _bar(self.console) if self.console.is_terminal else None
        self._interval = every if self._bar is None else _REDRAW_SECONDS
        self._next_draw = self._began + self._interval
        if self._bar is not None:
            self._task = self._bar.add_task(description, total=total, completed=start, eta="-", metrics="")
            self._bar.start()

    def advance(self, n: float | int = 1, **metrics: Any) -> None:
        """Count steps, and redraw if the last drawing is old enough; other calls are cheap.

        Args:
            n: Number of steps that were done, which may be a fraction.
            **metrics: Current values by name: numbers, text, arrays (their mean is shown), or functions
                without arguments that return one of these and are called only when drawing. A metric that is
                not passed keeps its last value.
        """
        self._done += n
        self._metrics.update(metrics)
        if self._clock() >= self._next_draw:
            self._draw()

    @contextlib.contextmanager
    def compiling(self, what: str, *, steps: int = 1) -> Iterator[None]:
        """Show what is being compiled in the body of a `with` statement, in place of the metrics.

        The time and the `steps` of the body do not count in the speed from which the time left is estimated.
        """
        began, self._status = self._clock(), what
        if self._bar is not None or began >= self._next_draw:
            self._draw()
        try:
            yield
        finally:
            self._status = ""
            self._other_seconds += self._clock() - began
            self._other_steps += steps

    def close(self) -> None:
        """Draw the last state and end the display. Further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self._draw()
        finally:
            if self._bar is not None:
                self._bar.stop()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _draw(self) -> None:
        self._next_draw = self._clock() + self._interval
        metrics = self._status or "  ".join(f"{name} {_text(value)}" for name, value in self._metrics.items())
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, eta=self._eta(), metrics=metrics)
            return
        percentage = min(100.0, 100 * self._done / self._total) if self._total else 100.0
        line = (
            f"{self._description}  {percentage:.1f}%  {int(self._done + _ROUNDING)}/{self._total}  "
            f"elapsed {_duration(self._clock() - self._began)}  ETA {self._eta()}  {metrics}"
        )
        self.console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)

    def _eta(self) -> str:
        here, left = self._done - self._other_steps, max(0, self._total - self._done)
        if left and (self._status or here <= 0):
            return "-"
        seconds = self._clock() - self._began - self._other_seconds
        return _duration(seconds * left / here if left else 0)


def _bar(console: Console) -> RichProgress:
    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:.1f}%"),
        TimeElapsedColumn(),
        TextColumn("ETA {task.fields[eta]}"),
        TextColumn("{task.fields[metrics]}", markup=False),
        console=console,
        refresh_per_second=1 / _REDRAW_SECONDS,
    )


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def _text(value: Any) -> str:
    """Format a metric with four significant digits; integers and large numbers are written in full."""
    if callable(value):
        value = value()
    if isinstance(value, str | int):
        return str(value)
    number = float(np.mean(np.asarray(value, np.float64)))
    return f"{number:.0f}" if 1e4 <= abs(number) < 1e9 else f"{number:.4g}"
