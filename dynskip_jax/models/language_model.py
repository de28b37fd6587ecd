"""The recurrent language model of Zaremba et al. (2014), with a time skip in each layer."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.functional.agent import ActionMode
from dynskip_jax.nn.cells import Initializer
from dynskip_jax.nn.linear import Linear
from dynskip_jax.nn.stack import SkipLSTMStack


class LanguageModelOutput(NamedTuple):
    """What the model says of each position.

    Attributes:
        logits: unnormalised log-probabilities of the next token, (batch, time, vocabulary).
        decisions: one trace per layer, bottom first.
    """

    logits: Float[Array, "batch time vocabulary"]
    decisions: tuple[F.Decision, ...]


class LanguageModel(nnx.Module):
    """Embedding, stacked LSTMs, softmax; embedding and state have the same size.

    Args:
        vocabulary_size: number of token ids.
        features: size of the embedding and of every layer's state.
        skips: the time skip of each layer, bottom first.
        dropout: rate on every layer's input and before the softmax (Zaremba et al. 2014, Section 3.2).
        dtype: in which matrices are multiplied, by default float32; all else is float32 (see `SkipLSTMCell`).
        weight_init: initializer of every weight and bias outside `cell_options`.
        cell_options: options of `SkipLSTMCell` for all layers, or one mapping for each.
        rngs: source of the initial parameters.
    """

    def __init__(
        self,
        vocabulary_size: int,
        features: int,
        skips: Sequence[F.TimeSkip],
        *,
        dropout: float = 0.0,
        dtype: Any = None,
        weight_init: Initializer,
        cell_options: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        rngs: nnx.Rngs,
    ):
        self.embedding = nnx.Embed(vocabulary_size, features, embedding_init=weight_init, rngs=rngs)
        self.stack = SkipLSTMStack(
            features, features, skips, dropout=dropout, dtype=dtype, cell_options=cell_options, rngs=rngs
        )
        self.softmax = Linear(
            features, vocabulary_size, dtype=dtype, kernel_init=weight_init, bias_init=weight_init, rngs=rngs
        )

    def initialize_carry(self, batch_size: int, key: Key[Array, "..."]) -> tuple[F.SkipCarry, ...]:
        """Returns each layer's initial carry for a batch of streams."""
        return self.stack.initialize_carry(batch_size, key)

    def __call__(
        self,
        carry: tuple[F.SkipCarry, ...],
        tokens: Int[Array, "batch time"],
        *,
        key: Key[Array, "..."] | None = None,
        actions: Sequence[Int[Array, "batch time"] | None] | None = None,
        mode: ActionMode = "sample",
        temperature: float | Float[Array, ""] = 1.0,
        mix: float | Float[Array, ""] | None = None,
        policy_mask: Bool[Array, "*batch_or_none K"] | None = None,
    ) -> tuple[tuple[F.SkipCarry, ...], LanguageModelOutput]:
        """Reads one segment of each stream.

        Args:
            carry: from `initialize_carry` or the segment before.
            tokens: token ids, (batch, time).
            key: for dropout, one or one per stream, (batch,); None switches it off.
            actions: for each layer the actions to be replayed, or None.
            mode: how agents choose.
            temperature: of attention and relaxations.
            mix: λ of every layer with an agent, in place of the skips' own.
            policy_mask: for every layer with an agent.

        Returns:
            The carry for the next segment, and the output.
        """
        carry, outputs = self.stack(
            carry,
            self.embedding(tokens),
            key=key,
            actions=actions,
            mode=mode,
            temperature=temperature,
            mix=mix,
            policy_mask=policy_mask,
        )
        return carry, LanguageModelOutput(self.softmax(outputs.h), outputs.decisions)
