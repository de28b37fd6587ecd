"""Run commands in forks of a process that has imported everything, and compare run folders."""

import contextlib
import errno
import hashlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SECONDS = 300  # after which a command counts as hanging
# Signals may arrive before they are handled.
_STOPPED = [
    -getattr(signal, name) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")
]
# Audit events that change the file system; `open` for writing is counted too.
_WRITING = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link")


class Ended(NamedTuple):
    """The end of a command: its status (or minus a signal), outputs, duration and memory."""

    status: int
    out: str
    err: str
    seconds: float
    bytes: int
    operations: int  # that changed the files of the run

    def problem(self, *, most_seconds: float = SECONDS, most_bytes: float = 4e9) -> str:
        """Return what is wrong with it, unless it succeeded or failed in one line."""
        text = self.err + self.out
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        if "Traceback" in text or self.status not in (0, 2, 130, *_STOPPED):
            return f"status {self.status}: {text.strip()[-500:]}"
        if self.status == 2 and (len(lines) != 1 or len(lines[0]) > 1000):
            return f"not one line: {self.err[-500:]}"
        if self.seconds > most_seconds or self.bytes > most_bytes:
            return f"{self.seconds:.0f} s, {self.bytes / 1e9:.1f} GB"
        return ""


def run(
    arguments: Sequence[str],
    scratch: Path,
    *,
    below: Path | None = None,
    at: tuple[float, int] | None = None,
    operation: tuple[int, str | Callable[[Path], None]] | None = None,
    seconds: float = SECONDS,
) -> Ended:
    """Run a `dynskip` command in a forked process, with its outputs in `scratch`.

    Args:
        below: Folder in which operations on files are counted.
        at: Seconds after the start, and number of the signal that is then sent.
        operation: Number of an operation, and what happens there: `kill` (SIGKILL), `full` (it and
            all later ones fail), or a function of the folder, once.
        seconds: Seconds after which the process is killed, which counts as hanging.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    paths = [scratch / name for name in ("stdout", "stderr", "operations")]
    paths[2].write_text("0")
    sys.stdout.flush()
    sys.stderr.flush()
    began = time.monotonic()
    # A fork has imported everything: a command starts in milliseconds.
    pid = os.fork()
    if pid == 0:
        _work(arguments, paths, below, operation)
    due, number = at or (seconds, signal.SIGKILL)
    while not (found := os.wait4(pid, os.WNOHANG))[0]:
        if time.monotonic() - began > due:
            os.kill(pid, number)
            due = seconds + due
            number = signal.SIGKILL
        time.sleep(0.002)
    _, status, usage = found
    out, err, count = (path.read_text(encoding="utf-8", errors="replace") for path in paths)
    took = time.monotonic() - began
    return Ended(
        os.waitstatus_to_exitcode(status), out, err, took, usage.ru_maxrss * 1024, int(count)
    )


def _work(
    arguments: Sequence[str],
    paths: Sequence[Path],
    below: Path | None,
    fault: tuple[int, Any] | None,
) -> None:
    """Run a command in the child with output redirected to `paths`, and exit the process."""
    from dynskip_jax.cli import start as main

    count = 0
    status = 1

    def audit(event: str, details: tuple) -> None:
        nonlocal count
        path = details[0] if details else None
        if not isinstance(path, str) or not os.path.abspath(path).startswith(f"{below}{os.sep}"):
            return
        writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT
        if event not in _WRITING and (event != "open" or not (details[2] or 0) & writing):
            return
        # The operation of this number is where something happens.
        count += 1
        if fault is not None and callable(fault[1]):
            if count == fault[0] + 1:
                fault[1](below)
        elif fault is not None and count > fault[0]:
            if fault[1] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if event != "os.remove":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    try:
        for descriptor, path in zip((1, 2), paths, strict=False):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, descriptor)
        # Never closed, because the process ends with them.
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        if below is not None:
            sys.addaudithook(audit)
        sys.argv = ["dynskip", *map(str, arguments)]
        main()
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            paths[2].write_text(str(count))
        os._exit(status)


def contents(folder: Path) -> dict[str, Any]:
    """Return what is equal in two finished runs: all except times, dates and paths."""
    config = json.loads((folder / "config.json").read_text())
    result = json.loads((folder / "result.json").read_text())
    rows = [
        {name: value for name, value in row.items() if name not in ("wall_seconds", "checkpoint")}
        for row in result["rows"]
    ]
    step = max((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))
    document = json.loads((step / "document" / "metadata").read_text())
    arrays = {leaf["path"]: leaf["sha256"] for leaf in document["leaves"]}
    pictures = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("plots/*")
    }
    metrics = folder / "metrics.jsonl"
    return {
        "settings": config["settings"],
        "result": rows,
        "metrics": metrics.read_text() if metrics.exists() else "",
        "checkpoint": (step.name, document["meta"]["history"], arrays),
        "pictures": pictures,
    }


def differences(folder: Path, expected: dict[str, Any], *names: str) -> str:
    """Return the names of the contents that differ; only `names`, if there are any."""
    try:
        found = contents(folder)
    except (OSError, ValueError, KeyError) as error:
        return f"unreadable ({error})"
    return ", ".join(name for name in names or expected if found[name] != expected[name])
