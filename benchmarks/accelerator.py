"""The trainings that need an accelerator, in pieces of a few minutes: call it again until nothing
is left.

    python -m benchmarks.accelerator --out DIR --data PTB_DIR --minutes 9

The most important ones come first. `--list` says what is done and what is left.
"""

import contextlib
import dataclasses
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, NamedTuple

from benchmarks.report import markdown
from dynskip_jax.commands.reproduce import all_tables
from dynskip_jax.config import Bounds, Count, call
from dynskip_jax.errors import UserError
from dynskip_jax.failures import run_main
from dynskip_jax.training.folder import RunDir
from dynskip_jax.training.results import progress_of

GRACE = 60.0  # seconds that a run gets to save; they are part of --minutes
INTERRUPTED = 130  # exit status of a run that was stopped and can be resumed


class Run(NamedTuple):
    """A training: the name of its folder, its experiment, and its flags as typed."""

    name: str
    experiment: str
    flags: str


# Most important first: TABLE/RUN of `reproduce`, or an experiment and its flags.
_PLAN = """
copying            ptb-650/dynamic-200
copying-control    ptb-650/control
table3-dynamic-5   ptb-650/dynamic-5
table3-control     ptb-650/dynamic-5-control
released           ptb-released/dynamic-5
released-control   ptb-released/control
charlm-small-lstm  charlm-small/lstm
charlm-small-copy  charlm-small/dynamic-200
figure5-K          ptb --preset paper --model dynamic:10 --max-skip 2,3,4,5,6,7,8,9,10 --mix 0.5
figure5-mix        ptb --preset paper --model dynamic:5 --mix 0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1
charlm-dynamic-5   ptb --preset charlm --model dynamic:5
charlm-lstm        ptb --preset charlm --model lstm
charlm-attention-5 ptb --preset charlm --model attention:5
awd-lstm           ptb --preset awd --model lstm --seeds 1
awd-dynamic-5      ptb --preset awd --model dynamic:5 --seeds 1
numbers-101        number_prediction --length 101 --model dynamic:100
numbers-201        number_prediction --length 201 --model dynamic:200
"""


def _plan() -> tuple[Run, ...]:
    runs, tables = [], all_tables()
    for name, command in (line.split(maxsplit=1) for line in _PLAN.strip().splitlines()):
        table, _, run = command.partition("/")
        command = tables[table].runs[run] if run else command
        runs.append(Run(name, *command.split(maxsplit=1)))
    return tuple(runs)


PLAN = _plan()


@dataclasses.dataclass(frozen=True)
class Flags:
    """Run what needs an accelerator, for some minutes; the next call goes on.

    Args:
        out: Folder that keeps the runs; give the same one each time.
        data: Folder of the Penn Treebank.
        minutes: How long this call may take.
        seeds: Seeds of each training.
        only: Beginnings of names of runs.
        list: Only say what is done and what is left.
    """

    out: Path
    data: Path | None = None
    minutes: Annotated[float, Bounds(above=GRACE / 60)] = 9.0
    seeds: Count = 3
    only: tuple[str, ...] = ("",)
    list: bool = False


def command(run: Run, flags: Flags) -> list[str]:
    """Return the command line of a run."""
    words = [*shlex.split(run.flags), "--run-dir", str(flags.out / run.name)]
    words += [] if "--seeds" in words else ["--seeds", str(flags.seeds)]
    if run.experiment == "ptb" and flags.data is not None:
        words += ["--data", str(flags.data)]
    return [sys.executable, "-m", f"experiments.{run.experiment}", *words]


def status(run: Run, flags: Flags) -> str:
    """Return `done`, or a few words about the progress of a run."""
    here = flags.out / run.name
    return "done" if (here / "result.json").exists() else progress_of(RunDir(here))


def go_on(run: Run, flags: Flags, seconds: float) -> bool:
    """Start or resume a run, ask it to save and stop after `seconds`, and return whether it has
    finished.
    """
    process = subprocess.Popen(command(run, flags))
    # After a kill, the next call resumes from the last checkpoint.
    for asked, wait in ((None, max(seconds, 1.0)), (signal.SIGINT, GRACE), (signal.SIGKILL, None)):
        if asked is not None:
            process.send_signal(asked)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=wait)
            break
    if process.returncode not in (0, INTERRUPTED, -signal.SIGKILL):
        raise UserError(
            f"{run.name} failed with exit status {process.returncode}: its message stands above"
        )
    return process.returncode == 0


def main() -> None:
    """Run the command line."""
    flags = call(Flags, "python -m benchmarks.accelerator", sys.argv[1:])
    runs = [run for run in PLAN if run.name.startswith(flags.only)]
    if not runs:
        raise UserError(f"--only {','.join(flags.only)} fits no run: --list names them")
    end = time.monotonic() + 60 * flags.minutes - GRACE
    for run in () if flags.list else runs:
        left = end - time.monotonic()
        if left > 0 and status(run, flags) != "done":
            print(f"== {run.name}: {run.experiment} {run.flags}", flush=True)
            go_on(run, flags, left)
    print(
        markdown(
            ["run", "status", "flags"], [[run.name, status(run, flags), run.flags] for run in runs]
        )
    )


if __name__ == "__main__":
    run_main(main)
