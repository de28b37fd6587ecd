"""Measure time and memory of recurrent layers: this project's, Flax's and PyTorch's.

    python -m benchmarks.recurrence --parts layers,growth --out bench/

A candidate computes a loss and its gradient with respect to weights and inputs, in float32; the
part `forward` computes the loss only, beside the gradient. The part `growth` has growing T, K, H
and B, then all skips at λ = 1 with growing T, and `training` whole steps of `experiments.ptb` on
synthetic words.
"""

import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np
from jaxtyping import Float

from benchmarks import layers, report, training_step
from benchmarks.layers import FAR, FORWARD_SHAPES, GROWTH_BASE, SHAPES, TINY, Layer, Shape
from benchmarks.report import number
from dynskip_jax.config.flags import Count, call
from dynskip_jax.errors import UserError
from dynskip_jax.terminal.failures import run_main

Part = Literal["layers", "transitions", "forward", "skips", "growth", "training"]
PARTS: tuple[Part, ...] = get_args(Part)
TORCH = "torch.nn.LSTM"
GROWTH = {
    "time": (25, 100, 400, 1000, 4000),
    "max_skip": (2, 3, 5, 7, 10),
    "hidden": (64, 128, 256, 512, 1024),
    "batch": (1, 4, 16, 64, 256),
}
LONG = (400, 1600, 6400)  # numbers of steps of every skip


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


def compiled(make: Callable[[], Layer], with_gradient: bool = True) -> Step:
    """Return a layer's compiled loss, and its gradient.

    Its arrays are arguments, or XLA would fold them.
    """
    layer = make()
    function = layer.gradient if with_gradient else layer.loss
    program = jax.jit(function).lower(*layer.arguments).compile()
    plan = program.memory_analysis()
    size = None
    if plan is not None:
        size = (plan.temp_size_in_bytes + plan.output_size_in_bytes) / 2**20
    return Step(lambda: jax.block_until_ready(program(*layer.arguments)), size)


def plan(part: Part, *, tiny: bool = False) -> dict[str, dict[str, Candidates]]:
    """Return the candidates of a part: by table, and by column of the table."""

    def of(
        makers: Callable[[Shape], Mapping[str, Callable[[], Layer]]],
        shape: Shape,
        only: tuple[str, ...] = (),
    ) -> Candidates:
        found = {name: partial(compiled, make) for name, make in makers(shape).items()}
        if makers is layers.layers and find_spec("torch"):
            found[TORCH] = lambda: Step(layers.torch_step(shape))
        return {name: make for name, make in found.items() if not only or name in only}

    shapes = {"tiny": TINY} if tiny else SHAPES
    match part:
        case "layers":
            columns = {
                f"{name}: {shape}": of(layers.layers, shape) for name, shape in shapes.items()
            }
            return {"layers": columns}
        case "transitions":
            return {
                "transitions": {
                    name: of(layers.transitions, shape) for name, shape in shapes.items()
                }
            }
        case "forward":
            columns = {}
            for shape in (TINY,) if tiny else FORWARD_SHAPES:
                found = layers.forward(shape)
                columns[f"{shape}, forward only"] = {
                    name: partial(compiled, make, with_gradient=False)
                    for name, make in found.items()
                }
                columns[f"{shape}, gradient"] = of(layers.forward, shape)
            return {"forward only": columns}
        case "skips":
            shape = TINY if tiny else FAR
            return {"skips over time": {str(shape): of(layers.time_skips, shape)}}
        case "growth":
            tables = {}
            for axis, sizes in GROWTH.items():
                base = TINY if tiny else GROWTH_BASE
                columns = {}
                for size in sizes[:1] if tiny else sizes:
                    shape = dataclasses.replace(base, **{axis: size})
                    shape = dataclasses.replace(shape, features=shape.hidden)
                    columns[f"{size:,}"] = of(layers.layers, shape, ("lstm", "dynamic:k", TORCH))
                tables[f"growth of {axis} ({base})"] = columns
            columns = {}
            for time_steps in LONG[:1] if tiny else LONG:
                shape = dataclasses.replace(base, time=time_steps, mix=1.0)
                columns[f"{time_steps:,}"] = of(layers.time_skips, shape)
            tables[f"growth of time, every skip ({base}, λ=1)"] = columns
            return tables
        case "training":
            models = training_step.MODELS
            presets = ("small",) if tiny else ("small", "paper")
            running = partial(training_step.running, tiny=tiny)
            columns = {
                p: {m: lambda p=p, m=m: Step(running(p, m)) for m in models} for p in presets
            }
            return {"training steps of experiments.ptb": columns}


def measure(candidates: Candidates, rounds: int) -> tuple[dict[str, Measured], dict[str, str]]:
    """Measure all candidates in turns; return what was measured, and each failure's error."""
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


def ratio(values: Float[np.ndarray, " rounds"], base: Float[np.ndarray, " rounds"]) -> str:
    """Return values / base, turn by turn, as text: median (quartiles)."""
    low, median, high = np.percentile(values / base, (25, 50, 75))
    return f"{number(median)} ({number(low)}–{number(high)})"


def tables(title: str, columns: Mapping[str, Mapping[str, Measured]]) -> str:
    """Return the Markdown tables of a title: times, ratios, memory and first step."""
    names = dict.fromkeys(itertools.chain(*columns.values()))
    text = []
    for quantity, cell in _QUANTITIES.items():
        rows = []
        for name in names:
            # A column lacks a candidate that failed, and a quantity may not apply.
            cells = [cell(name, found) if name in found else "" for found in columns.values()]
            if any(cells):
                rows.append([name, *cells])
        if rows:
            header = ["candidate", *columns]
            text.append(f"### {title}: {quantity}\n\n{report.markdown(header, rows)}")
    return "\n\n".join(text)


def _median(name: str, found: Mapping[str, Measured]) -> str:
    return number(np.median(found[name].ms))


def _ratio_to_lstm(name: str, found: Mapping[str, Measured]) -> str:
    if name == "lstm" or "lstm" not in found:
        return ""
    return ratio(found[name].ms, found["lstm"].ms)


def _memory(name: str, found: Mapping[str, Measured]) -> str:
    mebibytes = found[name].mebibytes
    return number(mebibytes) if mebibytes else ""


def _first_step(name: str, found: Mapping[str, Measured]) -> str:
    return number(found[name].first_seconds)


# The cell of a candidate in a column of measurements.
_QUANTITIES: dict[str, Callable[[str, Mapping[str, Measured]], str]] = {
    "median ms": _median,
    "time over that of lstm, median (quartiles)": _ratio_to_lstm,
    "MiB": _memory,
    "first step, s": _first_step,
}


def run(
    parts: tuple[Part, ...] = PARTS,
    only: tuple[str, ...] = (),
    rounds: Count = 15,
    out: Path | None = None,
    tiny: bool = False,
) -> None:
    """Measure recurrent layers side by side.

    Args:
        parts: Which parts to run.
        only: Beginnings of the columns to measure, such as PTB, of part layers, or paper, of
            training.
        rounds: Turns of each candidate.
        out: Folder for recurrence.json and recurrence.md (the tables), which are written after
            each.
        tiny: Run everything at tiny sizes to see that it works; the figures mean nothing.
    """
    # Or the first step would measure cache reads.
    jax.config.update("jax_enable_compilation_cache", False)
    about = report.describe()
    failures = []
    rows = []
    texts = [report.one_line(about)]
    if not find_spec("torch"):
        texts.append("PyTorch is not installed: its rows are left out.")
    print(*texts, sep="\n")
    planned = [(part, *table) for part in parts for table in plan(part, tiny=tiny).items()]
    beginnings = only or ("",)
    if not any(name.startswith(beginnings) for *_, columns in planned for name in columns):
        raise UserError(f"no column of {', '.join(parts)} begins with {' or '.join(only)}")
    for part, title, columns in planned:
        measured = {}
        for column in (name for name in columns if name.startswith(beginnings)):
            where = f"{title}, {column}"
            print(where, file=sys.stderr)
            measured[column], failed = measure(columns[column], rounds)
            failures += [f"{name} did not run in {where}: {why}" for name, why in failed.items()]
            for name, one in measured[column].items():
                case = {"part": part, "table": title, "column": column, "candidate": name}
                rows.append({**case, **one._asdict(), "ms": one.ms.tolist()})
        texts.append(tables(title, measured))
        print(texts[-1], flush=True)
        content = {"about": about, "notes": failures, "rows": rows}
        report.write(out, "recurrence", content, "\n\n".join([*texts, *failures]))
    print(*failures, sep="\n")


def main() -> None:
    """Run the command line."""
    call(run, "python -m benchmarks.recurrence", sys.argv[1:])


if __name__ == "__main__":
    run_main(main)
