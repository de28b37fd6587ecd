"""Rate the similarity of two sentences: one recurrent stack and a comparison layer (Tai et al. 2015)."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.functional.checks import check_rates
from dynskip_jax.functional.keys import example_keys, fold_in_each, split_each
from dynskip_jax.functional.pooling import Pooling
from dynskip_jax.models.classifier import ClassifierOutput
from dynskip_jax.models.rare_words import forget_rare
from dynskip_jax.nn.calls import Rngs, require_key
from dynskip_jax.nn.layers import SkipLSTM, count_layers
from dynskip_jax.nn.linear import Linear


class SentencePairModel(nnx.Module):
    """Model of the similarity rating of two sentences.

    A row contains both sentences, and the layers read each one from the initial state. With the pooled states
    h₁ and h₂ of the two sentences,

        hₛ = ReLU(W^(x) (h₁ ⊙ h₂) + W^(+) |h₁ - h₂| + b^(h)),

    and the probabilities of the ratings are softmax(W^(p) hₛ + b^(p)). This is Tai et al. (2015), Eq. 15,
    with the activation function of the paper on untied LSTMs (its Eq. 22).

    Args:
        embedding: Module that maps token ids to features and has an attribute `features`, their number, as
            `nnx.Embed` has.
        hidden_features: Size of the state of every layer.
        num_ratings: Number of classes.
        skip: Time skip of every layer, or one for each layer, bottom first.
        similarity_features: Size of hₛ; 50 in the paper.
        pooling: How the states of a sentence are pooled into h₁ or h₂; see `functional.pool_states`.
        dropout: Dropout rate on every layer's input and on h₁ and h₂, or one rate for each of these places,
            bottom first.
        unknown_rate: Probability of replacing a rare word by the unknown word in training; see `forget_rare`.
        num_frequent: Words with this id or a larger one are rare.
        dtype: Dtype of matrix multiplications, float32 by default. Everything else is float32.
        rngs: Source of the initial parameters.
        **rnn_options: Arguments of `SkipLSTM`, such as `num_layers`, `transition`, `depth_skip` and
            `bidirectional`.
    """

    def __init__(
        self,
        embedding: nnx.Module,
        hidden_features: int,
        num_ratings: int,
        skip: F.TimeSkip | Sequence[F.TimeSkip],
        *,
        similarity_features: int = 50,
        pooling: Pooling = "last",
        dropout: float | Sequence[float] = 0.0,
        unknown_rate: float = 0.0,
        num_frequent: int = 0,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **rnn_options: Any,
    ):
        if isinstance(dropout, int | float):
            dropout = (dropout,) * (count_layers(rnn_options.get("num_layers"), skip=skip) + 1)
        check_rates("dropout", *dropout)
        check_rates("unknown_rate", unknown_rate)
        self.embedding = embedding
        self.pooling = pooling
        self.backward = hidden_features if rnn_options.get("bidirectional") else 0
        self.dropout = dropout[-1]
        self.unknown_rate, self.num_frequent = unknown_rate, num_frequent
        self.stack = SkipLSTM(
            embedding.features,
            hidden_features,
            skip=skip,
            dropout=(*dropout[:-1], 0.0),
            dtype=dtype,
            rngs=rngs,
            **rnn_options,
        )
        features = hidden_features + self.backward
        self.product = Linear(features, similarity_features, dtype=dtype, rngs=rngs)
        self.difference = Linear(features, similarity_features, use_bias=False, dtype=dtype, rngs=rngs)
        self.softmax = Linear(similarity_features, num_ratings, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        tokens: Int[Array, "batch time"],
        sentences: Int[Array, "batch time"],
        *,
        seq_lengths: Int[Array, " batch"] | None = None,
        actions: Sequence[Int[Array, "batch time"] | None] | None = None,
        policy: F.Policy | None = None,
        rngs: Rngs = None,
        weight_key: Key[Array, ""] | None = None,
        deterministic: bool | None = None,
    ) -> ClassifierOutput:
        """Compare the two sentences of each row.

        Args:
            tokens: Token ids of the first sentence, followed by those of the second, (batch, time).
            sentences: 0 at tokens of the first sentence, 1 at tokens of the second, (batch, time).
            seq_lengths: Total lengths of both sentences, (batch,).
            actions: Actions to replay for each layer and direction, or None for a layer that chooses.
            policy: How choices are made; by default greedy after `.eval()`, and sampled otherwise.
            rngs: Source of randomness for choices and dropout: a PRNG key, one per row, (batch,), an
                `nnx.Rngs` or a stream.
            weight_key: PRNG key for the cells' `weight_dropout`; by default it is derived from `rngs`.
            deterministic: Overrides the mode set by `.train()` and `.eval()`.

        Returns:
            The output, whose `logits` are those of the ratings, (batch, ratings).
        """
        deterministic = self.stack.deterministic if deterministic is None else deterministic
        keys = (None, None)
        if not deterministic and (self.dropout or self.unknown_rate):
            own, rngs = split_each(require_key(rngs, "this model"), 2)
            own = example_keys(own, tokens.shape[:1])
            keys = split_each(own, 2)
            if self.unknown_rate:
                tokens = forget_rare(tokens, fold_in_each(own, 2), self.unknown_rate, self.num_frequent)
        outputs = self.stack(
            self.embedding(tokens),
            seq_lengths=seq_lengths,
            segment_ids=sentences,
            actions=actions,
            policy=policy,
            rngs=rngs,
            weight_key=weight_key,
            deterministic=deterministic,
        )
        valid = jnp.ones(tokens.shape, bool)
        if seq_lengths is not None:
            valid = F.length_mask(seq_lengths, tokens.shape[1])
        first, second = (
            F.dropout(
                key,
                self.dropout,
                F.pool_states(outputs.h, valid & (sentences == number), self.pooling, backward=self.backward),
            )
            for number, key in enumerate(keys)
        )
        similarity = self.product(first * second) + self.difference(jnp.abs(first - second))
        logits = self.softmax(jax.nn.relu(similarity))
        return ClassifierOutput(logits, outputs.decisions, outputs.observations, outputs.h)


def rating_distribution(ratings: Float[Array, " batch"], num_ratings: int) -> Float[Array, "batch ratings"]:
    """Return the distribution over the ratings 1..R with mean y (Tai et al. 2015, Eq. 16).

    Only ⌊y⌋ and ⌊y⌋ + 1 have nonzero probability.

    Args:
        ratings: y in [1, R], (batch,).
        num_ratings: R.
    """
    distance = jnp.abs(ratings[:, None] - jnp.arange(1, num_ratings + 1)[None, :])
    return jnp.maximum(1 - distance, 0)
