"""Layers in JAX that are timed: this project's, Flax's and cuDNN's, with the same weights and loss.

The loss is the sum of the squares of all outputs, plus the sum of the log-probabilities of all choices
where there are any; the gradient is that of the weights and of the inputs.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from benchmarks.candidate import Candidate, Ready
from benchmarks.shapes import Shape
from dynskip_jax import functional as F
from dynskip_jax.nn import SkipCell, SkipLayers


def inputs(shape: Shape, seed: int = 0) -> Float[Array, "batch time in"]:
    """Returns normal inputs."""
    return jax.random.normal(jax.random.key(seed), (shape.batch, shape.time, shape.features))


def cell(
    shape: Shape,
    skip: F.TimeSkip,
    seed: int = 0,
    transition: F.Transition = F.LSTM(),  # noqa: B008
) -> SkipCell:
    """Returns a cell with fresh weights; cells of one seed share those that they both have."""
    return SkipCell(shape.features, shape.hidden, skip, transition=transition, rngs=nnx.Rngs(seed))


def weights(shape: Shape, skip: F.TimeSkip) -> F.LayerParams:
    """Returns the weights of `cell(shape, skip)` as the pure functions take them."""
    return cell(shape, skip).params()


def torch_order(gates: Float[Array, "*rows four_hidden"]) -> Float[Array, "*rows four_hidden"]:
    """Reorders the last axis from Eq. 2's gates g, i, f, o to i, f, g, o: that of Flax, PyTorch and cuDNN."""
    g, i, f, o = jnp.split(gates, 4, axis=-1)
    return jnp.concatenate([i, f, g, o], axis=-1)


def compiled(name: str, loss: Callable[..., Array], *arguments: Any) -> Candidate:
    """A candidate that differentiates a JAX function by its first two arguments.

    Whatever the loss depends on is an argument: XLA would compute with constants while it compiles.

    Args:
        name: as in the tables.
        loss: (weights, inputs, *rest) -> scalar.
        *arguments: what it is called with.
    """

    def prepare() -> Ready:
        def gradient(*arguments):  # a function of its own, so that no earlier trace is found
            return jax.value_and_grad(loss, argnums=(0, 1))(*arguments)

        program = jax.jit(gradient).lower(*arguments).compile()
        return Ready(
            step=lambda: jax.block_until_ready(program(*arguments)),
            peak_bytes=lambda: program_bytes(program),
        )

    return Candidate(name, prepare)


def program_bytes(program: jax.stages.Compiled) -> int | None:
    """Temporary memory and outputs of a compiled program in bytes, as XLA plans them."""
    plan = program.memory_analysis()
    return None if plan is None else plan.temp_size_in_bytes + plan.output_size_in_bytes


def skip_loss(
    layer: SkipLayers, actions: Int[Array, "batch time"] | None = None
) -> tuple[Callable[..., Float[Array, ""]], nnx.State]:
    """Returns (weights, inputs, carry) -> loss of a layer, and its weights."""
    graphdef, state = nnx.split(layer)

    def loss(state, x, carry):
        out = nnx.merge(graphdef, state)(
            x, initial_carry=carry, actions=None if actions is None else [actions]
        )
        return jnp.sum(out.h**2) + jnp.sum(out.decisions[0].log_prob)

    return loss, state


def ours(
    name: str,
    shape: Shape,
    skip: F.TimeSkip,
    x: Float[Array, "batch time in"],
    actions: Int[Array, "batch time"] | None = None,
    transition: F.Transition = F.LSTM(),  # noqa: B008
    **options: Any,
) -> Candidate:
    """This project's layer."""
    layer = SkipLayers([cell(shape, skip, transition=transition)], **options)
    loss, state = skip_loss(layer, actions)
    return compiled(name, loss, state, x, start(layer, shape))


def start(layer: SkipLayers, shape: Shape, seed: int = 0) -> tuple[F.SkipCarry, ...]:
    """Returns the carry from which a layer starts: zeros, and one key per sequence."""
    return (layer.cells[0].initialize_carry((shape.batch, shape.features), jax.random.key(seed)),)


def flax_rnn(name: str, shape: Shape, x: Float[Array, "batch time in"]) -> Candidate:
    """Flax's own LSTM, `nnx.RNN(nnx.OptimizedLSTMCell)`."""
    lstm = weights(shape, F.Previous()).transition
    flax_cell = nnx.OptimizedLSTMCell(shape.features, shape.hidden, rngs=nnx.Rngs(0))
    flax_cell.dense_i.kernel[...] = torch_order(lstm.w_x)
    flax_cell.dense_h.kernel[...] = torch_order(lstm.w_h)
    flax_cell.dense_h.bias[...] = torch_order(lstm.b)
    graphdef, state = nnx.split(nnx.RNN(flax_cell, rngs=False))
    zeros = jnp.zeros((shape.batch, shape.hidden))

    def loss(state, x, carry):
        return jnp.sum(nnx.merge(graphdef, state)(x, initial_carry=carry) ** 2)

    return compiled(name, loss, state, x, (zeros, zeros))


def seed_candidates(shape: Shape, num_seeds: int) -> list[Candidate]:
    """The dynamic skip with several seeds: one program for all, and one program run once for each."""
    skip = F.Dynamic(shape.max_skip, shape.mix)
    runs = []
    for seed in range(num_seeds):
        layer = SkipLayers([cell(shape, skip, seed)])
        loss, state = skip_loss(layer)
        runs.append((state, inputs(shape, seed), start(layer, shape, seed)))
    gradient = jax.value_and_grad(loss, argnums=(0, 1))  # every seed's layer has the same structure
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *runs)

    def one_by_one() -> Ready:
        program = jax.jit(lambda *run: gradient(*run)).lower(*runs[0]).compile()
        return Ready(lambda: jax.block_until_ready([program(*run) for run in runs]))

    def together() -> Ready:
        program = jax.jit(jax.vmap(lambda *run: gradient(*run))).lower(*stacked).compile()
        return Ready(lambda: jax.block_until_ready(program(*stacked)), lambda: program_bytes(program))

    return [Candidate("one by one", one_by_one), Candidate("vmap", together)]
