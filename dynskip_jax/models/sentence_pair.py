"""How alike two sentences are: one stack reads both, and a ReLU layer compares (Tai et al. 2015)."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.functional.keys import example_keys, fold_in_each, split_each
from dynskip_jax.functional.pooling import Pooling
from dynskip_jax.models.classifier import ClassifierOutput
from dynskip_jax.models.rare_words import check_unknown_rate, forget_rare
from dynskip_jax.nn.calls import Rngs, require_key
from dynskip_jax.nn.layers import SkipLSTM, count_layers
from dynskip_jax.nn.linear import Linear


class SentencePairModel(nnx.Module):
    """Reads two sentences in one row, each from the initial state, and says which rating they have.

    With h₁ and h₂ what was made of the two, hₛ = ReLU(W^(x) (h₁ ⊙ h₂) + W^(+) |h₁ - h₂| + b^(h)), and the
    ratings' probabilities are softmax(W^(p) hₛ + b^(p)). That of Tai et al. (2015), Eq. 15, with the
    activation of the paper on untied LSTMs (its Eq. 22).

    Args:
        embedding: maps token ids to features and says how many (`.features`), as `nnx.Embed` does.
        hidden_features: size of every layer's state.
        num_ratings: number of classes.
        skip: the time skip of every layer, or one for each layer, bottom first.
        similarity_features: size of hₛ; the paper's is 50.
        pooling: which vector of a sentence's states h₁ and h₂ are; see `functional.pool_states`.
        dropout: rate on every layer's input and on h₁ and h₂, or one rate for each of these places.
        unknown_rate: how often a rare word is read as the unknown one in training; see `forget_rare`.
        num_frequent: words from this id on are rare ones.
        dtype: dtype in which matrices are multiplied; float32 by default. All else is float32.
        rngs: source of the initial parameters.
        **rnn_options: arguments of `SkipLSTM`, such as `num_layers`, `transition`, `depth_skip`,
            `bidirectional` and `dtype`.
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
        self.embedding = embedding
        self.pooling = pooling
        self.backward = hidden_features if rnn_options.get("bidirectional") else 0
        self.dropout = dropout[-1]
        check_unknown_rate(unknown_rate)
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
        """Compares the two sentences of each row.

        Args:
            tokens: ids of the first sentence and then of the second, (batch, time).
            sentences: 0 at tokens of the first, 1 at those of the second, (batch, time).
            seq_lengths: lengths of both together, (batch,).
            actions: for each layer and direction the actions to be replayed, or None.
            policy: how choices are made; by default greedy after `.eval()`, and sampled otherwise.
            rngs: for choices and dropout: a PRNG key, one per row, (batch,), an `nnx.Rngs` or a stream.
            weight_key: one PRNG key for the cells' `weight_dropout`, in place of one made of `rngs`.
            deterministic: overrides what `.train()` and `.eval()` say.
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
    """Returns p over 1..R with mean y: on ⌊y⌋ and ⌊y⌋ + 1 alone (Tai et al. 2015, Eq. 16).

    Args:
        ratings: y in [1, R], (batch,).
        num_ratings: R.
    """
    distance = jnp.abs(ratings[:, None] - jnp.arange(1, num_ratings + 1)[None, :])
    return jnp.maximum(1 - distance, 0)
