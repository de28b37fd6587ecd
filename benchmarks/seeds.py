"""What several seeds cost in one program, against as many single runs: whole commands, start-up included.

    python -m benchmarks.seeds --seeds 8

Runs `python -m experiments.number_prediction` in fresh processes, in turn with one seed and with all of them,
and prints the wall time of each command, and the ratio. One run of each goes before the clock starts, and
leaves the compiled programs where a user who runs the command a second time finds them.
"""

import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe, one_line
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.cli import run_main
from dynskip_jax.experiments.command_line import read_flags
from dynskip_jax.settings import path_setting, setting


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of this benchmark."""

    seeds: int = setting(8, "How many seeds are trained together.", at_least=1)
    models: str = setting("lstm,dynamic:10", "Models, separated by commas.")
    train_examples: int = setting(25_600, "Training examples of a run of one epoch.", at_least=1)
    repeats: int = setting(3, "How often each command is timed.", at_least=1)
    out: str | None = path_setting(None, "A JSON file for the figures.")


def wall_time(model: str, seeds: int, flags: Flags, folder: Path) -> float:
    """Return the seconds that one command takes from start to end."""
    command = [
        *(sys.executable, "-m", "experiments.number_prediction", "--model", model, "--seeds", str(seeds)),
        *("--epochs", "1", "--train-examples", str(flags.train_examples), "--run-dir", str(folder)),
    ]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"{' '.join(command[1:])} failed: {done.stderr.strip().splitlines()[-1]}")
    return time.perf_counter() - start


def measure(model: str, flags: Flags) -> dict[str, list[float]]:
    """Measure the wall times, in seconds, of runs with one seed and with all seeds, in turns."""
    times: dict[str, list[float]] = {"one": [], "all": []}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(-1, flags.repeats):
            for name, seeds in (("one", 1), ("all", flags.seeds)):
                seconds = wall_time(model, seeds, flags, Path(folder) / f"{name}{repeat}")
                if repeat >= 0:  # the first run fills the compilation cache
                    times[name].append(seconds)
    return times


def main() -> None:
    """Run the command line."""
    flags = read_flags("python -m benchmarks.seeds", __doc__, Flags, sys.argv[1:])
    about = describe("default", with_torch=False)
    table = Table(title=f"{flags.seeds} seeds of number prediction, one epoch of {flags.train_examples:,}")
    for heading in ("model", "1 seed, s", f"{flags.seeds} seeds, s", f"of {flags.seeds} single runs"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    found = {}
    for model in flags.models.split(","):
        times = measure(model, flags)
        one, together = (statistics.median(times[name]) for name in ("one", "all"))
        found[model] = {**times, "ratio": together / (flags.seeds * one)}
        table.add_row(model, f"{one:.1f}", f"{together:.1f}", f"{found[model]['ratio']:.2f}")
    console = Console()
    console.print(table)
    console.print(one_line(about), highlight=False)
    if flags.out is not None:
        record = {"machine": about, "flags": dataclasses.asdict(flags), "models": found}
        Path(flags.out).parent.mkdir(parents=True, exist_ok=True)
        Path(flags.out).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_main(main)
