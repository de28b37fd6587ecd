"""The runs that need an accelerator, in pieces of a few minutes: call it again until nothing is left.

    python -m benchmarks.accelerator --out DIR --data PTB_DIR --minutes 9

The most important runs come first. `--list` says what is done and what is left.
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
from dynskip_jax.config import Bounds, Count, call
from dynskip_jax.errors import UserError
from dynskip_jax.failures import run_main
from dynskip_jax.training.folder import RunDir

GRACE = 60.0  # seconds that a run gets to save; they are part of --minutes
INTERRUPTED = 130  # exit status of a run that was stopped and can be resumed


class Run(NamedTuple):
    """A command: the name of its folder, its module, and its flags as typed."""

    name: str
    module: str
    flags: str


_TENTHS = "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1"
_TWENTY = "--epochs 20 --decay-after 7 --decay 1.35 --precision bf16"  # as `reproduce ptb-650`
_WIDE = "--features 650 --num-steps 35 --dropout 0.5 --init-scale 0.05 --agent-learning-rate 0.01"
_COPY = "--model dynamic:200 --agent content --agent-features 200 --copy expected --mix 0 --rl-coef 0"
# Most important first.
_PLAN = f"""
layers             benchmarks.recurrence --parts layers,training
copying            experiments.ptb --preset far {_WIDE} {_TWENTY}
copying-control    experiments.ptb --preset far {_WIDE} {_TWENTY} --control untrained
table3-dynamic-5   experiments.ptb --preset paper --model dynamic:5 {_TWENTY}
table3-control     experiments.ptb --preset paper --model dynamic:5 {_TWENTY} --control untrained
released           experiments.ptb --preset released --model dynamic:5 --epochs 20
released-control   experiments.ptb --preset released --model dynamic:5 --epochs 20 --control untrained
charlm-small-lstm  experiments.ptb --preset charlm_small --model lstm
charlm-small-copy  experiments.ptb --preset charlm_small {_COPY}
figure5-K          experiments.ptb --preset paper --model dynamic:10 --max-skip 2,3,4,5,6,7,8,9,10 --mix 0.5
figure5-mix        experiments.ptb --preset paper --model dynamic:5 --mix {_TENTHS}
charlm-dynamic-5   experiments.ptb --preset charlm --model dynamic:5
charlm-lstm        experiments.ptb --preset charlm --model lstm
charlm-attention-5 experiments.ptb --preset charlm --model attention:5
awd-lstm           experiments.ptb --preset awd --model lstm --seeds 1
awd-dynamic-5      experiments.ptb --preset awd --model dynamic:5 --seeds 1
numbers-101        experiments.number_prediction --length 101 --model dynamic:100
numbers-201        experiments.number_prediction --length 201 --model dynamic:200
"""
PLAN = tuple(Run(*line.split(maxsplit=2)) for line in _PLAN.strip().splitlines())


@dataclasses.dataclass(frozen=True)
class Flags:
    """Run what needs an accelerator, for some minutes; the next call goes on.

    Args:
        out: Folder that keeps the runs; give the same one each time.
        data: Folder of the Penn Treebank.
        minutes: How long this call may take.
        seeds: Seeds of each training.
        only: Beginnings of names of runs, separated by commas. Default: all.
        list: Only say what is done and what is left.
    """

    out: Path
    data: Path | None = None
    minutes: Annotated[float, Bounds(above=GRACE / 60)] = 9.0
    seeds: Count = 3
    only: str | None = None
    list: bool = False


def command(run: Run, flags: Flags) -> list[str]:
    """Return the command line of a run."""
    words, place = shlex.split(run.flags), "--out"
    if run.module.startswith("experiments."):
        words += [] if "--seeds" in words else ["--seeds", str(flags.seeds)]
        place = "--run-dir"
    if run.module == "experiments.ptb" and flags.data is not None:
        words += ["--data", str(flags.data)]
    return [sys.executable, "-m", run.module, *words, place, str(flags.out / run.name)]


def chosen(flags: Flags) -> list[Run]:
    """Return the runs that match `--only`, most important first."""
    found = [run for run in PLAN if run.name.startswith(tuple((flags.only or "").split(",")))]
    if not found:
        raise UserError(f"--only {flags.only} fits no run: --list names them")
    return found


def status(run: Run, flags: Flags) -> str:
    """Return `done`, the epoch that the run has reached, or `not begun`."""
    here = flags.out / run.name
    if (here / "result.json").exists() or (here / "recurrence.json").exists():
        return "done"
    epochs = [record["epoch"] for record in RunDir(here).records()]
    return f"epoch {max(epochs):.1f}" if epochs else "not begun"


def go_on(run: Run, flags: Flags, seconds: float) -> bool:
    """Start or resume a run, ask it to save and stop after `seconds`, and return whether it has finished."""
    process = subprocess.Popen(command(run, flags))
    # After a kill, the next call resumes from the last checkpoint.
    for asked, wait in ((None, max(seconds, 1.0)), (signal.SIGINT, GRACE), (signal.SIGKILL, None)):
        if asked is not None:
            process.send_signal(asked)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=wait)
            break
    if process.returncode not in (0, INTERRUPTED, -signal.SIGKILL):
        raise UserError(f"{run.name} failed with exit status {process.returncode}: its message stands above")
    return process.returncode == 0


def main() -> None:
    """Run the command line."""
    flags = call(Flags, "python -m benchmarks.accelerator", sys.argv[1:])
    runs = chosen(flags)
    end = time.monotonic() + 60 * flags.minutes - GRACE
    for run in () if flags.list else runs:
        left = end - time.monotonic()
        if left > 0 and status(run, flags) != "done":
            print(f"== {run.name}: {run.module} {run.flags}", flush=True)
            go_on(run, flags, left)
    print(markdown(["run", "status", "flags"], [[run.name, status(run, flags), run.flags] for run in runs]))


if __name__ == "__main__":
    run_main(main)
