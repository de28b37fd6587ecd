"""Stop runs by signals at seeded moments, and check that resuming them gives the same result."""

import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.faults.comparison import contents, differences
from benchmarks.faults.forked import Ended, Moment, train
from benchmarks.faults.outcomes import Outcome
from benchmarks.faults.phases import CHECKPOINT, PHASES, RESULT, SETTINGS, FileFault
from benchmarks.faults.small_runs import SMALL_RUNS

# Phases of a few milliseconds, in which half of the kills are at a chosen file operation, not at a time.
_OF_FILES = (SETTINGS, CHECKPOINT, RESULT)
_ATTEMPTS = 5  # a run may end before the chosen moment, since it can be faster than the reference
SURVIVED = "equal bit by bit"


class Reference(NamedTuple):
    """A run without faults.

    Attributes:
        name: Name of the experiment.
        arguments: Command line without `--run-dir`.
        folder: Run folder.
        contents: Contents of the run folder; see `comparison.contents`.
        ended: Result of the process, with its phases.
    """

    name: str
    arguments: list[str]
    folder: Path
    contents: dict[str, Any]
    ended: Ended


def reference(name: str, work: Path) -> Reference:
    """Run an experiment twice without faults, and return the second run.

    The second run loads its programs from the compilation cache.

    Raises:
        RuntimeError: If a run fails, or if the two runs differ, so that they cannot serve as a reference.
    """
    data = work / "data" / ("letters" if name == "ptb" else name)
    arguments = [name, *SMALL_RUNS[name].arguments(data)]
    found = {}
    for number in range(2):
        folder = work / name / f"whole-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        ended = train(arguments, folder, work / "streams")
        if ended.status:
            raise RuntimeError(f"{name} fails without any fault: {ended.err}")
        found = contents(folder)
        if number and (differing := differences(work / name / "whole-0", found)):
            raise RuntimeError(f"two runs of {name} differ in {', '.join(differing)}")
    return Reference(name, arguments, folder, found, ended)


def kills(whole: Reference, work: Path, count: int, seed: int) -> Iterator[Outcome]:
    """Yield the outcome of `count` SIGKILLs at random moments, in each phase in turn."""
    draw = random.Random(f"{seed} {whole.name}")
    for number in range(count):
        phase = PHASES[number % len(PHASES)]
        yield stopped_and_resumed(whole, work, draw, phase, signal.SIGKILL)


def signals(whole: Reference, work: Path, count: int, seed: int) -> Iterator[Outcome]:
    """Yield the outcome of `count` termination signals (SIGINT, SIGTERM, …), in each phase in turn."""
    draw = random.Random(f"{seed} {whole.name} signals")
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    start = draw.randrange(len(numbers) * len(PHASES))
    for pair in range(start, start + count):  # 28 in a row: all pairs of 4 signals and 7 phases
        yield stopped_and_resumed(whole, work, draw, PHASES[pair % len(PHASES)], numbers[pair % len(numbers)])


def stopped_and_resumed(
    whole: Reference, work: Path, draw: random.Random, phase: str, number: int
) -> Outcome:
    """Return the outcome of a run that is stopped in a phase and resumed by the same command."""
    folder = work / whole.name / "stopped"
    name = signal.Signals(number).name
    for _ in range(_ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        moment, fault, details = _chosen(whole.ended, draw, phase, number)
        ended = train(whole.arguments, folder, work / "streams", at=moment, number=number, fault=fault)
        if ended.status:
            break
    phase = ended.hit or phase  # a run faster than the reference may be in the next phase
    outcome = Outcome(f"{name}, {phase}", whole.name, details=f"{details}, status {ended.status}")
    if not ended.status or (number == signal.SIGKILL and ended.status != -signal.SIGKILL):
        return outcome._replace(problem=f"the run ended before, or hung (status {ended.status})")
    if ended.has_traceback:
        return outcome._replace(problem=f"a traceback: {ended.err[-500:]}")
    again = train(whole.arguments, folder, work / "streams")
    if again.status:
        return outcome._replace(problem=f"it does not go on: {again.err.strip()[-500:]}")
    if again.has_traceback:
        return outcome._replace(problem=f"a traceback: {again.err[-500:]}")
    if differing := differences(folder, whole.contents):
        return outcome._replace(problem=f"it differs in {', '.join(differing)}")
    return outcome._replace(result=SURVIVED)


def _chosen(
    ended: Ended, draw: random.Random, phase: str, number: int
) -> tuple[Moment | None, FileFault | None, str]:
    """Sample a moment in a phase: a time, or a file operation for half of the kills in short phases.

    Returns:
        The time or None, the fault at a file operation or None, and a description.
    """
    phases = ended.phases
    last = (*phases[-1][:1], ended.seconds, phases[-1].operations)
    spans = [
        (end[1] - start.seconds, start.operations, end[2])
        for start, end in zip(phases, [*phases[1:], last], strict=True)
        if start.phase == phase
    ]
    if phase in _OF_FILES and number == signal.SIGKILL and draw.random() < 0.5:
        operations = sum(end - start for _, start, end in spans)
        at = draw.randrange(operations)
        return None, FileFault(phase, at, "kill"), f"operation {at} of {operations} on files"
    occurrence = draw.choices(range(len(spans)), [max(seconds, 1e-4) for seconds, *_ in spans])[0]
    delay = draw.random() * spans[occurrence][0]
    details = f"{1000 * delay:.1f} ms after the start of no. {occurrence + 1} of {len(spans)}"
    return Moment(phase, occurrence, delay), None, details
