"""The runs that need an accelerator, in pieces of a few minutes: call it again until nothing is left.

    python -m benchmarks.accelerator --out DIR --data PTB_DIR --minutes 9

Each call goes on where the last one stopped, runs for at most `--minutes`, and keeps everything in DIR: one
run folder for each run, in the order of their importance. `--list` says what is done and what is left. What a
run found is in its `result.json`, and its table is printed by the call that finishes it.
"""

import dataclasses
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from dynskip_jax.errors import UserError
from dynskip_jax.experiments.cli import run_main
from dynskip_jax.experiments.command_line import read_flags
from dynskip_jax.experiments.reproduce import INTERRUPTED, REDUCED, Run, last_of_each
from dynskip_jax.settings import path_setting, setting
from dynskip_jax.training.folder import RunDir, file_name

GRACE = 60.0  # seconds that a run gets to save; they are part of --minutes


def _ptb(name: str, why: str, *flags: str) -> Run:
    return Run(name, "ptb", flags, why)


def _each(table: str, preset: str, models: Sequence[str], why: str, *flags: str) -> list[Run]:
    """Return one run for each model."""
    return [
        _ptb(f"{table}-{file_name(model)}", why, "--preset", preset, "--model", model, *flags)
        for model in models
    ]


_TEN = ("--seeds", "10")
PLAN: tuple[Run, ...] = (
    *_each("table3", "paper", ("dynamic:5", "lstm"), "Table 3, ten seeds, the paper's settings", *_TEN),
    *_each("table3-medium", "medium", ("dynamic:5",), "the same model, its agent trained as on a CPU", *_TEN),
    *_each(
        "table3-untrained",
        "medium",
        ("dynamic:5",),
        "the same, its agent not trained: what random skips do",
        *("--rl-coef", "0", "--evaluation-mode", "sample", *_TEN),
    ),
    *_each("table3", "paper", ("fixed:3", "fixed:5", "attention:5"), "Table 3, ten seeds", *_TEN),
    _ptb(
        "figure5-K",
        "Figure 5: perplexity over K at λ = 0.5, one program",
        *("--preset", "paper", "--model", "dynamic:10", "--max-skip", "2,3,4,5,6,7,8,9,10"),
        *("--mix", "0.5", "--seeds", "3"),
    ),
    _ptb(
        "figure5-mix",
        "Figure 5: perplexity over λ at K = 5, one program",
        *("--preset", "paper", "--model", "dynamic:5"),
        *("--mix", "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1.0", "--seeds", "3"),
    ),
    *_each(
        "charlm",
        "charlm",
        ("dynamic:5", "lstm", "attention:5", "fixed:3", "fixed:5"),
        "Table 3, CharLM",
        *_TEN,
    ),
    *_each("awd", "awd", ("lstm", "dynamic:5"), "the recipe of Merity et al. (2018)"),
    *(
        Run(
            f"numbers-{length}",
            "number_prediction",
            ("--length", str(length), "--model", f"dynamic:{length - 1}", "--seeds", "5"),
            "number prediction beyond the paper's lengths",
        )
        for length in (51, 101, 201)
    ),
)

# Flags for tiny sizes, with which every run above takes seconds on a CPU; for tests.
TINY = {
    "ptb": (*REDUCED["ptb"], "--seeds", "2"),
    "number_prediction": (
        *(*REDUCED["number_prediction"], "--seeds", "2"),
        *("--length", "31", "--model", "dynamic:30"),
    ),
}


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of this script."""

    out: str = path_setting(help="Folder that keeps the runs; give the same one each time.")
    data: str | None = path_setting(None, "Folder of the Penn Treebank.")
    minutes: float = setting(9.0, "How long this call may take.", above=GRACE / 60)
    only: str | None = setting(
        None, "Names of runs, or beginnings of names, separated by commas; by default all."
    )
    size: Literal["full", "tiny"] = setting(
        "full",
        "tiny: every run at a size that takes a moment, in a folder of its own; the figures mean nothing.",
    )
    list: bool = setting(False, "Only say what is done and what is left.")


def command(run: Run, flags: Flags) -> list[str]:
    """Return the command line of a run, for the chosen size."""
    line = [sys.executable, "-m", f"experiments.{run.experiment}", *run.flags]
    if flags.size == "tiny":
        line = [*line[:3], *last_of_each([*run.flags, *TINY[run.experiment]])]
    elif run.experiment == "ptb" and flags.data is not None:
        line += ["--data", flags.data]
    return [*line, "--run-dir", str(folder(run, flags))]


def folder(run: Run, flags: Flags) -> Path:
    """Return the folder of a run."""
    return Path(flags.out) / flags.size / run.name


def chosen(flags: Flags) -> list[Run]:
    """Return the runs that match `--only`, most important first.

    Raises:
        UserError: If a name matches no run.
    """
    if flags.only is None:
        return list(PLAN)
    names = flags.only.split(",")
    for name in names:
        if not any(run.name.startswith(name) for run in PLAN):
            raise UserError(f"--only {name} fits no run: --list names them")
    return [run for run in PLAN if any(run.name.startswith(name) for name in names)]


def status(run: Run, flags: Flags) -> str:
    """Return `done`, the epoch that the run has reached, or `not begun`."""
    here = RunDir(folder(run, flags), resumed=True)
    if here.result() is not None:
        return "done"
    epochs = [record["epoch"] for record in here.records()]
    return f"epoch {max(epochs):.1f}" if epochs else "not begun"


def go_on(run: Run, flags: Flags, seconds: float) -> bool:
    """Run or resume the command until it finishes or the time is over; return whether it has finished.

    Args:
        run: Run to start or resume.
        flags: Flags of this script.
        seconds: Seconds after which the run is asked to save and stop.

    Raises:
        UserError: If the run failed.
    """
    process = subprocess.Popen(command(run, flags))
    try:
        process.wait(timeout=max(seconds, 1.0))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # the run saves and exits
        try:
            process.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            process.kill()  # the next call resumes from its last checkpoint
            process.wait()
        return process.returncode == 0  # any other status: the run was stopped
    if process.returncode in (0, INTERRUPTED):
        return process.returncode == 0
    raise UserError(f"{run.name} failed with exit status {process.returncode}: its message stands above")


def main() -> None:
    """Run the command line."""
    flags = read_flags("python -m benchmarks.accelerator", __doc__, Flags, sys.argv[1:])
    runs = chosen(flags)
    end = time.monotonic() + 60 * flags.minutes - GRACE
    if not flags.list:
        for run in runs:
            if status(run, flags) == "done":
                continue
            left = end - time.monotonic()
            if left <= 0:
                break
            print(f"== {run.name}: {run.why}", flush=True)
            go_on(run, flags, left)
    table = Table()
    for heading in ("run", "status", "for"):
        table.add_column(heading)
    for run in runs:
        table.add_row(run.name, status(run, flags), run.why)
    Console().print(table)


if __name__ == "__main__":
    run_main(main)
