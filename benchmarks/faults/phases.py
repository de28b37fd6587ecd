"""Report the phases of a run as it enters them, and inject faults at a chosen operation on files."""

import contextlib
import errno
import functools
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from dynskip_jax.analysis import plots
from dynskip_jax.experiments import evaluation, run
from dynskip_jax.experiments.registry import EXPERIMENTS, find_experiment
from dynskip_jax.training.checkpoint import Checkpoints
from dynskip_jax.training.folder import RunDir
from dynskip_jax.training.loop import Epoch

SETTINGS, DATA, TRAINING = "settings being written", "data and compiling", "training"
CHECKPOINT, EVALUATION = "checkpoint being written", "evaluation"
PICTURES, RESULT = "pictures", "result being written"
PHASES = (SETTINGS, DATA, CHECKPOINT, TRAINING, EVALUATION, PICTURES, RESULT)
# Audit events that change the file system; `open` for writing is counted too.
_WRITING = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link")


class FileFault(NamedTuple):
    """A fault at an operation that writes to the file system.

    Attributes:
        phase: Phase of the operation; None for any phase.
        operation: Number of the operation, from 0, in the phase, or in the run if `phase` is None.
        kind: `kill` ends the process by SIGKILL. `full` makes this and later operations fail, as on a full
            disk.
    """

    phase: str | None
    operation: int
    kind: str


class Reporter:
    """A reporter that writes each phase that a run enters, with the number of file operations, into a pipe.

    Args:
        pipe: File descriptor of the pipe's writing end.
        below: Folder whose file operations are counted.
        fault: Fault at one of these operations; None for none.
    """

    def __init__(self, pipe: int, below: str, fault: FileFault | None = None):
        self._pipe, self._below, self._fault = pipe, below, fault
        self._phases: list[str] = []
        self._operations: dict[str | None, int] = {}
        self._base = DATA
        self._is_full = False

    def install(self) -> None:
        """Wrap the functions of a run in this process so that they report their phases."""
        sys.addaudithook(self._audit)
        self._report(DATA)
        for owner, name, phase in (
            (RunDir, "open", SETTINGS),
            (RunDir, "keep", SETTINGS),
            (RunDir, "go_on", SETTINGS),
            (Checkpoints, "save", CHECKPOINT),
            (Epoch, "evaluate", EVALUATION),
            (run, "evaluate_model", EVALUATION),
            (evaluation, "draw_training", PICTURES),
            (evaluation, "draw_sweep", PICTURES),
            (plots, "save", PICTURES),
            *((find_experiment(name), "draw", PICTURES) for name in EXPERIMENTS),
            (RunDir, "write_result", RESULT),
        ):
            self._wrap(owner, name, phase)
        steps = Epoch.steps

        def reported(epoch: Epoch, *arguments: Any) -> Iterator[Any]:
            for state in steps(epoch, *arguments):
                if self._base != TRAINING:
                    self._base = TRAINING
                    self._report(TRAINING)
                yield state

        Epoch.steps = reported

    def _wrap(self, owner: Any, name: str, phase: str) -> None:
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def reported(*arguments: Any, **options: Any) -> Any:
            with self._inside(phase):
                return inner(*arguments, **options)

        setattr(owner, name, reported)

    @contextlib.contextmanager
    def _inside(self, phase: str) -> Iterator[None]:
        if phase in self._phases:  # functions that draw pictures call each other
            yield
            return
        self._phases.append(phase)
        self._report(phase)
        try:
            yield
        finally:
            self._phases.remove(phase)
            self._report(self._phases[-1] if self._phases else self._base)

    def _report(self, phase: str) -> None:
        counts = self._operations.get(None, 0)
        os.write(self._pipe, f"{phase}\t{counts}\n".encode())

    def _is_below(self, path: str) -> bool:
        return f"{os.path.abspath(path)}{os.sep}".startswith(f"{os.path.abspath(self._below)}{os.sep}")

    def _audit(self, event: str, arguments: tuple) -> None:
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        else:
            path, writes = arguments[0] if arguments else None, event in _WRITING
        if not writes or not isinstance(path, str) or not self._is_below(path):
            return
        if self._is_full and event != "os.remove":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        phase = self._phases[-1] if self._phases else self._base
        here, total = self._operations.get(phase, 0), self._operations.get(None, 0)
        self._operations |= {phase: here + 1, None: total + 1}
        fault = self._fault
        if fault is None or fault.operation != (total if fault.phase is None else here):
            return
        if fault.phase in (None, phase):
            if fault.kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            self._is_full = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
