"""Classify sequences, or rate pairs of sentences: recurrent layers, pooled states and a softmax."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.functional.checks import check_rates
from dynskip_jax.functional.keys import example_keys, fold_in_each, split_each
from dynskip_jax.functional.layers import Observations
from dynskip_jax.functional.pooling import Pooling
from dynskip_jax.models.inputs import forget_rare
from dynskip_jax.nn.base import Linear
from dynskip_jax.nn.calls import Rngs, as_rates, refuse
from dynskip_jax.nn.layers import LayersOutput, SkipRNN, count_layers


class ClassifierOutput(NamedTuple):
    """Output of a classifier or a model of pairs; all but the logits is from the layers."""

    logits: Float[Array, "batch classes"]  # unnormalised log-probabilities
    decisions: tuple[F.DecisionTrace, ...]
    observations: Observations
    states: Float[Array, "batch time features"] | None = None  # outputs of the top layer


class PooledModel(nnx.Module):
    """Base class of models that pool the states of recurrent layers into vectors.

    Args:
        skip: Time skip of every layer, or one for each layer, bottom first.
        pooling: How states are pooled into a vector; see `functional.pool_states`.
        dropout: Dropout rate on every layer's input and on pooled vectors, or one rate for each of
            these places, bottom first.
        unknown_rate: Probability of replacing a rare word by the unknown word in training
            (`forget_rare`).
        num_frequent: Words with this id or a larger one are rare.
        word_dropout: Probability of dropping all features of a word. Its position is kept.
        dtype: Dtype of matrix multiplications, float32 by default. Everything else is float32.
        **rnn_options: Arguments of `SkipRNN`, such as `num_layers`, `transition` and
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
        check_rates("unknown_rate", unknown_rate)
        check_rates("word_dropout", word_dropout)
        self.pooling = pooling
        self.unknown_rate = unknown_rate
        self.num_frequent = num_frequent
        self.word_dropout = word_dropout

        # The last dropout applies to the pooled vector, not to the states of each step.
        depth = count_layers(rnn_options.get("num_layers"), skip=skip)
        *rates, self.dropout = as_rates(dropout, depth + 1)
        rnn_options |= dict(skip=skip, dropout=(*rates, 0.0), dtype=dtype)
        self.stack = SkipRNN(in_features, hidden_features, **rnn_options, rngs=rngs)

        # Features of the backward direction end at the first step of a sequence.
        bidirectional = bool(rnn_options.get("bidirectional"))
        reverse = bool(rnn_options.get("reverse"))
        self.backward = hidden_features * (bidirectional or reverse)
        self.pooled_features = hidden_features * (1 + bidirectional)

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
    ) -> tuple[list[Float[Array, "batch features"]], LayersOutput]:
        """Return the pooled states of one or two groups of steps, and the outputs of the layers.

        `embed` is a function of the tokens and of one key per row, or None, that returns the
        layers' inputs. All other arguments are those of the layers.
        """
        refuse("a classifier", options, "return_carry")
        if deterministic is None:
            deterministic = self.stack.deterministic

        # The first two keys of a row, 0 and 1, are those of groups; other draws fold in 2 and 3.
        group_keys = (None, None)
        word_keys = None
        if not deterministic and (self.dropout or self.unknown_rate or self.word_dropout):
            key, rngs = split_each(self.stack.require_key(rngs, "this model"), 2)
            row_keys = example_keys(key, tokens.shape[:1])
            group_keys = split_each(row_keys, 2)
            word_keys = fold_in_each(row_keys, 3)
            if self.unknown_rate:
                rare_keys = fold_in_each(row_keys, 2)
                tokens = forget_rare(tokens, rare_keys, self.unknown_rate, self.num_frequent)

        options |= dict(seq_lengths=seq_lengths, rngs=rngs, deterministic=deterministic)
        outputs = self.stack(embed(tokens, word_keys), **options)

        is_valid = jnp.ones(tokens.shape, bool)
        if seq_lengths is not None:
            is_valid = F.length_mask(seq_lengths, tokens.shape[1])
        pooled = [
            F.pool_states(outputs.h, is_valid & group, self.pooling, backward=self.backward)
            for group in groups
        ]
        keys = group_keys[-len(groups) :]
        vectors = zip(keys, pooled, strict=True)
        return [F.dropout(key, self.dropout, vector) for key, vector in vectors], outputs

    def drop_words(
        self, x: Float[Array, "batch time features"], keys: Key[Array, " batch"] | None
    ) -> Float[Array, "batch time features"]:
        """Return embedded words with word dropout; `keys` are those that `read` passes."""
        if keys is None or not self.word_dropout:
            return x
        # One factor for all features of a word.
        return x * F.dropout_mask(keys, self.word_dropout, (*x.shape[:2], 1), x.dtype)


class SequenceClassifier(PooledModel):
    """Classifier of sequences of symbols: recurrent layers, pooling, and a linear layer.

    The defaults are those of Gui et al. (2019): LSTM layers, and the last h of each sequence.

    Args:
        embedding: Module that maps symbol ids to features, as `nnx.Embed`. By default symbols are
            one-hot.
        num_positions: Size of a one-hot vector of the step number that is concatenated to the
            symbol. 0 for none (the paper), otherwise at least the length of the longest sequence.
        **options: All other arguments are those of `PooledModel` and `SkipRNN`.
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
        size = num_symbols
        if embedding is not None:
            size = embedding.features
        super().__init__(
            size + num_positions, hidden_features, skip, dtype=dtype, rngs=rngs, **options
        )
        self.num_symbols = num_symbols
        self.num_positions = num_positions
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
        logits = self.softmax(pooled)
        return ClassifierOutput(logits, outputs.decisions, outputs.observations, outputs.h)

    def _inputs(
        self, symbols: Int[Array, "batch time"], keys: Key[Array, " batch"] | None
    ) -> Array:
        """Return the layers' inputs, (batch, time, features)."""
        if self.embedding is None:
            x = jax.nn.one_hot(symbols, self.num_symbols)
        else:
            x = self.embedding(symbols)
        x = self.drop_words(x, keys)
        if self.num_positions:
            # The position of a dropped word is kept.
            steps = jnp.broadcast_to(jnp.arange(symbols.shape[1])[None], symbols.shape)
            x = jnp.concatenate([x, jax.nn.one_hot(steps, self.num_positions)], axis=-1)
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
        similarity_features: Size of hₛ; 50 in the paper.
        **options: All other arguments are those of `PooledModel` and `SkipRNN`.
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
        features = self.pooled_features
        options_of_linear = dict(dtype=dtype, rngs=rngs)
        self.product = Linear(features, similarity_features, **options_of_linear)
        self.difference = Linear(features, similarity_features, use_bias=False, **options_of_linear)
        self.softmax = Linear(similarity_features, num_ratings, **options_of_linear)

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
        sentences = inputs["sentences"]
        groups = (sentences == 0, sentences == 1)

        def embed(tokens: Array, keys: Any) -> Array:
            return self.drop_words(self.embedding(tokens), keys)

        # Each sentence is read from the initial state, as a packed sequence of the row.
        options |= dict(seq_lengths=seq_lengths, segment_ids=sentences)
        options |= dict(rngs=rngs, deterministic=deterministic)
        (h_1, h_2), outputs = self.read(inputs["tokens"], embed, groups, **options)

        # Eq. 15, with ReLU instead of σ (Eq. 22).
        h_s = jax.nn.relu(self.product(h_1 * h_2) + self.difference(jnp.abs(h_1 - h_2)))
        logits = self.softmax(h_s)
        return ClassifierOutput(logits, outputs.decisions, outputs.observations, outputs.h)
