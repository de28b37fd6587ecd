"""The runs that need an accelerator, in pieces of a few minutes: call it again until nothing is left.

    python -m benchmarks.accelerator --out DIR --data PTB_DIR --minutes 9

First come the layers beside Flax's and cuDNN's and whole training steps, then trainings, the most important
first. Each call goes on where the last one stopped, and runs for at most `--minutes`. `--list` says what is
done and what is left.
"""

import dataclasses
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple

from benchmarks.report import markdown
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.cli import run_main
from dynskip_jax.experiments.command_line import read_flags
from dynskip_jax.settings import path_setting, setting
from dynskip_jax.training.folder import RunDir

GRACE = 60.0  # seconds that a run gets to save; they are part of --minutes
INTERRUPTED = 130  # exit status of a run that was stopped and can be resumed


class Run(NamedTuple):
    """A command: the name of its folder, its module, its flags as typed, and its purpose."""

    name: str
    module: str
    flags: str
    why: str


def _table3(name: str, preset: str, models: str, flags: str, why: str) -> list[Run]:
    """Return a run of the language model for each of `models`, separated by spaces."""
    return [
        Run(
            f"{name}-{model.replace(':', '-')}",
            "experiments.ptb",
            f"--preset {preset} --model {model} {flags}",
            why,
        )
        for model in models.split()
    ]


_CPU_AGENT = "--agent-learning-rate 0.001 --entropy-coef 0.01 --discount 0.5 --baseline batch --mix 1"
_RANDOM = f"{_CPU_AGENT} --rl-coef 0 --evaluation-mode sample"
PLAN: tuple[Run, ...] = (
    Run("layers", "benchmarks.recurrence", "--parts layers,training", "layers beside Flax's and cuDNN's"),
    *_table3("table3", "paper", "dynamic:5 lstm", "", "Table 3, the paper's settings"),
    *_table3("table3-cpu-agent", "paper", "dynamic:5", _CPU_AGENT, "its agent trained as on a CPU"),
    *_table3("table3-untrained", "paper", "dynamic:5", _RANDOM, "its agent not trained: random skips"),
    *_table3("table3", "paper", "fixed:3 fixed:5 attention:5", "", "Table 3"),
    *_table3("figure5-K", "paper", "dynamic:10", "--max-skip 2,3,4,5,6,7,8,9,10 --mix 0.5", "Figure 5, K"),
    *_table3(
        "figure5-mix", "paper", "dynamic:5", "--mix 0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1", "Figure 5, λ"
    ),
    *_table3("charlm", "charlm", "dynamic:5 lstm attention:5 fixed:3 fixed:5", "", "Table 3, CharLM"),
    *_table3("awd", "awd", "lstm dynamic:5", "--seeds 1", "the recipe of Merity et al. (2018)"),
    *(
        Run(
            f"numbers-{length}",
            "experiments.number_prediction",
            f"--length {length} --model dynamic:{length - 1}",
            "number prediction beyond the paper's lengths",
        )
        for length in (51, 101, 201)
    ),
)

# Flags with which every run above takes seconds on a CPU, for tests; each replaces the same flag of the run.
TINY = {
    "benchmarks.recurrence": "--tiny --rounds 1",
    "experiments.ptb": "--dataset pydoc-topics --features 8 --batch-size 100 --epochs 1 --seeds 1",
    "experiments.number_prediction": "--features 8 --train-examples 256 --epochs 1 --seeds 1 "
    "--length 31 --model dynamic:30",
}


@dataclasses.dataclass(frozen=True)
class Flags:
    """Command line."""

    out: str = path_setting(help="Folder that keeps the runs; give the same one each time.")
    data: str | None = path_setting(None, "Folder of the Penn Treebank.")
    minutes: float = setting(9.0, "How long this call may take.", above=GRACE / 60)
    seeds: int = setting(3, "Seeds of each training.", at_least=1)
    only: str | None = setting(None, "Beginnings of names of runs, separated by commas. Default: all.")
    size: Literal["full", "tiny"] = setting("full", "tiny: to see that it works; the figures mean nothing.")
    list: bool = setting(False, "Only say what is done and what is left.")


def command(run: Run, flags: Flags) -> list[str]:
    """Return the command line of a run. A flag that is given twice keeps its last value."""
    given = shlex.split(run.flags)
    place = "--out"
    if run.module.startswith("experiments."):
        place = "--run-dir"
        given = ["--seeds", str(flags.seeds), *given]
    if flags.size == "tiny":
        given += shlex.split(TINY[run.module])
    elif run.module == "experiments.ptb" and flags.data is not None:
        given += ["--data", flags.data]
    return [sys.executable, "-m", run.module, *_last_of_each(given), place, str(folder(run, flags))]


def _last_of_each(flags: list[str]) -> list[str]:
    """Return the flags without those that a later one replaces."""
    values: dict[str, list[str]] = {}
    for word in flags:
        if word.startswith("--"):
            name = word
            values[name] = []
        else:
            values[name].append(word)
    return [word for name, given in values.items() for word in (name, *given)]


def folder(run: Run, flags: Flags) -> Path:
    """Return the folder of a run."""
    return Path(flags.out) / flags.size / run.name


def chosen(flags: Flags) -> list[Run]:
    """Return the runs that match `--only`, most important first."""
    names = [""] if flags.only is None else flags.only.split(",")
    for name in names:
        if not any(run.name.startswith(name) for run in PLAN):
            raise UserError(f"--only {name} fits no run: --list names them")
    return [run for run in PLAN if run.name.startswith(tuple(names))]


def status(run: Run, flags: Flags) -> str:
    """Return `done`, the epoch that the run has reached, or `not begun`."""
    here = folder(run, flags)
    if (here / "result.json").exists() or (here / "recurrence.json").exists():
        return "done"
    epochs = [record["epoch"] for record in RunDir(here, resumed=True).records()]
    return f"epoch {max(epochs):.1f}" if epochs else "not begun"


def go_on(run: Run, flags: Flags, seconds: float) -> bool:
    """Start or resume a run, ask it to save and stop after `seconds`, and return whether it has finished."""
    process = subprocess.Popen(command(run, flags))
    try:
        process.wait(timeout=max(seconds, 1.0))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            process.kill()  # the next call resumes from its last checkpoint
            process.wait()
        return process.returncode == 0
    if process.returncode not in (0, INTERRUPTED):
        raise UserError(f"{run.name} failed with exit status {process.returncode}: its message stands above")
    return process.returncode == 0


def main() -> None:
    """Run the command line."""
    flags = read_flags("python -m benchmarks.accelerator", __doc__, Flags, sys.argv[1:])
    runs = chosen(flags)
    end = time.monotonic() + 60 * flags.minutes - GRACE
    for run in () if flags.list else runs:
        left = end - time.monotonic()
        if left > 0 and status(run, flags) != "done":
            print(f"== {run.name}: {run.why}", flush=True)
            go_on(run, flags, left)
    print(markdown(["run", "status", "for"], [[run.name, status(run, flags), run.why] for run in runs]))


if __name__ == "__main__":
    run_main(main)
