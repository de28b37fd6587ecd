"""Measure time and memory of recurrent layers: this project's, Flax's and PyTorch's.

    python -m benchmarks.recurrence --parts layers,growth

A candidate computes a loss and its gradient with respect to weights and inputs, in float32. The
part `growth` has growing T, K, H and B, and `training` whole steps of `experiments.ptb` on
synthetic words.
"""

import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np
from jaxtyping import Float

from benchmarks import layers, report, run_command, training_step
from benchmarks.layers import FAR, GROWTH_BASE, SHAPES, Layer, Shape
from benchmarks.report import number
from benchmarks.training_step import MODELS
from dynskip_jax.config.flags import Count

Part = Literal["layers", "transitions", "skips", "growth", "training"]
TORCH = "torch.nn.LSTM"
RATIO = "time over that of lstm, median (quartiles)"
GROWTH = {
    "time": (25, 100, 400, 1000, 4000),
    "max_skip": (2, 3, 5, 7, 10),
    "hidden": (64, 128, 256, 512, 1024),
    "batch": (1, 4, 16, 64, 256),
}


class Step(NamedTuple):
    """A compiled candidate: `run` computes a step and waits; memory is beyond its arguments."""

    run: Callable[[], Any]
    mebibytes: float | None = None


class Measured(NamedTuple):
    """Milliseconds of each turn, (rounds,); memory in MiB; seconds of the first step."""

    ms: Float[np.ndarray, " rounds"]
    mebibytes: float | None
    first_seconds: float


Candidates = Mapping[str, Callable[[], Step]]


def compiled(make: Callable[[], Layer]) -> Step:
    """Return a layer's compiled gradient; its arrays are arguments, or XLA would fold them."""
    layer = make()
    program = jax.jit(layer.gradient).lower(*layer.arguments).compile()
    memory = program.memory_analysis()
    mebibytes = (memory.temp_size_in_bytes + memory.output_size_in_bytes) / 2**20
    return Step(lambda: jax.block_until_ready(program(*layer.arguments)), mebibytes)


def candidates(
    makers: Callable[[Shape], Mapping[str, Callable[[], Layer]]], shape: Shape
) -> Candidates:
    """Return the layers of a shape, with PyTorch's beside `layers.layers`."""
    found = {name: partial(compiled, make) for name, make in makers(shape).items()}
    if makers is layers.layers and find_spec("torch"):
        found[TORCH] = lambda: Step(layers.torch_step(shape))
    return found


def growing(axis: str, size: int) -> Candidates:
    """Return layers with one size of `GROWTH`; inputs are as wide as the states."""
    shape = dataclasses.replace(GROWTH_BASE, **{axis: size})
    found = candidates(layers.layers, dataclasses.replace(shape, features=shape.hidden))
    return {name: make for name, make in found.items() if name in ("lstm", "dynamic:k", TORCH)}


def training(preset: str, model: str) -> Step:
    """Return the training step of a model with a preset of `experiments.ptb`."""
    return Step(training_step.running(preset, model))


def plan(part: Part) -> dict[str, dict[str, Candidates]]:
    """Return the candidates of a part: by table, and by column of the table."""
    match part:
        case "layers":
            columns = {
                f"{n}: {shape}": candidates(layers.layers, shape) for n, shape in SHAPES.items()
            }
            return {"layers": columns}
        case "transitions":
            return {
                "transitions": {n: candidates(layers.transitions, s) for n, s in SHAPES.items()}
            }
        case "skips":
            return {"skips over time": {str(FAR): candidates(layers.time_skips, FAR)}}
        case "growth":
            return {
                f"growth of {axis} ({GROWTH_BASE})": {f"{n:,}": growing(axis, n) for n in sizes}
                for axis, sizes in GROWTH.items()
            }
        case "training":
            columns = {p: {m: partial(training, p, m) for m in MODELS} for p in ("small", "paper")}
            return {"training steps of experiments.ptb": columns}


def measure(candidates: Candidates, rounds: int) -> tuple[dict[str, Measured], dict[str, str]]:
    """Measure all candidates in turns; return what was measured, and each failure's error."""
    # Compile and run each once.
    steps = {}
    first = {}
    failed = {}
    for name, make in candidates.items():
        begin = time.perf_counter()
        try:
            step = make()
            step.run()
        except Exception as error:  # such as too little memory: the others are still measured
            failed[name] = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        else:
            steps[name] = step
            first[name] = time.perf_counter() - begin
    # In turns, so that a machine's changes of speed slow all down alike.
    times = take_turns({name: step.run for name, step in steps.items()}, rounds)
    measured = {}
    for name, step in steps.items():
        measured[name] = Measured(times[name], step.mebibytes, first[name])
    return measured, failed


def take_turns(
    steps: Mapping[str, Callable[[], object]], rounds: int, least_ms: float = 20.0
) -> dict[str, Float[np.ndarray, " rounds"]]:
    """Measure the milliseconds of each step in each round, (rounds,).

    The order changes, because a turn can be slowed down by the one before it (spinning threads, a
    full cache). A step shorter than `least_ms` is repeated for about that long.
    """
    repeats = {}
    for name, step in steps.items():
        step()  # warm-up
        repeats[name] = max(1, round(least_ms / _milliseconds(step, 1)))
    # One number for each candidate and round.
    times: dict[str, list[float]] = {name: [] for name in steps}
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        for name in rng.permutation(list(steps)).tolist():
            times[name].append(_milliseconds(steps[name], repeats[name]))
    return {name: np.array(values) for name, values in times.items()}


def _milliseconds(step: Callable[[], object], repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    return 1e3 * (time.perf_counter() - begin) / repeats


def tables(title: str, columns: Mapping[str, Mapping[str, Measured]]) -> str:
    """Return the Markdown tables of a title: times, ratios, memory and first step."""
    names = dict.fromkeys(itertools.chain(*columns.values()))
    text = []
    for quantity in ("median ms", RATIO, "MiB", "first step, s"):
        rows = [
            [n, *(cells(n, found).get(quantity, "") for found in columns.values())] for n in names
        ]
        rows = [row for row in rows if any(row[1:])]
        if rows:
            table = report.markdown(["candidate", *columns], rows)
            text.append(f"### {title}: {quantity}\n\n{table}")
    return "\n\n".join(text)


def cells(name: str, measured: Mapping[str, Measured]) -> dict[str, str]:
    """Return a candidate's figures by quantity; none if it failed."""
    if name not in measured:
        return {}
    own = measured[name]
    found = {"median ms": number(np.median(own.ms)), "first step, s": number(own.first_seconds)}
    if name != "lstm" and "lstm" in measured:
        # A ratio is of two times of the same turn.
        low, median, high = np.percentile(own.ms / measured["lstm"].ms, (25, 50, 75))
        found[RATIO] = f"{number(median)} ({number(low)}–{number(high)})"
    if own.mebibytes:
        found["MiB"] = number(own.mebibytes)
    return found


def run(
    parts: tuple[Part, ...] = get_args(Part), only: tuple[str, ...] = (), rounds: Count = 15
) -> None:
    """Measure recurrent layers side by side, and print a table after each part.

    Args:
        parts: Which parts to run.
        only: Beginnings of the columns to measure, such as PTB, of part layers, or paper, of
            training.
        rounds: Turns of each candidate.
    """
    # Or the first step would measure cache reads.
    jax.config.update("jax_enable_compilation_cache", False)
    print(report.machine())
    if not find_spec("torch"):
        print("PyTorch is not installed: its rows are left out.")
    for title, columns in (table for part in parts for table in plan(part).items()):
        measured = {}
        for column in (name for name in columns if name.startswith(only or "")):
            print(f"{title}, {column}", file=sys.stderr)
            measured[column], failed = measure(columns[column], rounds)
            for name, why in failed.items():
                print(f"{name} did not run in {title}, {column}: {why}")
        print(tables(title, measured), flush=True)


if __name__ == "__main__":
    run_command(run)
