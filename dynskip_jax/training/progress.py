"""Show the progress of a long loop: a bar in a terminal, an occasional line elsewhere."""

import contextlib
import datetime
import logging
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from dynskip_jax.console import LITERAL

logger = logging.getLogger(__name__)

_REDRAW_SECONDS = 0.25  # in a terminal
_LINE_SECONDS = 30  # elsewhere
_FIRST_SECONDS = 5  # elsewhere, from the first step's end to the first line, which has an estimate
_ALL_STEPS = 1e9  # seconds of steps on which rich's estimate rests


@contextlib.contextmanager
def compiling(console: Console | None = None) -> Iterator[None]:
    """Say before a loop begins that it is compiled; on a terminal, until its bar is drawn.

    Elsewhere the line is logged, so that an error stays the only line of standard error.
    """
    console = console or Console(stderr=True)
    if console.is_terminal:
        with console.status("compiling"):
            yield
    else:
        logger.info("compiling")
        yield


class Progress:
    """Progress of a loop: steps done, elapsed time, estimated time left, and metrics.

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
        self._has_steps = False  # of this process
        self._changed = True  # since the last drawing
        self._metrics: dict[str, Callable[[], float]] = {}
        self._status = ""
        self._interval = _REDRAW_SECONDS if self.console.is_terminal else _LINE_SECONDS
        self._next_draw = clock() + self._interval
        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:.1f}%"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            console=self.console,
            refresh_per_second=1 / _REDRAW_SECONDS,
            speed_estimate_period=_ALL_STEPS,
            get_time=clock,
            disable=not self.console.is_terminal,
        )
        self._id = self._bar.add_task(description, total=total, completed=start, text="ETA -")

    def advance(self, n: float = 1, **metrics: Callable[[], float]) -> None:
        """Count `n` steps, which may be a fraction, and redraw if the last drawing is old enough.

        Metrics are functions, which are called only when drawing.
        """
        self._done += n
        self._status = ""
        self._changed = True
        self._metrics.update(metrics)
        if not self._has_steps:
            self._begin_estimate()
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

    def _begin_estimate(self) -> None:
        """Wait for the first step, which compiles: rich measures from its first update on."""
        self._has_steps = True
        self._values()
        self._bar.update(self._id, completed=self._done)
        self._next_draw = self._clock() + min(self._interval, _FIRST_SECONDS)

    def _values(self) -> dict[str, float]:
        """Return the metrics. They are results of the last step, which may still run."""
        return {name: value() for name, value in self._metrics.items()}

    def _draw(self) -> None:
        # Metrics first, so that the estimate counts only steps that have ended.
        metrics = "  ".join(f"{name} {_text(value)}" for name, value in self._values().items())
        self._changed = False
        self._next_draw = self._clock() + self._interval
        # Rounded, because fractions of a step add up to a little less than the total.
        self._bar.update(self._id, completed=round(self._done, 6))
        task = self._bar.tasks[0]
        left = "-" if task.time_remaining is None else _duration(task.time_remaining)
        text = f"ETA {left}  {self._status or metrics}".rstrip()
        self._bar.update(self._id, text=text)
        if not self.console.is_terminal:
            share = f"{task.percentage:.1f}%  {self._done:.0f}/{task.total}"
            elapsed = _duration(task.elapsed)
            self.print(f"{task.description}  {share}  elapsed {elapsed}  {text}")


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


def _text(number: float) -> str:
    """Return a number with four significant digits; large ones are written in full."""
    return f"{number:.0f}" if 1e4 <= abs(number) < 1e9 else f"{number:.4g}"
