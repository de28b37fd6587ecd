"""Measure a step of `SkipCell`, as an agent takes it, beside Flax's LSTM cell.

    taskset -c 0 python -m benchmarks.acting

A step is one of a `jax.lax.scan` over 64 environments with 16 inputs and 64 units, with greedy
choices. All cells take turns.
"""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from benchmarks import report, run_command
from benchmarks.recurrence import take_turns
from benchmarks.report import number
from dynskip_jax import functional as F
from dynskip_jax.config.flags import Count
from dynskip_jax.nn import SkipCell, SkipLayers

ENVIRONMENTS = 64
FEATURES = 16
HIDDEN = 64
FLAX = "Flax's OptimizedLSTMCell"
RESETS = ", with resets"
ROWS = ", layers that read rows of one step"
SKIPS = {
    "previous": F.Previous(),
    "fixed:64": F.Fixed(64),
    "fixed:1024": F.Fixed(1024),
    "dynamic:64": F.Dynamic(64),
    "dynamic:64, first step carried": F.Dynamic(64, first_step="carried"),
    "dynamic:1024": F.Dynamic(1024),
    "both:64": F.Dynamic(64, agent="both"),
    "both:64, followed": F.Dynamic(64, agent="both", agent_keys="followed"),
    "attention:64": F.Attention(64),
}
VARIANTS = ("fixed:1024" + RESETS, "both:64" + RESETS, "fixed:1024" + ROWS)


def cell_of(name: str) -> nnx.Module:
    """Return the cell of a row of the table, in evaluation."""
    if name == FLAX:
        return nnx.OptimizedLSTMCell(FEATURES, HIDDEN, rngs=nnx.Rngs(0))
    skip = SKIPS[name.removesuffix(RESETS).removesuffix(ROWS)]
    cell = SkipCell(FEATURES, HIDDEN, skip, rngs=nnx.Rngs(0))
    cell.eval()
    return cell


def scan_of(name: str, steps: int) -> Callable[[], Any]:
    """Return a compiled scan of a cell, which waits for its result."""
    x = jax.random.normal(jax.random.key(0), (steps, ENVIRONMENTS, FEATURES))
    begins = jax.random.bernoulli(jax.random.key(1), 0.01, (steps, ENVIRONMENTS))
    # Weights are arguments, or XLA would fold them.
    cell = cell_of(name)
    graphdef, weights = nnx.split(cell)
    carry = cell.initialize_carry((ENVIRONMENTS, FEATURES), nnx.Rngs(0))

    @jax.jit
    def scan(weights: Any, carry: Any, given: Any) -> Any:
        cell = nnx.merge(graphdef, weights)

        def step(carry: Any, given: Any) -> Any:
            x, begins = given
            if name.endswith(ROWS):
                layers = SkipLayers([cell])
                (carry,), out = layers(x[:, None], initial_carry=[carry], return_carry=True)
                return carry, out.h
            if name.endswith(RESETS):
                return cell(carry, x, resets=begins)
            return cell(carry, x)

        return jax.lax.scan(step, carry, given)

    return lambda: jax.block_until_ready(scan(weights, carry, (x, begins)))


def measure(steps: Count = 512, rounds: Count = 5) -> None:
    """Print the microseconds of a step, the least of all rounds, and multiples of Flax's."""
    times = take_turns({name: scan_of(name, steps) for name in (FLAX, *SKIPS, *VARIANTS)}, rounds)
    us = {name: 1e3 * ms.min() / steps for name, ms in times.items()}
    rows = [(name, number(each), number(each / us[FLAX])) for name, each in us.items()]
    table = report.markdown(("cell", "µs a step", "multiple of Flax's"), rows)
    print(report.machine(), table, sep="\n\n")


if __name__ == "__main__":
    run_command(measure)
