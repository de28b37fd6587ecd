"""Measure candidates in turns, and compute ratios turn by turn."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import numpy as np
from jaxtyping import Float

from benchmarks.candidate import Candidate, Ready

Values = dict[str, Float[np.ndarray, " rounds"]]  # by the candidate's name
Tick = Callable[[], None]  # called when a candidate is ready, and after each turn


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measurements of several candidates.

    Attributes:
        values: Values of each candidate that ran.
        failed: Reason of each candidate that failed, for example because a library is missing. The other
            candidates are still measured.
    """

    values: Values
    failed: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Median and quartiles of the ratios of all turns."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:
            return number(self.median)
        return f"{number(self.median)} ({number(self.low)}–{number(self.high)})"


def number(value: float) -> str:
    """Return the value as text with three significant digits, or without decimals from 100 on."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.{2 - max(-3, math.floor(math.log10(value)))}f}" if value > 0 else f"{value:g}"


def ratio(values: Float[np.ndarray, " rounds"], base: Float[np.ndarray, " rounds"]) -> Ratio:
    """Return values / base, turn by turn, so that changes in the machine's speed affect both."""
    low, median, high = np.percentile(values / base, (25, 50, 75))
    return Ratio(float(median), float(low), float(high))


def milliseconds(entries: Sequence[Candidate], rounds: int, tick: Tick) -> Measured:
    """Measure the milliseconds of a step, with each candidate once in each round."""
    ready, failed = _prepare(entries, tick)
    return Measured(take_turns({name: one.step for name, one in ready.items()}, rounds, tick), failed)


def take_turns(
    steps: Mapping[str, Callable[[], object]], rounds: int, tick: Tick, *, least_ms: float = 20.0
) -> Values:
    """Measure the milliseconds of each step in each round, (rounds,).

    The order changes from round to round, because a turn can be slowed down by the one before it (spinning
    threads, a cache full of other data).

    Args:
        steps: Function that runs one step, by name.
        rounds: Number of turns of each step.
        tick: Function called after each turn.
        least_ms: Least duration of a turn. A short step is repeated about that long; its mean time counts.
    """
    repeats = {}
    for name, step in steps.items():
        step()  # warm-up
        repeats[name] = max(1, round(least_ms / _milliseconds(step, 1)))
    times: dict[str, list[float]] = {name: [] for name in steps}
    for name in _shuffled(steps, rounds):
        times[name].append(_milliseconds(steps[name], repeats[name]))
        tick()
    return {name: np.array(values) for name, values in times.items()}


def first_steps(entries: Sequence[Candidate], rounds: int, tick: Tick) -> Measured:
    """Measure the seconds until the first step is done, including tracing and compiling."""
    ready, failed = _prepare(entries, tick)  # first load what libraries load once in a process
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
    """Measure the memory, in MiB, that a step needs beyond its arguments; one value, since it is constant."""
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
    """Prepare each candidate and run its first step; return those that ran, and the error of the others."""
    ready, failed = {}, {}
    for entry in entries:
        try:
            one = entry.prepare()
            one.step()
            ready[entry.name] = one
        except Exception as error:
            # Type and first line of the message, if there is one.
            failed[entry.name] = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        tick()
    return ready, failed


def _shuffled(names: Iterable[str], rounds: int) -> Iterable[str]:
    """Yield all names once in each round, in an order that differs between rounds but not between runs."""
    rng, names = np.random.default_rng(0), list(names)
    for _ in range(rounds):
        yield from rng.permutation(names).tolist()


def _milliseconds(step: Callable[[], object], repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    return 1e3 * (time.perf_counter() - begin) / repeats
