"""Progress of a long loop: a bar on a terminal, an occasional line in a log file."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

_REDRAW_SECONDS = 0.25
_ROUNDING = 1e-6  # of parts of a step that add up


class Progress:
    """Shows how far a loop is, how long it took, how long it will still take, and its current metrics.

    On a terminal this is a bar; anywhere else a plain line at most every `every` seconds, and one at the end.

    Attributes:
        console: where it is drawn; print through it while the bar is up.

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
        """Starts the clock.

        Arguments:
            total: the number of steps of the whole loop.
            description: what is in progress, in a word or two.
            start: steps that were done before, in another process; the time still needed is estimated without
                them.
            console: where to draw; standard error if not given, so that standard output stays clean.
            every: seconds between two lines where there is no terminal.
            clock: the time in seconds.
        """
        self.console = console or Console(stderr=True)
        self._total, self._description = total, description
        self._start: float = start
        self._done: float = start
        self._clock = clock
        self._began = clock()
        self._metrics: dict[str, Any] = {}
        self._closed = False
        self._bar = _bar(self.console) if self.console.is_terminal else None
        self._interval = every if self._bar is None else _REDRAW_SECONDS
        self._next_draw = self._began + self._interval
        if self._bar is not None:
            self._task = self._bar.add_task(description, total=total, completed=start, eta="-", metrics="")
            self._bar.start()

    def advance(self, n: float | int = 1, **metrics: Any) -> None:
        """Counts steps; cheap unless it is time to draw.

        Arguments:
            n: how many steps were done; parts of a step add up.
            **metrics: current values by name: numbers, text, arrays (their mean is shown), or functions that
                take nothing and return one, called only to draw. A metric not given keeps its last value.
        """
        self._done += n
        self._metrics.update(metrics)
        if self._clock() >= self._next_draw:
            self._draw()
            self._next_draw = self._clock() + self._interval

    def close(self) -> None:
        """Draws the last state and ends; a second call does nothing."""
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
        metrics = "  ".join(f"{name} {_text(value)}" for name, value in self._metrics.items())
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
        here = self._done - self._start
        left = max(0, self._total - self._done)
        if left and not here:
            return "-"
        return _duration((self._clock() - self._began) * left / here if left else 0.0)


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
    """A metric in four digits; integers and large numbers in full."""
    if callable(value):
        value = value()
    if isinstance(value, str | int):
        return str(value)
    number = float(np.mean(np.asarray(value, np.float64)))
    return f"{number:.0f}" if 1e4 <= abs(number) < 1e9 else f"{number:.4g}"
