"""How candidates are measured: they take turns; ratios are taken turn by turn."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import numpy as np
from jaxtyping import Float

from benchmarks.candidate import Candidate, Ready

Values = dict[str, Float[np.ndarray, " rounds"]]  # by candidate
Tick = Callable[[], None]  # called when a candidate is ready, and after each turn


@dataclasses.dataclass(frozen=True)
class Measured:
    """What came out.

    Attributes:
        values: of each candidate that ran.
        failed: why, of each that did not. One that runs out of memory or lacks a library takes no other
            with it.
    """

    values: Values
    failed: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A ratio taken turn by turn: its median and its quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:
            return number(self.median)
        return f"{number(self.median)} ({number(self.low)}–{number(self.high)})"


def number(value: float) -> str:
    """Three digits; all of them before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.{2 - max(-3, math.floor(math.log10(value)))}f}" if value > 0 else f"{value:g}"


def ratio(values: Float[np.ndarray, " rounds"], base: Float[np.ndarray, " rounds"]) -> Ratio:
    """Returns values / base, each turn's with the same turn's: a machine that slows down does so for both."""
    low, median, high = np.percentile(values / base, (25, 50, 75))
    return Ratio(float(median), float(low), float(high))


def milliseconds(entries: Sequence[Candidate], rounds: int, tick: Tick) -> Measured:
    """Milliseconds of a step, each candidate once in each round."""
    ready, failed = _prepare(entries, tick)
    return Measured(take_turns({name: one.step for name, one in ready.items()}, rounds, tick), failed)


def take_turns(
    steps: Mapping[str, Callable[[], object]], rounds: int, tick: Tick, *, least_ms: float = 20.0
) -> Values:
    """Milliseconds of each step in each round, (rounds,).

    The order changes from round to round, since a turn may suffer from the one before it (threads that
    still spin, a cache full of other data). A turn repeats a short step until `least_ms` have passed, and
    counts the mean.
    """
    repeats = {}
    for name, step in steps.items():
        step()  # what happens only once
        repeats[name] = max(1, round(least_ms / _milliseconds(step, 1)))
    times: dict[str, list[float]] = {name: [] for name in steps}
    for name in _shuffled(steps, rounds):
        times[name].append(_milliseconds(steps[name], repeats[name]))
        tick()
    return {name: np.array(values) for name, values in times.items()}


def first_steps(entries: Sequence[Candidate], rounds: int, tick: Tick) -> Measured:
    """Seconds of the first step, with all that has to happen before it: tracing and compiling, if any."""
    ready, failed = _prepare(entries, tick)  # libraries load what they load once in a process
    times: dict[str, list[float]] = {name: [] for name in ready}
    by_name = {entry.name: entry for entry in entries}
    for name in _shuffled(ready, rounds):
        jax.clear_caches()  # as in a new process
        begin = time.perf_counter()
        by_name[name].prepare().step()
        times[name].append(time.perf_counter() - begin)
        tick()
    return Measured({name: np.array(values) for name, values in times.items()}, failed)


def megabytes(entries: Sequence[Candidate], rounds: int, tick: Tick) -> Measured:
    """Memory (MiB) that a step needs beyond its arguments; one value, for it does not vary."""
    values, failed = {}, {}
    for entry in entries:
        ready, why = _prepare([entry], tick)
        failed |= why
        size = ready[entry.name].peak_bytes() if ready else None
        if size is not None:
            values[entry.name] = np.array([size / 2**20])
        tick()
    return Measured(values, failed)


def _prepare(entries: Iterable[Candidate], tick: Tick) -> tuple[dict[str, Ready], dict[str, str]]:
    """Makes each ready and takes its first step, or notes why that was not possible."""
    ready, failed = {}, {}
    for entry in entries:
        try:
            one = entry.prepare()
            one.step()
            ready[entry.name] = one
        except Exception as error:
            # The first line of its message, where it has one.
            failed[entry.name] = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        tick()
    return ready, failed


def _shuffled(names: Iterable[str], rounds: int) -> Iterable[str]:
    """All names once in each round, in an order that changes, the same in each run."""
    rng, names = np.random.default_rng(0), list(names)
    for _ in range(rounds):
        yield from rng.permutation(names).tolist()


def _milliseconds(step: Callable[[], object], repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    return 1e3 * (time.perf_counter() - begin) / repeats
