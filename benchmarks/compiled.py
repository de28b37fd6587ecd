"""Print what XLA's compilers say of programs for a TPU v5e or an H100 that is not there.

    pip install -e ".[compile]"
    python -m benchmarks.compiled --parts steps --only ptb:paper --devices 1

layers: loss and gradient at the benchmark's shapes. steps: training steps of every preset. Times
are the
compiler's estimates, no measurements: they charge about 1,800 cycles for each operation in a loop.
kernels: the layers' kernels in a step of the loops on an H100 (extra `cuda`, several GB), which
bound a scan there.
"""

import dataclasses
import functools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import layers, report, training_step
from benchmarks.report import number
from benchmarks.small_runs import write_data
from dynskip_jax.config import Bounds, call
from dynskip_jax.devices.parallel import ShardedJit
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import NAMES as EXPERIMENTS
from dynskip_jax.experiment import find_experiment
from dynskip_jax.failures import run_main
from dynskip_jax.training.step import make_step

# Read when JAX is imported. Without the second, libtpu waits for a metadata server.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
}
CLOCK_KHZ = 0.94e6  # cycles in a millisecond
MEMORY = 16e9  # bytes of a v5e
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
TRANSFERS = ("infeed", "outfeed", "send", "recv")
# Operations of a program for a GPU that start a kernel.
KERNELS = (
    r"\s(fusion|custom-call|copy|dot|convolution|reduce|sort|scatter|gather|dynamic-slice"
    r"|dynamic-update-slice|transpose|concatenate|pad)\((?!\))"
)
# What XLA asks a GPU for, in the text form of its protobuf.
H100 = """gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32
shared_memory_per_block: 49152 shared_memory_per_core: 233472 threads_per_core_limit: 2048
core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
block_dim_limit_z: 65535 clock_rate_ghz: 1.98 memory_bandwidth: 3352320000000 l2_cache_size:
52428800 device_memory_size: 84978434048 shared_memory_per_block_optin: 232448
cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit:
65536 } platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } device_description_str:
"NVIDIA H100 80GB HBM3" """


@dataclasses.dataclass(frozen=True)
class Flags:
    """Compile layers and steps for TPUs that are not there, and print the compiler's estimates.

    Args:
        parts: What is compiled.
        only: Shapes (PTB), or experiments with or without a preset (ptb, ptb:paper), separated by
            commas.
        models: Models of the steps; default is the preset's.
        devices: Numbers of devices of the steps.
        data: small: a few words in place of every corpus.
        out: Folder for compiled.json and compiled.md (the tables).
    """

    parts: tuple[Literal["layers", "steps", "kernels"], ...] = ("layers", "steps")
    only: str | None = None
    models: str = "lstm,default"
    devices: tuple[Annotated[int, Bounds(1, 4)], ...] = (1, 4)
    data: Literal["found", "small"] = "found"
    out: Path | None = None


class Figures(NamedTuple):
    """The compiler's figures of one program; memory is that of each device."""

    ms: float  # estimated milliseconds
    moved: float  # fraction of them in slices, copies and transposes
    temporary: float  # MiB
    arguments: float  # MiB of arguments and results; a donated argument counts once
    collectives: int  # operations with which devices exchange data, outside of loops
    looped: int  # the same inside of loops
    transfers: int  # from or to the host


def devices(count: int) -> list[jax.Device]:
    """Return TPU devices that exist only as a description."""
    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    return list(topology.devices)[:count]


def compile_for(lowered: jax.stages.Lowered) -> dict[str, Any]:
    """Compile a program, and return its `Figures` by name."""
    compiled = lowered.compile()
    plan = compiled.memory_analysis()
    text = compiled.as_text()
    arguments = plan.argument_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
    return read_figures(text, plan.temp_size_in_bytes, arguments)._asdict()


def read_figures(text: str, temporary: int, arguments: int) -> Figures:
    """Return the figures of a compiled program's text; sizes are in bytes."""
    computations, entry = _computations(text)
    cycles = moved = 0.0
    counts = dict.fromkeys(("collectives", "looped", "transfers"), 0)

    def walk(name: str, times: int, looped: bool) -> None:
        nonlocal cycles, moved
        for line in computations.get(name, ()):
            found = re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = .*?\s([a-z][a-z\-]*)\(", line)
            if not found:
                continue
            operation = found.group(2).removesuffix("-start")
            cost = times * sum(map(int, re.findall(r'"estimated_cycles":"(\d+)"', line)))
            cycles += cost
            moved += cost * bool(re.search("slice|copy|transpose", f"{found.group(1)} {operation}"))
            counts["looped" if looped else "collectives"] += operation in COLLECTIVES
            counts["transfers"] += operation in TRANSFERS
            if operation == "while":
                # The compiler estimates one iteration of a loop.
                condition = re.search(r"condition=%?([\w.\-]+)", line)
                body = re.search(r"body=%?([\w.\-]+)", line)
                steps = _trip_count(computations.get(condition.group(1), ()))
                walk(body.group(1), times * steps, True)
            elif operation in ("call", "conditional"):
                for called in re.findall(r"(?:to_apply|\w+_computation)=%?([\w.\-]+)", line):
                    walk(called, times, looped)

    walk(entry, 1, False)
    sizes = temporary / 2**20, arguments / 2**20
    share_moved = moved / cycles if cycles else 0.0
    return Figures(cycles / CLOCK_KHZ, share_moved, *sizes, **counts)


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Return the lines of each computation of a program, and the name of its entry."""
    found: dict[str, list[str]] = {}
    current = entry = ""
    for line in text.splitlines():
        head = re.match(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        if head:
            current = head.group(2)
            found[current] = []
            if head.group(1):
                entry = current
        elif current:
            found[current].append(line)
    return found, entry


def _trip_count(condition: list[str]) -> int:
    """Return how often a loop runs: the largest constant of its condition."""
    limits = re.findall(r"s32\[\]\S* constant\((\d+)\)", "\n".join(condition))
    return max(map(int, limits), default=1)


def lowered(make: Callable[[], layers.Layer], device: jax.Device) -> jax.stages.Lowered:
    """Return the program of the loss and the gradient of a layer, on one device."""
    layer = make()
    one = NamedSharding(Mesh(np.array([device]), ("data",)), P())
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one), layer.arguments
    )
    return jax.jit(layer.gradient).lower(*like)


def layer_figures(make: Callable[[], layers.Layer]) -> dict[str, Any]:
    """Return the figures of the loss and the gradient of a layer, on one device."""
    return compile_for(lowered(make, devices(1)[0]))


def kernels_per_step(make: Callable[[], layers.Layer]) -> dict[str, Any]:
    """Return how many kernels an H100 runs in a step of a layer's backward and forward loops."""
    options = dict(target_config=H100, topology="1x1x1")
    device = topologies.get_topology_desc(
        platform="cuda", topology_name="1x1x1", **options
    ).devices[0]
    found, _ = _computations(text := lowered(make, device).compile().as_text())
    bodies = set(re.findall(r" while\(.*body=%?([\w.\-]+)", text))
    counts = [
        sum(bool(re.search(KERNELS, line.split(" metadata=")[0])) for line in found[b])
        for b in bodies
    ]
    return {"kernels": " + ".join(map(str, sorted(counts, reverse=True)))}


def step_figures(trained: training_step.Trained, count: int) -> dict[str, Any]:
    """Return the figures of a training step on the longest batch, which `count` devices share."""
    update = make_step(
        trained.learner, trained.fit.optimizer, ShardedJit(tuple(devices(count)), (1, count))
    )
    batch = max(trained.learner.train_batches(0), key=lambda batch: jax.tree.leaves(batch)[0].size)
    arguments = jax.eval_shape(trained.start), batch, *trained.arguments()
    return compile_for(update.lower(*jax.eval_shape(lambda *given: given, *arguments)))


def load(
    name: str, preset: str, model: str, data: str, folder: Path
) -> tuple[training_step.Trained, str]:
    """Return what the training step of a preset is compiled from, and a remark about its data."""
    size = training_step.chosen(name, preset, {}).training.batch_size
    flags = {"batch_size": -(-size // 4) * 4}  # four devices share it
    given = None if model == "default" else model
    step = functools.partial(training_step.prepare, name, preset, given)
    if name == "ptb":  # the words do not matter, their number does
        return step(flags, training_step.synthetic_words(20_000, 10_000)), ""
    if data == "found":
        try:
            return step(flags), ""
        except UserError as error:
            print(f"{name}: {error}", file=sys.stderr)
    if not write_data(name, folder / name):
        return step(flags), ""
    columns = {"dataset": "columns"} if name == "pos" else {}
    return step({**flags, **columns, "data": folder / name}), " (a few words)"


def programs(flags: Flags, folder: Path) -> Iterator[tuple[str, dict[str, str], Callable[[], Any]]]:
    """Yield the table, the first cells and the figures of each program."""
    names = None if flags.only is None else flags.only.split(",")
    for name, shape in {**layers.SHAPES, "wide": layers.WIDE}.items():
        if names is not None and name not in names:
            continue
        for layer, make in layers.layers(shape).items():
            if "layers" in flags.parts:
                yield f"{name}: {shape}", {"layer": layer}, functools.partial(layer_figures, make)
            if "kernels" in flags.parts:
                title = f"H100, {name}: {shape}"
                yield title, {"layer": layer}, functools.partial(kernels_per_step, make)
    if "steps" not in flags.parts:
        return
    presets = ((name, preset) for name in EXPERIMENTS for preset in find_experiment(name).presets)
    for name, preset in presets:
        if names is not None and name not in names and f"{name}:{preset}" not in names:
            continue
        for model in flags.models.split(","):
            trained, remark = load(name, preset, model, flags.data, folder)
            for count in flags.devices:
                title = f"{name}, {preset}{remark}"
                cells = {"preset": title, "model": model, "devices": str(count)}
                yield "training steps", cells, functools.partial(step_figures, trained, count)


def run(flags: Flags) -> None:
    """Compile everything, and print and write the tables."""
    about = report.describe()
    rows = []
    texts = []
    versions = ", ".join(f"{name} {about['versions'].get(name)}" for name in ("jax", "libtpu"))
    with tempfile.TemporaryDirectory() as folder:
        for table, cells, figures in programs(flags, Path(folder)):
            print(table, *cells.values(), sep=", ", file=sys.stderr)
            try:
                found = figures()
            except Exception as error:  # the compiler's errors have many types
                message = str(error).strip().splitlines()[0][:200]
                found = {"error": f"{type(error).__name__}: {message}"}
            rows.append({"table": table, **cells, **found})
            # Written after each program, because all of them take long.
            tables = groupby(rows, key=lambda row: row["table"])
            texts = [f"{versions}: the compiler's estimates; a TPU is a v5e"]
            texts += [f"### {title}\n\n{_table(list(group))}" for title, group in tables]
            report.write(flags.out, "compiled", {"about": about, "rows": rows}, "\n\n".join(texts))
    print(*texts, sep="\n\n")


def _table(rows: list[dict[str, Any]]) -> str:
    if "kernels" in rows[0]:
        lines = [[row["layer"], row["kernels"]] for row in rows]
        return report.markdown(["layer", "kernels a step, backward + forward"], lines)
    names = [name for name in ("layer", "preset", "model", "devices") if name in rows[0]]
    lines = []
    for row in rows:
        cells = [row["error"], *[""] * 5] if "error" in row else _cells(row)
        lines.append([*(row[name] for name in names), *cells])
    header = ("estimated ms", "slices and copies", "temporary MiB", "arguments MiB", "collectives")
    return report.markdown([*names, *header, "host transfers"], lines)


def _cells(row: dict[str, Any]) -> list[str]:
    """Return the cells of a program's figures."""
    arguments = number(row["arguments"])
    if (row["temporary"] + row["arguments"]) * 2**20 > MEMORY:
        arguments = f"{arguments}, too much"
    collectives = str(row["collectives"])
    if row["looped"]:
        collectives = f"{collectives} and {row['looped']} in loops"
    cells = [number(row["ms"]), f"{row['moved']:.0%}", number(row["temporary"]), arguments]
    return [*cells, collectives, str(row["transfers"])]


def main() -> None:
    """Run the command line."""
    flags = call(Flags, "python -m benchmarks.compiled", sys.argv[1:])
    if find_spec("libtpu") is None and flags.parts != ("kernels",):
        raise UserError(
            'libtpu, the compiler for TPUs, is not installed: pip install -e ".[compile]"'
        )
    has_cuda = find_spec("jax_cuda13_plugin") or find_spec("jax_cuda12_plugin")
    if "kernels" in flags.parts and not has_cuda:
        raise UserError('the compiler for an H100 is not installed: pip install -e ".[cuda]"')
    # JAX is imported already, without this environment: begin again with it.
    if not ENVIRONMENT.items() <= os.environ.items():
        command = [sys.executable, "-m", "benchmarks.compiled", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **ENVIRONMENT})
    jax.config.update("jax_enable_compilation_cache", False)
    run(flags)


if __name__ == "__main__":
    run_main(main)
