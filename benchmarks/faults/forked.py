"""Run commands in forked processes of a parent that has imported everything, so that they start fast."""

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

_SECONDS = 300  # a run that takes longer counts as hanging


class Entered(NamedTuple):
    """The start of a phase of a run.

    Attributes:
        phase: Name of the phase.
        seconds: Seconds since the start of the process.
        operations: Number of earlier operations that write to the run's files.
    """

    phase: str
    seconds: float
    operations: int


class Moment(NamedTuple):
    """The moment at which a signal is sent.

    Attributes:
        phase: Name of the phase.
        occurrence: Number of earlier times that the phase was entered.
        delay: Seconds after the phase is entered.
    """

    phase: str
    occurrence: int
    delay: float


class Ended(NamedTuple):
    """The result of a process.

    Attributes:
        status: Exit status, or minus the number of the signal that ended the process.
        out: Standard output.
        err: Standard error.
        phases: Phases that the process entered.
        seconds: Duration in seconds.
        hit: Phase in which the signal was sent; None if none was sent.
    """

    status: int
    out: str
    err: str
    phases: list[Entered]
    seconds: float
    hit: str | None = None

    @property
    def has_traceback(self) -> bool:
        """Whether the process printed a traceback, that is, met an unexpected error."""
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
    """Run a training command in a forked process, with a signal at a moment or a fault at a file operation.

    Args:
        arguments: Name of the experiment and its flags.
        folder: Run folder; operations on files in it are counted.
        scratch: Folder for the process's standard output and error.
        at: Moment at which the signal is sent; None sends none.
        number: Number of the signal.
        fault: Fault at an operation on files; None for none.
    """

    def work(pipe: int) -> None:
        Reporter(pipe, str(folder.absolute()), fault).install()
        run_command([*arguments, "--run-dir", str(folder)])

    return fork(work, scratch, at=at, number=number)


def run_command(arguments: Sequence[str]) -> None:
    """Run a command line in this process, as `dynskip` does; a failure raises SystemExit."""
    from dynskip_jax.experiments.__main__ import run_by_name
    from dynskip_jax.experiments.cli import run_main

    sys.argv = ["dynskip", *arguments]
    run_main(lambda: run_by_name(arguments[0], list(arguments[1:])))


def fork(
    work: Callable[[int], None], scratch: Path, *, at: Moment | None = None, number: int = signal.SIGKILL
) -> Ended:
    """Run a function in a forked process, and return how the process ended.

    Args:
        work: Function to run; its argument is a pipe into which it can report phases.
        scratch: Folder for the process's standard output and error.
        at: Moment at which a signal is sent; None sends none.
        number: Number of the signal.
    """
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


def exit_status(stop: SystemExit) -> int:
    """Return the exit status of a process that ends with `stop`: 1 for a message, as in Python."""
    if stop.code is None:
        return 0
    return stop.code if isinstance(stop.code, int) else 1


def _work(work: Callable[[int], None], pipe: int, paths: Sequence[Path]) -> None:
    """Run `work` in the child with output redirected to `paths`, and exit the process."""
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
        status = exit_status(stop)
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
    """Read the reported phases until the process ends, and send the signal at its moment.

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
