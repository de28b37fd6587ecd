"""Classify sequences of symbols or words with stacked recurrent layers and a softmax on a pooled state."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.functional.checks import check_rates
from dynskip_jax.functional.keys import example_keys, fold_in_each, split_each
from dynskip_jax.functional.pooling import Pooling
from dynskip_jax.models.rare_words import forget_rare
from dynskip_jax.nn.calls import Rngs, require_key
from dynskip_jax.nn.layers import SkipLSTM, count_layers
from dynskip_jax.nn.linear import Linear


class ClassifierOutput(NamedTuple):
    """Output of `SequenceClassifier` and `SentencePairModel`.

    Attributes:
        logits: Unnormalised log-probabilities of the classes, (batch, classes).
        decisions: One trace per layer and direction, bottom first, each leaf (batch, time).
        observations: x(t) and h(t-1) of each layer and direction, of which s(t) in Eq. 1 consists,
            (batch, time, ...).
        states: Outputs of the top layer, (batch, time, features); None if the model does not return them.
    """

    logits: Float[Array, "batch classes"]
    decisions: tuple[F.DecisionTrace, ...]
    observations: tuple[tuple[Float[Array, "batch time in"], Float[Array, "batch time hidden"]], ...]
    states: Float[Array, "batch time features"] | None = None


class SequenceClassifier(nnx.Module):
    """Sequence classifier: one-hot or embedded symbols, recurrent layers, pooling, and a linear layer.

    The defaults are those of Gui et al. (2019): LSTM layers, and the last h of each sequence.

    Args:
        num_symbols: Number of input symbols.
        hidden_features: Size of the state of every layer.
        num_classes: Number of classes.
        skip: Time skip of every layer, or one for each layer, bottom first.
        embedding: Module that maps symbol ids to features and has an attribute `features`, their number, as
            `nnx.Embed` has. By default symbols are one-hot.
        num_positions: Size of a one-hot vector of the step number that is concatenated to the symbol. 0 for
            none (the paper), otherwise at least the length of the longest sequence.
        pooling: How the states are pooled into the vector to classify; see `functional.pool_states`.
        dropout: Dropout rate on every layer's input and before the linear layer, or one rate for each of
            these places, bottom first.
        word_dropout: Probability of dropping all features of a step's symbol. Its position is kept.
        unknown_rate: Probability of replacing a rare word by the unknown word in training; see `forget_rare`.
        num_frequent: Words with this id or a larger one are rare.
        dtype: Dtype of matrix multiplications, float32 by default. Everything else is float32.
        rngs: Source of the initial parameters.
        **rnn_options: Arguments of `SkipLSTM`, such as `num_layers`, `transition`, `depth_skip` and
            `bidirectional`.
    """

    def __init__(
        self,
        num_symbols: int,
        hidden_features: int,
        num_classes: int,
        skip: F.TimeSkip | Sequence[F.TimeSkip],
        *,
        embedding: nnx.Module | None = None,
        num_positions: int = 0,
        pooling: Pooling = "last",
        dropout: float | Sequence[float] = 0.0,
        word_dropout: float = 0.0,
        unknown_rate: float = 0.0,
        num_frequent: int = 0,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **rnn_options: Any,
    ):
        if isinstance(dropout, int | float):
            dropout = (dropout,) * (count_layers(rnn_options.get("num_layers"), skip=skip) + 1)
        check_rates("dropout", *dropout)
        check_rates("word_dropout", word_dropout)
        check_rates("unknown_rate", unknown_rate)
        self.num_symbols = num_symbols
        self.num_positions = num_positions
        self.embedding = nnx.data(embedding)
        self.pooling = pooling
        self.backward = hidden_features if rnn_options.get("bidirectional") else 0
        self.word_dropout = word_dropout
        self.unknown_rate, self.num_frequent = unknown_rate, num_frequent
        # The last dropout applies to the pooled vector, not to the states of each step.
        self.dropout = dropout[-1]
        self.stack = SkipLSTM(
            (num_symbols if embedding is None else embedding.features) + num_positions,
            hidden_features,
            skip=skip,
            dropout=(*dropout[:-1], 0.0),
            dtype=dtype,
            rngs=rngs,
            **rnn_options,
        )
        self.softmax = Linear(hidden_features + self.backward, num_classes, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        symbols: Int[Array, "batch time"],
        *,
        seq_lengths: Int[Array, " batch"] | None = None,
        actions: Sequence[Int[Array, "batch time"] | None] | None = None,
        policy: F.Policy | None = None,
        rngs: Rngs = None,
        weight_key: Key[Array, ""] | None = None,
        deterministic: bool | None = None,
    ) -> ClassifierOutput:
        """Classify a batch of sequences.

        Args:
            symbols: Symbol ids, (batch, time).
            seq_lengths: True lengths, (batch,).
            actions: Actions to replay for each layer and direction, or None for a layer that chooses.
            policy: How choices are made; by default greedy after `.eval()`, and sampled otherwise.
            rngs: Source of randomness for choices and dropout: a PRNG key, one per example, (batch,), an
                `nnx.Rngs` or a stream.
            weight_key: PRNG key for the cells' `weight_dropout`; by default it is derived from `rngs`.
            deterministic: Overrides the mode set by `.train()` and `.eval()`.
        """
        deterministic = self.stack.deterministic if deterministic is None else deterministic
        keys = (None, None)
        if not deterministic and (self.dropout or self.word_dropout or self.unknown_rate):
            own, rngs = split_each(require_key(rngs, "this classifier"), 2)
            own = example_keys(own, symbols.shape[:1])
            keys = split_each(own, 2)
            if self.unknown_rate:
                symbols = forget_rare(symbols, fold_in_each(own, 2), self.unknown_rate, self.num_frequent)
        outputs = self.stack(
            self._inputs(symbols, keys[0]),
            seq_lengths=seq_lengths,
            actions=actions,
            policy=policy,
            rngs=rngs,
            weight_key=weight_key,
            deterministic=deterministic,
        )
        logits = self.softmax(F.dropout(keys[1], self.dropout, self._pooled(outputs.h, seq_lengths)))
        return ClassifierOutput(logits, outputs.decisions, outputs.observations, outputs.h)

    def _inputs(self, symbols: Int[Array, "batch time"], keys: Key[Array, " batch"] | None) -> Array:
        x = jax.nn.one_hot(symbols, self.num_symbols) if self.embedding is None else self.embedding(symbols)
        if keys is not None and self.word_dropout:
            x = x * F.dropout_mask(keys, self.word_dropout, (*symbols.shape, 1), x.dtype)
        if self.num_positions:
            numbers = jnp.broadcast_to(jnp.arange(symbols.shape[1])[None], symbols.shape)
            x = jnp.concatenate([x, jax.nn.one_hot(numbers, self.num_positions)], axis=-1)
        return x

    def _pooled(
        self, h: Float[Array, "batch time features"], seq_lengths: Int[Array, " batch"] | None
    ) -> Float[Array, "batch features"]:
        if seq_lengths is None:
            where = jnp.ones(h.shape[:2], bool)
        else:
            where = F.length_mask(seq_lengths, h.shape[1])
        return F.pool_states(h, where, self.pooling, backward=self.backward)
