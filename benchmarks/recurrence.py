"""Time and memory of recurrent layers, side by side in one process: this project's, Flax's, PyTorch's.

    python -m benchmarks.recurrence
    python -m benchmarks.recurrence --parts shapes,memory --out bench/

A candidate computes the loss and the gradient of its weights and inputs, float32. Candidates take turns,
so that a machine that speeds up or slows down does so for all, and ratios are taken turn by turn. PyTorch
takes part where it is installed (`pip install -e ".[bench]"`). On a GPU the same command compares the same on
the GPU. All parts take about ten minutes on two cores:

shapes: each layer at four shapes. transitions: each transition's fused unroll against the scan of its step,
without skips. skips: every skip over time at one shape. growth: as T, K, H or B grows. compile: seconds
until the first step is done. memory: what a step needs beyond its arguments (temporary memory and outputs,
as XLA plans them; of PyTorch on a GPU: what it allocated). seeds: several seeds by `vmap`, against one after
the other. training: whole training steps of `experiments.ptb` on synthetic words.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

import jax
import numpy as np
from rich.console import Console

from benchmarks import machine, measure, report, results, training_step
from benchmarks.candidate import Candidate
from benchmarks.candidates import GROWING, layers, pairs, time_skips, why_no_torch
from benchmarks.jax_layers import seed_candidates
from benchmarks.shapes import FULL, TINY, Shape, Sizes
from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.cli import run_main
from dynskip_jax.experiments.command_line import read_flags
from dynskip_jax.experiments.settings import get
from dynskip_jax.settings import listed, path_setting, setting
from dynskip_jax.training.progress import Progress

Part = Literal["shapes", "transitions", "skips", "growth", "compile", "memory", "seeds", "training"]
PARTS: tuple[Part, ...] = get_args(Part)

TRANSITIONS = {
    **{name: kind() for name, kind in F.TRANSITIONS.items()},
    "gru, reset before": F.GRU("before"),
}


@dataclasses.dataclass(frozen=True)
class Flags:
    """Command line."""

    parts: tuple[str, ...] = setting(PARTS, "Which parts to run, separated by commas.")
    rounds: int = setting(
        15,
        "Turns of each candidate in `shapes`; half as many in the other parts, a fifth in `compile`.",
        at_least=1,
    )
    out: str | None = path_setting(
        None, "Folder for recurrence.json, recurrence.md (the tables) and growth.png."
    )
    precision: machine.Precision = setting(
        "default",
        "Of matrix products on a GPU: default allows TF32 to JAX and PyTorch alike, highest to neither.",
    )
    tiny: bool = setting(
        False, "Everything at tiny sizes, in seconds, to see that it works here; the figures mean nothing."
    )

    def __post_init__(self) -> None:
        """Check the names of the parts."""
        for part in self.parts:
            if part not in PARTS:
                raise UserError(f"--parts has {part!r}: choose {listed(PARTS)}")


@dataclasses.dataclass(frozen=True)
class Task:
    """A case of the report, with the way in which it is measured.

    Attributes:
        case: Description for the report.
        candidates: Function that makes the candidates.
        method: Function (candidates, rounds, tick) -> measurements.
        rounds: Number of turns of each candidate.
        work: Estimated milliseconds on two cores.
    """

    case: report.Case
    candidates: Callable[[], list[Candidate]]
    method: Callable[[Sequence[Candidate], int, measure.Tick], measure.Measured]
    rounds: int
    work: float


def plan(part: Part, sizes: Sizes, rounds: int) -> list[Task]:
    """Return the tasks of a part.

    Args:
        part: Name of the part.
        sizes: Sizes of all parts.
        rounds: Number of turns of each candidate in the part `shapes`.
    """
    few, fewest = max(1, rounds // 2), max(1, rounds // 5)
    numbers = dataclasses.asdict
    peers = ("torch.nn.LSTM", "lstm")
    num_layers, compiling = 9, 1000.0  # rough values for the time estimate
    match part:
        case "shapes":
            return [
                Task(
                    report.Case(part, "layers", f"{name}: {shape}", numbers(shape), "ms", peers),
                    lambda shape=shape: layers(shape),
                    measure.milliseconds,
                    rounds,
                    num_layers * (compiling + rounds * max(20.0, shape.work)),
                )
                for name, shape in sizes.shapes.items()
            ]
        case "transitions":
            return [
                Task(
                    report.Case(part, name, str(shape), numbers(shape), "ms", ("reference",)),
                    lambda shape=shape, transition=transition: pairs(shape, transition),
                    measure.milliseconds,
                    few,
                    2 * (compiling + few * max(20.0, shape.work)),
                )
                for name, transition in TRANSITIONS.items()
                for shape in sizes.shapes.values()
            ]
        case "skips":
            shape = sizes.skips
            return [
                Task(
                    report.Case(part, "skips over time", str(shape), numbers(shape), "ms", ("lstm",)),
                    lambda: time_skips(shape),
                    measure.milliseconds,
                    few,
                    13 * (compiling + few * max(20.0, shape.work)),
                )
            ]
        case "growth":
            return [
                Task(
                    report.Case(
                        part, _axis(axis, grown), str(getattr(shape, axis)), numbers(shape), "ms", peers
                    ),
                    lambda shape=shape: layers(shape, names=GROWING),
                    measure.milliseconds,
                    few,
                    3 * (compiling + few * max(20.0, shape.work)),
                )
                for axis, grown in sizes.growth.items()
                for shape in grown
            ]
        case "compile":
            return [
                Task(
                    report.Case(part, "first step", name, numbers(shape), "s", ("lstm",)),
                    lambda shape=shape: layers(shape),
                    measure.first_steps,
                    fewest,
                    num_layers * (fewest + 1) * (compiling + shape.work),
                )
                for name, shape in sizes.shapes.items()
            ]
        case "memory":
            return [
                Task(
                    report.Case(part, "memory of a step", name, numbers(shape), "MiB", ("lstm",)),
                    lambda shape=shape: layers(shape),
                    measure.megabytes,
                    1,
                    num_layers * (compiling + shape.work),
                )
                for name, shape in sizes.shapes.items()
            ]
        case "seeds":
            shape = sizes.seeds
            return [
                Task(
                    report.Case(
                        part,
                        f"seeds of dynamic:k, {shape}",
                        f"{n} seeds" if n > 1 else "1 seed",
                        numbers(shape) | {"seeds": n},
                        "ms",
                        ("one by one",),
                    ),
                    lambda n=n: seed_candidates(shape, n),
                    measure.milliseconds,
                    few,
                    2 * (compiling + few * n * max(20.0, shape.work)),
                )
                for n in sizes.num_seeds
            ]
        case "training":
            made = []
            for preset, flags in sizes.presets.items():
                chosen = training_step.settings(preset, flags)
                facts = {
                    name: get(chosen, name)
                    for name in ("num_layers", "features", "batch_size", "num_steps", "mix")
                } | {"vocabulary": sizes.vocabulary, "tokens": training_step.tokens_per_step(chosen)}
                label = "{num_layers} x {features}, batch {batch_size} x {num_steps}, {vocabulary:,} words"
                label = label.format(**facts)
                made.append(
                    Task(
                        report.Case(part, f"training step, {preset}", label, facts, "ms", ("lstm",)),
                        lambda chosen=chosen: training_step.candidates(chosen, sizes.vocabulary),
                        measure.milliseconds,
                        few,
                        2 * (2 * compiling + few * training_step.work(chosen, sizes.vocabulary)),
                    )
                )
            return made


def _axis(axis: str, grown: Sequence[Shape]) -> str:
    """Return the letter of the axis along which shapes grow, and the sizes that they share."""
    letters = dict(time="T", batch="B", hidden="H = in", max_skip="K")
    shape = grown[0]
    shared = dict(T=shape.time, B=shape.batch, H=shape.hidden, K=shape.max_skip)
    shared.pop(letters[axis][0])
    return f"{letters[axis]} ({' '.join(f'{name}={value}' for name, value in shared.items())})"


def run(flags: Flags, sizes: Sizes, console: Console) -> list[report.Row]:
    """Measure all parts, print each part's tables, and write the files after each part.

    Args:
        flags: Command-line flags; `tiny` is ignored here.
        sizes: Sizes to measure.
        console: Console for the tables.

    Returns:
        One row for each candidate in each case.
    """
    without_torch = why_no_torch()
    about = machine.describe(flags.precision, without_torch is None)
    console.print(machine.one_line(about), highlight=False)
    notes = [] if without_torch is None else [without_torch]
    for note in notes:
        console.print(note, highlight=False)
    tasks = {part: plan(part, sizes, flags.rounds) for part in flags.parts}
    total = sum(round(task.work) for group in tasks.values() for task in group)
    done: list[report.Row] = []
    # The bar shares a terminal with the tables. If the tables go to a file, it uses standard error.
    bar_console = console if console.is_terminal else None
    with (
        machine.products(flags.precision, without_torch is None),
        Progress(total, "benchmark", console=bar_console) as progress,
    ):
        for group in tasks.values():
            fresh: list[report.Row] = []
            for task in group:
                candidates = task.candidates()
                tick = _ticker(progress, task, len(candidates) * (task.rounds + 1))
                measured = task.method(candidates, task.rounds, tick)
                fresh += report.rows(task.case, measured)
                for name, why in measured.failed.items():
                    notes.append(f"{name} did not run in {task.case.part}, {task.case.label}: {why}")
                    console.print(notes[-1], markup=False, highlight=False)
            for table in report.tables(fresh):
                console.print(table.for_terminal())
            done += fresh
            if flags.out is not None:
                write(Path(flags.out), about, notes, done)
    return done


def write(folder: Path, about: dict, notes: Sequence[str], rows: Iterable[report.Row]) -> None:
    """Write all results so far to files in a folder."""
    rows = list(rows)
    content = {"about": about, "notes": list(notes), "rows": [row.as_json() for row in rows]}
    text = [machine.one_line(about), *notes, *(table.as_markdown() for table in report.tables(rows))]
    results.write(folder, "recurrence", content, "\n\n".join(text))
    growth = [row for row in rows if row.case.part == "growth"]
    if growth:
        report.draw_growth(growth, folder / "growth.png", machine.one_line(about))


def _ticker(progress: Progress, task: Task, ticks: int) -> measure.Tick:
    """Return a function that advances the bar by one of `ticks` equal parts of a task's work."""
    marks = iter(np.diff(np.linspace(0, round(task.work), ticks + 1).astype(int)).tolist())
    now = f"{task.case.part}: {task.case.label}"
    return lambda: progress.advance(next(marks, 0), now=now)


def main() -> None:
    """Run the command line."""
    flags = read_flags("python -m benchmarks.recurrence", __doc__, Flags, sys.argv[1:])
    jax.config.update("jax_enable_compilation_cache", False)  # or `compile` would measure cache reads
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # a file has no width
    run(flags, TINY if flags.tiny else FULL, console)


if __name__ == "__main__":
    run_main(main)
