"""A tagger: words and their characters, stacked recurrent layers in both directions, a CRF or a softmax."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.keys import example_keys, split_each
from dynskip_jax.models.rare_words import check_unknown_rate, forget_rare
from dynskip_jax.nn.calls import Rngs, require_key
from dynskip_jax.nn.cells import Initializer
from dynskip_jax.nn.char_features import CharFeatures, by_size
from dynskip_jax.nn.layers import SkipLSTM
from dynskip_jax.nn.linear import Linear
from dynskip_jax.nn.weights import Weights

Allowed = tuple[Any, Any, Any]
_lecun_normal = nnx.initializers.lecun_normal()


@runtime_checkable
class Tokens(Protocol):
    """Ids of a batch of words, such as `data.tagger_vocabulary.TokenIds`.

    Attributes:
        words: ids of the words, (batch, time).
        characters: ids of their characters, (batch, time, length).
        capitals: their capitalisation, (batch, time).
        columns: ids of what stands beside them, (batch, time, columns).
    """

    words: Any
    characters: Any
    capitals: Any
    columns: Any


class TaggerOutput(NamedTuple):
    """What the model says of each sentence.

    Attributes:
        emissions: the score of each tag at each step, (batch, time, tags): of a softmax its logits.
        crf: the scores of transitions, first and last tags, constrained; None with a softmax.
        decisions: one trace for each layer and direction, as `SkipLayers` returns them.
        observations: for each layer and direction the x(t) and the h(t-1) of s(t) in Eq. 1.
    """

    emissions: Float[Array, "batch time tags"]
    crf: F.CRFParams | None
    decisions: tuple[F.DecisionTrace, ...]
    observations: tuple[tuple[Float[Array, "batch time in"], Float[Array, "batch time hidden"]], ...]


class Tagger(nnx.Module):
    """A BiLSTM-CRF (Huang et al. 2015) whose layers may skip over time and depth (Gui et al. 2019; Wu et al.
    2016).

    A token is its word's embedding (in a gated window, if asked for), beside what is made of its characters,
    the embedding of its capitalisation, and of what other columns have beside it.

    Args:
        num_words: ids of words; 0 is the unknown one.
        num_tags: number of tags.
        features: size of every layer's state, in each direction.
        skip: the time skip of every layer, or one for each layer, bottom first.
        bidirectional: whether there are two directions.
        embedding_features: d, size of a word's embedding.
        word_init: its initializer, such as one that returns pretrained vectors; by default U(±√(3/d)).
        characters: modules that make features of words from their characters, see `nn.char_features`.
        num_capitals: number of kinds of capitalisation.
        capital_features: size of their embedding; 0 for none.
        column_sizes: of each other column the number of its ids; 0 is the unknown one.
        column_features: size of their embeddings.
        window: how many words stand side by side, each with a logistic gate; 1 for the word alone.
        output: `crf`, or `softmax` for each step by itself.
        allowed: masks of the tags that may follow each other, come first and come last, which no predicted
            sequence of a CRF breaks; None allows all. `data.tag_schemes.allowed_transitions` makes them.
        dropout: rate on each layer's input and before the emissions, or one for each place; see `SkipLayers`.
        unknown_rate: how often a rare word is read as the unknown one in training, so that this has a use
            (Lample et al. 2016).
        num_frequent: words from this id on are rare ones.
        dtype: dtype in which matrices are multiplied; float32 by default. All else is float32.
        rngs: source of the initial parameters.
        **rnn_options: arguments of `SkipLSTM`, such as `num_layers`, `transition`,
            `depth_skip` and `forget_bias`.

    Attributes:
        stack: the recurrent layers.
    """

    def __init__(
        self,
        num_words: int,
        num_tags: int,
        features: int,
        skip: F.TimeSkip | Sequence[F.TimeSkip],
        *,
        bidirectional: bool = True,
        embedding_features: int = 100,
        word_init: Initializer | None = None,
        characters: Sequence[CharFeatures] = (),
        num_capitals: int = 0,
        capital_features: int = 0,
        column_sizes: Sequence[int] = (),
        column_features: int = 20,
        window: int = 1,
        output: Literal["crf", "softmax"] = "crf",
        allowed: Allowed | None = None,
        dropout: float | Sequence[float] = 0.0,
        unknown_rate: float = 0.0,
        num_frequent: int = 0,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **rnn_options: Any,
    ):
        if window < 1 or window % 2 == 0:
            raise UserError(f"a window has a word in its middle: its size is odd, not {window}")
        if output not in ("crf", "softmax"):
            raise UserError(f"unknown output {output!r}: choose crf or softmax")
        check_unknown_rate(unknown_rate)
        self.num_tags, self.is_crf = num_tags, output == "crf"
        self.allowed = None if allowed is None else F.CRFMasks.of(*allowed)
        self.unknown_rate, self.num_frequent, self.dtype = unknown_rate, num_frequent, dtype
        self.words = nnx.Embed(
            num_words, embedding_features, embedding_init=word_init or by_size(embedding_features), rngs=rngs
        )
        self.characters = nnx.List(list(characters))
        self.capitals = nnx.data(None)
        if capital_features:
            self.capitals = nnx.Embed(
                num_capitals, capital_features, embedding_init=by_size(capital_features), rngs=rngs
            )
        self.columns = nnx.List(
            [
                nnx.Embed(count, column_features, embedding_init=by_size(column_features), rngs=rngs)
                for count in column_sizes
            ]
        )
        self.gates = nnx.data(None)
        if window > 1:
            w = _lecun_normal(rngs.params(), (window * embedding_features, window), jnp.float32)
            self.gates = Weights(F.WindowGates(w, jnp.zeros(window)))
        size = window * embedding_features + sum(module.features for module in characters) + capital_features
        size += len(column_sizes) * column_features
        self.stack = SkipLSTM(
            size,
            features,
            skip=skip,
            bidirectional=bidirectional,
            dropout=dropout,
            dtype=dtype,
            rngs=rngs,
            **rnn_options,
        )
        self.emissions = Linear(features * self.stack.num_directions, num_tags, dtype=dtype, rngs=rngs)
        self.crf = nnx.data(None)
        if self.is_crf:
            zeros = F.CRFParams(jnp.zeros((num_tags, num_tags)), jnp.zeros(num_tags), jnp.zeros(num_tags))
            self.crf = Weights(zeros)

    def __call__(
        self,
        tokens: Tokens,
        *,
        seq_lengths: Int[Array, " batch"] | None = None,
        actions: Sequence[Int[Array, "batch time"] | None] | None = None,
        policy: F.Policy | None = None,
        rngs: Rngs = None,
        deterministic: bool | None = None,
    ) -> TaggerOutput:
        """Reads a batch of sentences.

        Args:
            tokens: ids of words, (batch, time), of their characters, (batch, time, length), of their
                capitalisation, (batch, time), and of other columns, (batch, time, columns).
            seq_lengths: true lengths, (batch,).
            actions: for each layer and direction the actions to be replayed, or None.
            policy: how choices are made; by default greedy after `.eval()`, and sampled otherwise.
            rngs: for choices and dropout: a PRNG key, one for each sentence, (batch,), an `nnx.Rngs` or a
                stream.
            deterministic: overrides what `.train()` and `.eval()` say.
        """
        deterministic = self.stack.deterministic if deterministic is None else deterministic
        batch, num_own = tokens.words.shape[:1], 1 + len(self.characters)
        keys = None
        if rngs is not None:
            keys = split_each(example_keys(require_key(rngs, "this tagger"), batch), num_own + 1)
        elif not deterministic and (self.unknown_rate or any(m.dropout for m in self.characters)):
            require_key(None, "this tagger")  # raises
        words = tokens.words
        if self.unknown_rate and not deterministic:
            words = forget_rare(words, keys[0], self.unknown_rate, self.num_frequent)
        x = [self.words(words)]
        if self.gates is not None:
            x = [F.gated_window(self.gates.read(self.dtype), x[0], seq_lengths)]
        for number, module in enumerate(self.characters, 1):
            key = None if keys is None else keys[number]
            x.append(module(tokens.characters, key, deterministic=deterministic))
        if self.capitals is not None:
            x.append(self.capitals(tokens.capitals))
        for number, module in enumerate(self.columns):
            x.append(module(tokens.columns[..., number]))
        outputs = self.stack(
            jnp.concatenate(x, axis=-1),
            seq_lengths=seq_lengths,
            actions=actions,
            policy=policy,
            rngs=None if keys is None else keys[-1],
            deterministic=deterministic,
        )
        emissions = self.emissions(outputs.h)
        return TaggerOutput(emissions, self.crf_params(), outputs.decisions, outputs.observations)

    def crf_params(self) -> F.CRFParams | None:
        """Returns what the CRF scores beside emissions, under the rules of the scheme; None without one."""
        if self.crf is None:
            return None
        params = self.crf.read()
        return params if self.allowed is None else F.crf_constrain(params, *self.allowed.arrays())
