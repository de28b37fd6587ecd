"""List the candidates of each comparison."""

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec

import jax
from jaxtyping import Array, Int

from benchmarks.candidate import Candidate
from benchmarks.jax_layers import flax_rnn, inputs, ours, weights
from benchmarks.shapes import Shape
from dynskip_jax import functional as F
from dynskip_jax.functional import Attention, Dynamic, Fixed, Previous, Transition

GROWING = ("lstm", "dynamic:k", "torch.nn.LSTM")  # candidates of the part `growth`


def layers(
    shape: Shape, actions: Int[Array, "batch time"] | None = None, names: Sequence[str] | None = None
) -> list[Candidate]:
    """Return the layers that can run on this machine; in names, k stands for the shape's K.

    Args:
        shape: Sizes of the problem.
        actions: k in 1..K that dynamic skips replay instead of sampling, (batch, time).
        names: Names of the layers to return; None for all.
    """
    x = inputs(shape)
    k, mix = shape.max_skip, shape.mix
    plain, dynamic = Previous(), Dynamic(k, mix)
    makers = {
        "lstm": partial(ours, shape=shape, skip=plain, x=x, implementation="fused"),
        "fixed:k": partial(ours, shape=shape, skip=Fixed(k, mix), x=x),
        "attention:k": partial(ours, shape=shape, skip=Attention(k, mix), x=x),
        "dynamic:k": partial(ours, shape=shape, skip=dynamic, x=x, actions=actions),
    }
    for name in ("lstm", "dynamic:k"):
        makers[f"{name} reference"] = partial(makers[name], implementation="reference")
    makers["Flax RNN"] = partial(flax_rnn, shape=shape, x=x)
    if jax.default_backend() == "gpu":
        makers["lstm cudnn"] = partial(makers["lstm"], implementation="cudnn")
    if why_no_torch() is None:
        from benchmarks import torch_layers

        makers |= torch_layers.makers(weights(shape, dynamic), shape, x, actions)
    return [make(name) for name, make in makers.items() if names is None or name in names]


def pairs(shape: Shape, transition: Transition) -> list[Candidate]:
    """Return the reference unroll and the fused unroll of a transition without skips."""
    make = partial(ours, shape=shape, skip=Previous(), x=inputs(shape), transition=transition)
    return [make(name, implementation=name) for name in ("reference", "fused")]


def time_skips(shape: Shape) -> list[Candidate]:
    """Return the plain LSTM and every time skip; segments have a tenth of the shape's K states."""
    k, mix, x = shape.max_skip, shape.mix, inputs(shape)
    segment = max(1, k // 10)
    skips = {
        "lstm": Previous(),
        "fixed:k": Fixed(k, mix),
        "mean:k": F.Mean(k, mix),
        "attention:k": Attention(k, mix),
        "content:k": F.Attention(k, mix, agent="content"),
        "dynamic:k": Dynamic(k, mix),
        "sparse:k": F.SparseAttention(k, mix),
        "log_attention:k": F.Attention(k, mix, among=F.LogSpaced()),
        "log_dynamic:k": F.Dynamic(k, mix, among=F.LogSpaced()),
        "segment_attention:k": F.Attention(k, mix, among=F.Segments(segment), agent="content"),
        "segment_dynamic:k": F.Dynamic(k, mix, among=F.Segments(segment)),
        "skip_rnn": F.SkipRNN(),
    }
    made = [ours(name, shape, skip, x) for name, skip in skips.items()]
    return [*made, ours("skim_rnn", shape, F.SkimRNN(), x, transition=F.SkimLSTM(min(5, shape.hidden)))]


def why_no_torch() -> str | None:
    """Return a line that explains why PyTorch cannot be measured; None if it can."""
    if find_spec("torch") is None:
        return 'PyTorch is not installed: its rows are left out (pip install -e ".[bench]").'
    if jax.default_backend() == "gpu":
        import torch

        if not torch.cuda.is_available():
            return "This PyTorch cannot use the GPU: its rows are left out."
    return None
