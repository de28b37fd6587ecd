"""Time of one training step of each time skip, and of Flax's LSTM, side by side in one process.

    python -m benchmarks.recurrence

Times the gradient of a layer's weights and inputs at four shapes. The contestants take turns, so that a
machine that speeds up or slows down does so for all; the ratio to the plain LSTM is taken turn by turn.
PyTorch's LSTM joins where PyTorch is installed (`pip install -e ".[bench]"`).
"""

import dataclasses
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from flax import nnx
from rich.console import Console
from rich.table import Table

from dynskip_jax.functional import SkipOutput, TimeSkip
from dynskip_jax.nn import SkipLSTM, SkipLSTMCell


@dataclasses.dataclass(frozen=True)
class Shape:
    """One problem: T steps, batch B, input size, H units; K and λ of the skips."""

    time: int
    batch: int
    features: int
    hidden: int
    max_skip: int
    mix: float


SHAPES = (
    Shape(35, 20, 650, 650, 5, 1.0),  # PTB, the paper's size
    Shape(11, 128, 10, 200, 10, 0.5),  # number prediction
    Shape(400, 50, 300, 128, 3, 0.5),  # IMDB
    Shape(40, 10, 400, 200, 5, 1.0),  # NER
)


@dataclasses.dataclass(frozen=True)
class Flags:
    """Command line."""

    rounds: int = 15
    """How many turns each contestant gets."""
    out: str | None = None
    """File for the figures, as JSON."""


def jax_step(layer: nnx.Module, x: jax.Array) -> Callable[[], None]:
    """Returns a function that computes the gradient of weights and inputs once, and waits for it."""
    graphdef, params = nnx.split(layer)
    carry = layer.cell.initialize_carry((x.shape[0], x.shape[2]), nnx.Rngs(0))

    def loss(params, x):
        out = nnx.merge(graphdef, params)(x, initial_carry=carry)
        if isinstance(out, SkipOutput):
            return jnp.sum(out.h**2) - jnp.sum(out.decision.log_prob)
        return jnp.sum(out**2)

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
    return lambda: jax.block_until_ready(gradient(params, x))


def torch_step(shape: Shape) -> Callable[[], None] | None:
    """The same of `torch.nn.LSTM`, or None where PyTorch is not installed."""
    try:
        import torch
    except ImportError:
        return None
    lstm = torch.nn.LSTM(shape.features, shape.hidden)
    x = torch.randn(shape.time, shape.batch, shape.features, requires_grad=True)

    def step() -> None:
        lstm.zero_grad(set_to_none=True)
        x.grad = None
        (lstm(x)[0] ** 2).sum().backward()

    return step


def contestants(shape: Shape) -> dict[str, Callable[[], None]]:
    """Returns everything that is timed at a shape; the plain LSTM first."""
    x = jax.random.normal(jax.random.key(0), (shape.batch, shape.time, shape.features))
    k = shape.max_skip
    skips = {
        "lstm": TimeSkip(),
        f"fixed:{k}": TimeSkip("fixed", k, shape.mix),
        f"attention:{k}": TimeSkip("attention", k, shape.mix),
        f"dynamic:{k}": TimeSkip("dynamic", k, shape.mix),
    }
    steps = {
        name: jax_step(
            SkipLSTM(SkipLSTMCell(shape.features, shape.hidden, skip, rngs=nnx.Rngs(0)), rngs=False), x
        )
        for name, skip in skips.items()
    }
    flax_cell = nnx.OptimizedLSTMCell(shape.features, shape.hidden, rngs=nnx.Rngs(0))
    steps["Flax RNN"] = jax_step(nnx.RNN(flax_cell, rngs=False), x)
    torch_lstm = torch_step(shape)
    if torch_lstm is not None:
        steps["torch.nn.LSTM"] = torch_lstm
    return steps


def measure(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, np.ndarray]:
    """Milliseconds of each step in each round, (rounds,); a warm-up round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if number > 0:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: np.array(values) for name, values in times.items()}


def main() -> None:
    """Runs the benchmark and prints a table per shape."""
    flags = tyro.cli(Flags, description=__doc__)
    console = Console()
    rows = []
    for shape in SHAPES:
        times = measure(contestants(shape), flags.rounds)
        table = Table(
            title=f"T={shape.time} B={shape.batch} in={shape.features} H={shape.hidden} λ={shape.mix}",
            title_justify="left",
        )
        for heading in ("layer", "median ms", "min", "max", "ratio to lstm"):
            table.add_column(heading, justify="left" if heading == "layer" else "right")
        for name, values in times.items():
            ratio = float(np.median(values / times["lstm"]))
            table.add_row(
                name,
                f"{np.median(values):.1f}",
                f"{values.min():.1f}",
                f"{values.max():.1f}",
                f"{ratio:.2f}",
            )
            rows.append({"shape": dataclasses.asdict(shape), "layer": name, "ms": values.tolist()})
        console.print(table)
    if flags.out is not None:
        about = {
            "jax": jax.__version__,
            "backend": jax.default_backend(),
            "device": jax.devices()[0].device_kind,
            "python": platform.python_version(),
        }
        Path(flags.out).write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
