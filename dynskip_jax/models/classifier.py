"""Classify sequences, or rate pairs of sentences: recurrent layers, pooled states and a softmax."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax import rl
from dynskip_jax.functional.checks import check_rates
from dynskip_jax.functional.keys import example_keys, fold_in_each, split_each
from dynskip_jax.functional.pooling import Pooling
from dynskip_jax.models.inputs import forget_rare
from dynskip_jax.nn.base import Linear
from dynskip_jax.nn.calls import Rngs, as_rates, refuse
from dynskip_jax.nn.layers import SkipLSTM, count_layers


class ClassifierOutput(NamedTuple):
    """Output of a classifier or a model of pairs; decisions and observations are those of
    `SkipLayers`.
    """

    logits: Float[Array, "batch classes"]  # unnormalised log-probabilities
    decisions: tuple[F.DecisionTrace, ...]
    observations: tuple[
        tuple[Float[Array, "batch time in"], Float[Array, "batch time hidden"]], ...
    ]
    states: Float[Array, "batch time features"] | None = None  # outputs of the top layer
    agent_loss = rl.agent_loss


class PooledModel(nnx.Module):
    """Base class of models that pool the states of recurrent layers into vectors.

    Args:
        in_features: Size of the layers' input.
        hidden_features: Size of the state of every layer.
        skip: Time skip of every layer, or one for each layer, bottom first.
        pooling: How states are pooled into a vector; see `functional.pool_states`.
        dropout: Dropout rate on every layer's input and on pooled vectors, or one rate for each of
            these places, bottom first.
        unknown_rate: Probability of replacing a rare word by the unknown word in training
            (`forget_rare`).
        num_frequent: Words with this id or a larger one are rare.
        word_dropout: Probability of dropping all features of a word. Its position is kept.
        dtype: Dtype of matrix multiplications, float32 by default. Everything else is float32.
        **rnn_options: Arguments of `SkipLSTM`, such as `num_layers`, `transition` and
            `bidirectional`.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        skip: F.TimeSkip | Sequence[F.TimeSkip],
        *,
        pooling: Pooling = "last",
        dropout: float | Sequence[float] = 0.0,
        unknown_rate: float = 0.0,
        num_frequent: int = 0,
        word_dropout: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **rnn_options: Any,
    ):
        refuse("a classifier", rnn_options, "time_major")
        check_rates("unknown_rate", unknown_rate)
        check_rates("word_dropout", word_dropout)
        # The last dropout applies to the pooled vector, not to the states of each step.
        *rates, self.dropout = as_rates(
            dropout, count_layers(rnn_options.get("num_layers"), skip=skip) + 1
        )
        self.pooling = pooling
        bidirectional, reverse = (
            bool(rnn_options.get(name)) for name in ("bidirectional", "reverse")
        )
        self.backward = hidden_features * (bidirectional or reverse)
        self.pooled_features = hidden_features * (1 + bidirectional)
        self.unknown_rate, self.num_frequent, self.word_dropout = (
            unknown_rate,
            num_frequent,
            word_dropout,
        )
        rnn_options |= dict(skip=skip, dropout=(*rates, 0.0), dtype=dtype)
        self.stack = SkipLSTM(in_features, hidden_features, **rnn_options, rngs=rngs)

    def read(
        self,
        tokens: Int[Array, "batch time"],
        embed: Callable[[Array, Any], Array],
        groups: Sequence[Bool[Array, "batch time"] | bool],
        *,
        seq_lengths: Int[Array, " batch"] | None,
        rngs: Rngs,
        deterministic: bool | None,
        **options: Any,
    ) -> tuple[list[Float[Array, "batch features"]], Any]:
        """Return the pooled states of each of at most two groups of steps, and the outputs of the
        layers.

        `embed` is a function of the tokens and of one key per row, or None, that returns the
        layers' inputs. All other arguments are those of the layers.
        """
        refuse("a classifier", options, "return_carry")
        deterministic = self.stack.deterministic if deterministic is None else deterministic
        keys, of_words = (None, None), None
        if not deterministic and (self.dropout or self.unknown_rate or self.word_dropout):
            own, rngs = split_each(self.stack.require_key(rngs, "this model"), 2)
            own = example_keys(own, tokens.shape[:1])
            keys, of_words = split_each(own, 2), fold_in_each(own, 3)
            if self.unknown_rate:
                tokens = forget_rare(
                    tokens, fold_in_each(own, 2), self.unknown_rate, self.num_frequent
                )
        options |= dict(seq_lengths=seq_lengths, rngs=rngs, deterministic=deterministic)
        outputs = self.stack(embed(tokens, of_words), **options)
        valid = jnp.ones(tokens.shape, bool)
        if seq_lengths is not None:
            valid = F.length_mask(seq_lengths, tokens.shape[1])
        pooled = [
            F.pool_states(outputs.h, valid & g, self.pooling, backward=self.backward)
            for g in groups
        ]
        dropped = zip(keys[-len(pooled) :], pooled, strict=True)
        return [F.dropout(key, self.dropout, vector) for key, vector in dropped], outputs

    def drop_words(
        self, x: Float[Array, "batch time features"], keys: Key[Array, " batch"] | None
    ) -> Float[Array, "batch time features"]:
        """Return embedded words, in training with word dropout; the keys are those that `read`
        passes.
        """
        if keys is None or not self.word_dropout:
            return x
        return x * F.dropout_mask(keys, self.word_dropout, (*x.shape[:2], 1), x.dtype)


class SequenceClassifier(PooledModel):
    """Sequence classifier: one-hot or embedded symbols, recurrent layers, pooling, and a linear
    layer.

    The defaults are those of Gui et al. (2019): LSTM layers, and the last h of each sequence.

    Args:
        num_symbols: Number of input symbols.
        num_classes: Number of classes.
        embedding: Module that maps symbol ids to features, as `nnx.Embed`. By default symbols are
            one-hot.
        num_positions: Size of a one-hot vector of the step number that is concatenated to the
            symbol. 0 for none (the paper), otherwise at least the length of the longest sequence.
        **options: All other arguments are those of `PooledModel` and `SkipLSTM`.
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
        dtype: Any = None,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        size = (num_symbols if embedding is None else embedding.features) + num_positions
        super().__init__(size, hidden_features, skip, dtype=dtype, rngs=rngs, **options)
        self.num_symbols, self.num_positions = num_symbols, num_positions
        self.embedding = nnx.data(embedding)
        self.softmax = Linear(self.pooled_features, num_classes, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        symbols: Int[Array, "batch time"],
        *,
        seq_lengths: Int[Array, " batch"] | None = None,
        rngs: Rngs = None,
        deterministic: bool | None = None,
        **options: Any,
    ) -> ClassifierOutput:
        """Classify a batch of sequences of symbol ids; all arguments are those of `SkipLayers`."""
        options |= dict(seq_lengths=seq_lengths, rngs=rngs, deterministic=deterministic)
        (pooled,), outputs = self.read(symbols, self._inputs, (True,), **options)
        return ClassifierOutput(
            self.softmax(pooled), outputs.decisions, outputs.observations, outputs.h
        )

    def _inputs(
        self, symbols: Int[Array, "batch time"], keys: Key[Array, " batch"] | None
    ) -> Array:
        x = (
            jax.nn.one_hot(symbols, self.num_symbols)
            if self.embedding is None
            else self.embedding(symbols)
        )
        x = self.drop_words(x, keys)
        if self.num_positions:
            numbers = jnp.broadcast_to(jnp.arange(symbols.shape[1])[None], symbols.shape)
            x = jnp.concatenate([x, jax.nn.one_hot(numbers, self.num_positions)], axis=-1)
        return x


class SentencePairModel(PooledModel):
    """Model of the similarity rating of two sentences.

    A row contains both sentences, and the layers read each one from the initial state. With the
    pooled states h₁ and h₂ of the two sentences,

        hₛ = ReLU(W^(x) (h₁ ⊙ h₂) + W^(+) |h₁ - h₂| + b^(h)),

    and the probabilities of the ratings are softmax(W^(p) hₛ + b^(p)). This is Tai et al. (2015),
    Eq. 15, with the activation function of the paper on untied LSTMs (its Eq. 22).

    Args:
        embedding: Module that maps token ids to features; see `SequenceClassifier`.
        num_ratings: Number of classes.
        similarity_features: Size of hₛ; 50 in the paper.
        **options: All other arguments are those of `PooledModel` and `SkipLSTM`.
    """

    def __init__(
        self,
        embedding: nnx.Module,
        hidden_features: int,
        num_ratings: int,
        skip: F.TimeSkip | Sequence[F.TimeSkip],
        *,
        similarity_features: int = 50,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        super().__init__(
            embedding.features, hidden_features, skip, dtype=dtype, rngs=rngs, **options
        )
        self.embedding = embedding
        features, how = self.pooled_features, dict(dtype=dtype, rngs=rngs)
        self.product = Linear(features, similarity_features, **how)
        self.difference = Linear(features, similarity_features, use_bias=False, **how)
        self.softmax = Linear(similarity_features, num_ratings, **how)

    def __call__(
        self,
        inputs: Mapping[str, Int[Array, "batch time"]],
        *,
        seq_lengths: Int[Array, " batch"] | None = None,
        rngs: Rngs = None,
        deterministic: bool | None = None,
        **options: Any,
    ) -> ClassifierOutput:
        """Compare the two sentences of each row; the logits are those of the ratings.

        `inputs` are batches of `data.sentences.pair_inputs`: `tokens`, the ids of both sentences,
        and `sentences`, 0 for those of the first and 1 for those of the second.
        """
        tokens, sentences = inputs["tokens"], inputs["sentences"]
        options |= dict(seq_lengths=seq_lengths, rngs=rngs, deterministic=deterministic)
        groups, options = (sentences == 0, sentences == 1), options | dict(segment_ids=sentences)

        def embed(tokens: Array, keys: Any) -> Array:
            return self.drop_words(self.embedding(tokens), keys)

        (first, second), outputs = self.read(tokens, embed, groups, **options)
        hidden = jax.nn.relu(
            self.product(first * second) + self.difference(jnp.abs(first - second))
        )
        return ClassifierOutput(
            self.softmax(hidden), outputs.decisions, outputs.observations, outputs.h
        )
