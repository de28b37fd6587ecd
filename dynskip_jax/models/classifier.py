"""A sequence classifier: stacked LSTMs with time skips, and a softmax on the last state."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from dynskip_jax import functional as F
from dynskip_jax.nn.linear import Linear
from dynskip_jax.nn.stack import SkipStack


class ClassifierOutput(NamedTuple):
    """What the model says of each sequence.

    Attributes:
        logits: unnormalised log-probabilities of the classes, (batch, classes).
        decisions: one trace per layer, bottom first, each leaf (batch, time).
        observations: for each layer the x(t) and the h(t-1) of s(t) in Eq. 1, (batch, time, ...).
    """

    logits: Float[Array, "batch classes"]
    decisions: tuple[F.Decision, ...]
    observations: tuple[tuple[Float[Array, "batch time in"], Float[Array, "batch time hidden"]], ...]


class SequenceClassifier(nnx.Module):
    """One-hot symbols, stacked LSTMs, and a linear layer on each sequence's last h (Gui et al. 2019).

    Args:
        num_symbols: number of input symbols.
        hidden_features: size of every layer's state.
        num_classes: number of classes.
        skips: the time skip of each layer, bottom first.
        transition: the transition of every layer, or one for each.
        depth_skip: what each layer receives from further below; see `SkipStack`.
        num_positions: of how many steps the number is told beside the symbol, as a one-hot vector too: 0 for
            symbols alone (the paper), or at least the length of the longest sequence.
        dropout: rate on every layer's input and before the linear layer.
        dtype: in which matrices are multiplied, by default float32; all else is float32 (see `SkipCell`).
        cell_options: options of `SkipCell` for all layers, or one mapping for each.
        rngs: source of the initial parameters.
    """

    def __init__(
        self,
        num_symbols: int,
        hidden_features: int,
        num_classes: int,
        skips: Sequence[F.TimeSkip],
        *,
        transition: F.Transition | Sequence[F.Transition] = F.LSTM(),  # noqa: B008 (immutable)
        depth_skip: F.DepthSkip | None = None,
        num_positions: int = 0,
        dropout: float = 0.0,
        dtype: Any = None,
        cell_options: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        rngs: nnx.Rngs,
    ):
        self.num_symbols = num_symbols
        self.num_positions = num_positions
        self.stack = SkipStack(
            num_symbols + num_positions,
            hidden_features,
            skips,
            transition=transition,
            depth_skip=depth_skip,
            dropout=dropout,
            dtype=dtype,
            cell_options=cell_options,
            rngs=rngs,
        )
        self.softmax = Linear(hidden_features, num_classes, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        symbols: Int[Array, "batch time"],
        *,
        seq_lengths: Int[Array, " batch"] | None = None,
        actions: Sequence[Int[Array, "batch time"] | None] | None = None,
        policy: F.Policy | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
        deterministic: bool | None = None,
    ) -> ClassifierOutput:
        """Classifies a batch of sequences.

        Args:
            symbols: symbol ids, (batch, time).
            seq_lengths: true lengths, (batch,).
            actions: for each layer the actions to be replayed, or None.
            policy: how choices are made; by default greedy after `.eval()`, and sampled otherwise.
            rngs: for choices and dropout: a PRNG key, one per example, (batch,), an `nnx.Rngs` or a stream.
            deterministic: overrides what `.train()` and `.eval()` say.
        """
        x = jax.nn.one_hot(symbols, self.num_symbols)
        if self.num_positions:
            numbers = jnp.broadcast_to(jnp.arange(symbols.shape[1])[None], symbols.shape)
            x = jnp.concatenate([x, jax.nn.one_hot(numbers, self.num_positions)], axis=-1)
        outputs = self.stack(
            x,
            seq_lengths=seq_lengths,
            actions=actions,
            policy=policy,
            rngs=rngs,
            deterministic=deterministic,
        )
        logits = self.softmax(F.last_valid(outputs.h, seq_lengths))
        return ClassifierOutput(logits, outputs.decisions, outputs.observations)
