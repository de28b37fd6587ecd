"""Layers to compare. Their loss: all outputs' squares, plus log-probabilities of choices."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from dynskip_jax import SkipLSTM
from dynskip_jax import functional as F


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of one problem: T, B, in, H, and K and λ of every skip."""

    time: int
    batch: int
    features: int
    hidden: int
    max_skip: int
    mix: float

    def __str__(self) -> str:
        sizes = f"T={self.time:,} B={self.batch} in={self.features} H={self.hidden}"
        return f"{sizes} K={self.max_skip} λ={self.mix:g}"


SHAPES = {
    "PTB": Shape(35, 20, 650, 650, 5, 1.0),  # the paper's size
    "number prediction": Shape(11, 128, 10, 200, 10, 0.5),
    "IMDB": Shape(400, 50, 300, 128, 3, 0.5),
    "NER": Shape(40, 10, 400, 200, 5, 1.0),
}
FAR = Shape(201, 32, 10, 200, 200, 0.5)  # number prediction at length 201
GROWTH_BASE = Shape(100, 16, 128, 128, 5, 0.5)


class Layer(NamedTuple):
    """The gradient of a loss, a function of weights, inputs (batch, time, in), and constants."""

    gradient: Callable[..., Any]
    arguments: tuple[Any, ...]


_PREVIOUS = F.Previous()


def ours(shape: Shape, skip: F.TimeSkip = _PREVIOUS, **options: Any) -> Layer:
    """Return this project's layer, a `SkipLSTM` with `options`; equal seeds give equal weights."""
    layer = SkipLSTM(shape.features, shape.hidden, skip=skip, rngs=nnx.Rngs(0), **options)
    graphdef, weights = nnx.split(layer)

    def loss(weights, x, key):
        out = nnx.merge(graphdef, weights)(x, rngs=key)
        return jnp.sum(out.h**2) + jnp.sum(out.decisions[0].log_prob)

    gradient = jax.value_and_grad(loss, argnums=(0, 1))
    return Layer(gradient, (weights, inputs(shape), jax.random.key(1)))


def flax_rnn(shape: Shape) -> Layer:
    """Return Flax's `nnx.RNN(nnx.OptimizedLSTMCell)`."""
    cell = nnx.OptimizedLSTMCell(shape.features, shape.hidden, rngs=nnx.Rngs(0))
    graphdef, weights = nnx.split(nnx.RNN(cell, rngs=False))
    zeros = jnp.zeros((shape.batch, shape.hidden))

    def loss(weights, x, carry):
        return jnp.sum(nnx.merge(graphdef, weights)(x, initial_carry=carry) ** 2)

    return Layer(jax.value_and_grad(loss, argnums=(0, 1)), (weights, inputs(shape), (zeros, zeros)))


def inputs(shape: Shape) -> jax.Array:
    """Return normally distributed inputs, (batch, time, in)."""
    return jax.random.normal(jax.random.key(0), (shape.batch, shape.time, shape.features))


def time_skips(shape: Shape) -> Mapping[str, Callable[[], Layer]]:
    """Return how to make a layer with every time skip, by name; k stands for the shape's K.

    Segments have a tenth of K states.
    """
    k = shape.max_skip
    mix = shape.mix
    segment = max(1, shape.max_skip // 10)
    skips = {
        "lstm": F.Previous(),
        "fixed:k": F.Fixed(k, mix),
        "mean:k": F.Mean(k, mix),
        "attention:k": F.Attention(k, mix),
        "content:k": F.Attention(k, mix, agent="content"),
        "dynamic:k": F.Dynamic(k, mix),
        "sparse:k": F.SparseAttention(k, mix),
        "log_attention:k": F.Attention(k, mix, among=F.LogSpaced()),
        "log_dynamic:k": F.Dynamic(k, mix, among=F.LogSpaced()),
        "segment_attention:k": F.Attention(k, mix, agent="content", among=F.Segments(segment)),
        "segment_dynamic:k": F.Dynamic(k, mix, among=F.Segments(segment)),
        "skip_rnn": F.SkipRNN(),
    }
    made = {name: partial(ours, shape, skip) for name, skip in skips.items()}
    small = F.SkimLSTM(min(5, shape.hidden))
    return {**made, "skim_rnn": partial(ours, shape, F.SkimRNN(), transition=small)}


def layers(shape: Shape) -> Mapping[str, Callable[[], Layer]]:
    """Return how to make some of `time_skips`, their reference scans, and Flax's layer."""
    made = time_skips(shape)
    found = {name: made[name] for name in ("lstm", "fixed:k", "attention:k", "dynamic:k")}
    for name in ("lstm", "dynamic:k"):
        found[f"{name}, reference"] = partial(made[name], implementation="reference")
    return {**found, "Flax RNN": partial(flax_rnn, shape)}


def transitions(shape: Shape) -> Mapping[str, Callable[[], Layer]]:
    """Return how to make a layer without skips for every transition, and its reference scan."""
    found = {}
    for name, kind in F.TRANSITIONS.items():
        for suffix, options in (("", {}), (", reference", {"implementation": "reference"})):
            found[name + suffix] = partial(ours, shape, transition=kind(), **options)
    return found


def torch_step(shape: Shape) -> Callable[[], Any]:
    """Return a function of `torch.nn.LSTM`'s loss and gradients, on the device JAX uses."""
    import torch

    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    lstm = torch.nn.LSTM(shape.features, shape.hidden, device=device)
    x = torch.randn(shape.time, shape.batch, shape.features, device=device, requires_grad=True)

    def step() -> Any:
        loss = (lstm(x)[0] ** 2).sum()
        gradients = torch.autograd.grad(loss, [*lstm.parameters(), x])
        if device == "cuda":
            torch.cuda.synchronize()
        return loss.detach(), gradients

    return step
