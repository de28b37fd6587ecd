"""Train a run with two processes, kill one, and check that a single process completes the run."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.faults.forked import train
from benchmarks.faults.kills import Reference
from benchmarks.faults.outcomes import Outcome

TOLERANCE = 1e-4  # relative: sums over two devices are rounded differently from sums over one
_SECONDS = 180
# Each process limits generated data, as in the reference run.
_START = """
from benchmarks.faults.small_runs import shrink_generated_data
from dynskip_jax.experiments.__main__ import main
shrink_generated_data()
main()
"""


def one_of_two_killed(whole: Reference, work: Path, count: int, seed: int) -> Iterator[Outcome]:
    """Yield the outcome of killing one of two processes within a second after the first checkpoint.

    Args:
        whole: Run without faults.
        work: Folder for the runs.
        count: Number of runs.
        seed: Seed of the moments.
    """
    draw = random.Random(f"{seed} {whole.name} two processes")
    for number in range(count):
        folder = work / whole.name / f"two-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        killed, delay = number % 2, draw.random()
        processes = _start(whole, folder, work)
        outcome = Outcome(
            "SIGKILL to one of two processes, resumed by one",
            whole.name,
            details=f"process {killed}, {delay:.2f} s after the first checkpoint",
        )
        try:
            problem = _wait_for_checkpoint(folder, processes)
            if problem is None:
                time.sleep(delay)
                processes[killed].send_signal(signal.SIGKILL)
                processes[1 - killed].wait(_SECONDS)
        except subprocess.TimeoutExpired:
            problem = "the other process goes on, or hangs"
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if problem is None and (folder / "result.json").exists():
            problem = "the run ended before"
        if problem is None:
            again = train(whole.arguments, folder, work / "streams")
            problem = again.err.strip()[-500:] if again.status else _differing(folder, whole.folder)
        yield outcome._replace(problem=problem or "", result="equal to 1e-4 relative")


def _start(whole: Reference, folder: Path, work: Path) -> list[subprocess.Popen]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        coordinator = f"127.0.0.1:{server.getsockname()[1]}"
    # Remove `--devices`, which is for one process; here each process has one device.
    flags = list(whole.arguments)
    del flags[flags.index("--devices") : flags.index("--devices") + 2]
    processes = []
    for index in range(2):
        where = ["--coordinator", coordinator, "--process-count", "2", "--process-id", str(index)]
        with open(work / "streams" / f"two-{index}", "wb") as stream:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", _START, *flags, *where, "--run-dir", str(folder)],
                    env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"},
                    stdout=stream,
                    stderr=stream,
                )
            )
    return processes


def _wait_for_checkpoint(folder: Path, processes: list[subprocess.Popen]) -> str | None:
    """Wait for the first checkpoint; return None once it exists, or a description of the problem."""
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        checkpoints = folder / "checkpoints"
        if checkpoints.exists() and any(path.name.isdecimal() for path in checkpoints.iterdir()):
            return None
        if any(process.poll() is not None for process in processes):
            return "a process ended before the first checkpoint"
        time.sleep(0.005)
    return "there is no checkpoint"


def _differing(folder: Path, expected: Path) -> str | None:
    """Return a text with the metrics that differ by more than the tolerance; None if none does."""
    one, two = (json.loads((path / "result.json").read_text())["rows"][0] for path in (folder, expected))
    names = [
        name
        for name, metric in two["metrics"].items()
        if not np.allclose(one["metrics"][name]["mean"], metric["mean"], rtol=TOLERANCE, atol=0)
    ]
    return f"it differs in {', '.join(names)}" if names else None
