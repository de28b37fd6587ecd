"""Simulate a full disk, and check that a run stops with a one-line error and can be resumed later."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.faults.comparison import differences
from benchmarks.faults.forked import train
from benchmarks.faults.kills import SURVIVED, Reference
from benchmarks.faults.outcomes import Outcome
from benchmarks.faults.phases import FileFault


def full_disks(whole: Reference, work: Path, count: int | None = None) -> Iterator[Outcome]:
    """Yield the outcome of a disk that becomes full at each write to the run's files, or at some writes.

    Args:
        whole: Run without faults.
        work: Folder for the runs.
        count: Number of writes, evenly spread; None for all.
    """
    total = whole.ended.phases[-1].operations
    chosen = range(total) if count is None else sorted({i * total // count for i in range(count)})
    folder = work / whole.name / "full"
    for operation in chosen:
        shutil.rmtree(folder, ignore_errors=True)
        fault = FileFault(None, operation, "full")
        ended = train(whole.arguments, folder, work / "streams", fault=fault)
        outcome = Outcome("disk full from a write on", whole.name, details=f"write {operation} of {total}")
        lines = [line for line in ended.err.splitlines() if line.startswith("error: ")]
        if ended.has_traceback or (ended.status and (ended.status != 2 or len(lines) != 1)):
            yield outcome._replace(problem=f"status {ended.status}: {ended.err.strip()[-500:]}")
            continue
        again = train(whole.arguments, folder, work / "streams")
        if again.status:
            yield outcome._replace(problem=f"it does not go on: {again.err.strip()[-500:]}")
        elif differing := differences(folder, whole.contents):
            yield outcome._replace(problem=f"it differs in {', '.join(differing)}")
        else:
            yield outcome._replace(result=f"one line, then {SURVIVED}" if ended.status else SURVIVED)
