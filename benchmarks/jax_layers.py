"""Make the JAX candidates: layers of this project, Flax and cuDNN, with the same weights and loss.

The loss is the sum of the squares of all outputs, plus the sum of the log-probabilities of all choices, if
there are any. The gradient is taken with respect to the weights and the inputs.
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
    """Return normally distributed inputs."""
    return jax.random.normal(jax.random.key(seed), (shape.batch, shape.time, shape.features))


def cell(
    shape: Shape,
    skip: F.TimeSkip,
    seed: int = 0,
    transition: F.Transition = F.LSTM(),  # noqa: B008
) -> SkipCell:
    """Return a cell with random weights; cells with the same seed agree in the weights that both have."""
    return SkipCell(shape.features, shape.hidden, skip, transition=transition, rngs=nnx.Rngs(seed))


def weights(shape: Shape, skip: F.TimeSkip) -> F.LayerParams:
    """Return the weights of `cell(shape, skip)` in the form of the pure functions."""
    return cell(shape, skip).params()


def torch_order(gates: Float[Array, "*rows four_hidden"]) -> Float[Array, "*rows four_hidden"]:
    """Reorder the last axis from the gates g, i, f, o of Eq. 2 to i, f, g, o (Flax, PyTorch and cuDNN)."""
    g, i, f, o = jnp.split(gates, 4, axis=-1)
    return jnp.concatenate([i, f, g, o], axis=-1)


def compiled(name: str, loss: Callable[..., Array], *arguments: Any) -> Candidate:
    """Return a candidate that differentiates a JAX function with respect to its first two arguments.

    Every array that the loss depends on has to be an argument, because XLA folds constants when it compiles.

    Args:
        name: Name in the tables.
        loss: Function (weights, inputs, *rest) -> scalar.
        *arguments: Arguments of `loss`.
    """

    def prepare() -> Ready:
        def gradient(*arguments):  # a new function, so that JAX does not reuse an earlier trace
            return jax.value_and_grad(loss, argnums=(0, 1))(*arguments)

        program = jax.jit(gradient).lower(*arguments).compile()
        return Ready(
            step=lambda: jax.block_until_ready(program(*arguments)),
            peak_bytes=lambda: program_bytes(program),
        )

    return Candidate(name, prepare)


def program_bytes(program: jax.stages.Compiled) -> int | None:
    """Return the temporary memory plus outputs of a compiled program in bytes, as planned by XLA."""
    plan = program.memory_analysis()
    return None if plan is None else plan.temp_size_in_bytes + plan.output_size_in_bytes


def skip_loss(
    layer: SkipLayers, actions: Int[Array, "batch time"] | None = None
) -> tuple[Callable[..., Float[Array, ""]], nnx.State]:
    """Return the loss of a layer, a function of (weights, inputs, carry), and the layer's weights."""
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
    """Return the candidate with this project's layer; `options` are arguments of `SkipLayers`."""
    layer = SkipLayers([cell(shape, skip, transition=transition)], **options)
    loss, state = skip_loss(layer, actions)
    return compiled(name, loss, state, x, start(layer, shape))


def start(layer: SkipLayers, shape: Shape, seed: int = 0) -> tuple[F.SkipCarry, ...]:
    """Return the initial carry of a layer, with states of zero and one key per sequence."""
    return (layer.cells[0].initialize_carry((shape.batch, shape.features), jax.random.key(seed)),)


def flax_rnn(name: str, shape: Shape, x: Float[Array, "batch time in"]) -> Candidate:
    """Return the candidate with Flax's LSTM, `nnx.RNN(nnx.OptimizedLSTMCell)`."""
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
    """Return candidates for dynamic skips with several seeds: one call per seed, and one `vmap` for all."""
    skip = F.Dynamic(shape.max_skip, shape.mix)
    runs = []
    for seed in range(num_seeds):
        layer = SkipLayers([cell(shape, skip, seed)])
        loss, state = skip_loss(layer)
        runs.append((state, inputs(shape, seed), start(layer, shape, seed)))
    gradient = jax.value_and_grad(loss, argnums=(0, 1))  # all seeds' layers have the same structure
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *runs)

    def one_by_one() -> Ready:
        program = jax.jit(lambda *run: gradient(*run)).lower(*runs[0]).compile()
        return Ready(lambda: jax.block_until_ready([program(*run) for run in runs]))

    def together() -> Ready:
        program = jax.jit(jax.vmap(lambda *run: gradient(*run))).lower(*stacked).compile()
        return Ready(lambda: jax.block_until_ready(program(*stacked)), lambda: program_bytes(program))

    return [Candidate("one by one", one_by_one), Candidate("vmap", together)]
