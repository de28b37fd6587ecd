"""Commands in processes of their own, forked from one that has imported everything: a start takes no time."""

import contextlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.faults.phases import FileFault, Reporter

_SECONDS = 300  # after which a run is taken for one that hangs


class Entered(NamedTuple):
    """A phase that a run entered.

    Attributes:
        phase: which.
        seconds: since the start.
        operations: how many times files had been written to before.
    """

    phase: str
    seconds: float
    operations: int


class Moment(NamedTuple):
    """When a signal is sent.

    Attributes:
        phase: in which.
        occurrence: how often it has been entered before.
        delay: seconds after it is entered.
    """

    phase: str
    occurrence: int
    delay: float


class Ended(NamedTuple):
    """How a process ended.

    Attributes:
        status: its exit status; negative: the signal that ended it.
        out: its standard output.
        err: its standard error.
        phases: that it entered.
        seconds: that it took.
        hit: the phase in which the signal was sent; None: none was.
    """

    status: int
    out: str
    err: str
    phases: list[Entered]
    seconds: float
    hit: str | None = None

    @property
    def has_traceback(self) -> bool:
        """Whether it ended by an error that nobody had foreseen."""
        return "Traceback" in self.err + self.out


def train(
    arguments: Sequence[str],
    folder: Path,
    scratch: Path,
    *,
    at: Moment | None = None,
    number: int = signal.SIGKILL,
    fault: FileFault | None = None,
) -> Ended:
    """Run a training command; send it a signal at a moment, or let a file operation fail.

    Args:
        arguments: the experiment's name and its flags.
        folder: of the run; operations on files below it are counted.
        scratch: a folder for what the process prints.
        at: when the signal is sent; None: never.
        number: of the signal.
        fault: what happens at an operation on files.
    """

    def work(pipe: int) -> None:
        Reporter(pipe, str(folder.absolute()), fault).install()
        run_command([*arguments, "--run-dir", str(folder)])

    return fork(work, scratch, at=at, number=number)


def run_command(arguments: Sequence[str]) -> None:
    """Run a command line in this process, as `dynskip` does; ends by SystemExit where it fails."""
    from dynskip_jax.experiments.__main__ import run_by_name
    from dynskip_jax.experiments.cli import run_main

    sys.argv = ["dynskip", *arguments]
    run_main(lambda: run_by_name(arguments[0], list(arguments[1:])))


def fork(
    work: Callable[[int], None], scratch: Path, *, at: Moment | None = None, number: int = signal.SIGKILL
) -> Ended:
    """Do work in a forked process, which may report phases into a pipe; return how it ended."""
    scratch.mkdir(parents=True, exist_ok=True)
    reading, writing = os.pipe()
    paths = [scratch / "stdout", scratch / "stderr"]
    began = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _work(work, writing, paths)
    os.close(writing)
    try:
        phases, status, hit = _watch(pid, reading, began, at, number)
    finally:
        os.close(reading)
    out, err = (path.read_text(encoding="utf-8", errors="replace") for path in paths)
    return Ended(status, out, err, phases, time.monotonic() - began, hit)


def _work(work: Callable[[int], None], pipe: int, paths: Sequence[Path]) -> None:
    """Do the work in the child, with standard streams of its own; never returns."""
    status = 1
    try:
        for descriptor, path in zip((1, 2), paths, strict=True):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, descriptor)
            os.close(file)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 (the process ends)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        work(pipe)
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _watch(
    pid: int, pipe: int, began: float, at: Moment | None, number: int
) -> tuple[list[Entered], int, str | None]:
    """Read the phases until the process ends, and send the signal when it is time.

    Returns:
        The phases, the exit status, and the phase in which the signal was sent.
    """
    phases: list[Entered] = []
    rest, seen, due, hit = b"", 0, None, None
    while True:
        now = time.monotonic()
        left = began + _SECONDS - now if due is None else due - now
        ready, _, _ = select.select([pipe], [], [], max(0.0, left))
        if not ready:
            hit = phases[-1].phase if due is not None and phases else None
            os.kill(pid, number if due is not None else signal.SIGKILL)
            due = None
            continue
        data = os.read(pipe, 65536)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            phase, operations = line.decode().split("\t")
            phases.append(Entered(phase, time.monotonic() - began, int(operations)))
            if at is not None and phase == at.phase:
                if seen == at.occurrence:
                    due = time.monotonic() + at.delay
                seen += 1
    _, status = os.waitpid(pid, 0)
    return phases, os.waitstatus_to_exitcode(status), hit
