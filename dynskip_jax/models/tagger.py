"""Tag words with recurrent layers over word and character features, and a CRF or a softmax."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.checks import check_rates, check_whole
from dynskip_jax.functional.keys import example_keys, split_each
from dynskip_jax.functional.layers import Observations
from dynskip_jax.models.inputs import forget_rare
from dynskip_jax.nn.base import Linear, Weights
from dynskip_jax.nn.calls import Rngs, refuse
from dynskip_jax.nn.characters import CharFeatures
from dynskip_jax.nn.initializers import Initializer, by_size
from dynskip_jax.nn.layers import SkipRNN

Allowed = tuple[Any, Any, Any]
_lecun_normal = nnx.initializers.lecun_normal()


class TaggerOutput(NamedTuple):
    """Output of `Tagger`; decisions and observations are those of `SkipLayers`."""

    emissions: Float[Array, "batch time tags"]  # score of each tag; the logits of a softmax
    crf: F.CRFParams | None  # constrained by `allowed`; None with a softmax
    decisions: tuple[F.DecisionTrace, ...]
    observations: Observations


class Tagger(nnx.Module):
    """BiLSTM-CRF tagger (Huang et al. 2015) with optional time and depth skips.

    Time skips are those of Gui et al. (2019), depth skips those of Wu et al. (2016). The input of
    the layers is a concatenation: the embedding of the word (or of a gated window of words), its
    character features, the embedding of its capitalisation, and the embeddings of other columns.

    Args:
        num_words: Number of word ids; 0 is the unknown word.
        features: Size of the state of every layer, in each direction.
        skip: Time skip of every layer, or one for each layer, bottom first.
        embedding_features: Size d of a word embedding.
        word_init: Initializer of word embeddings, such as pretrained vectors; by default
            U(±√(3/d)).
        characters: Modules that compute features of a word from its characters; see
            `nn.characters`.
        capitals: Number of kinds of capitalisation, and size of their embedding; None for none.
        columns: For each other column: number of ids, of which 0 is unknown, and size of the
            embedding.
        window: Odd number of adjacent words whose embeddings are concatenated, each multiplied by a
            logistic gate. 1 for the word itself, without a gate.
        output: `crf`, or `softmax` for independent predictions at each step.
        allowed: Masks of the tags that may follow each other, come first and come last, as
            `data.tag_schemes.allowed_transitions` returns them. A CRF predicts only allowed
            sequences.
        dropout: Dropout rate on every layer's input and before the emissions, or one rate for each
            place.
        unknown_rate: Probability of replacing a rare word by the unknown word in training
            (`forget_rare`).
        num_frequent: Words with this id or a larger one are rare.
        dtype: Dtype of matrix multiplications, float32 by default. Everything else is float32.
        **rnn_options: Arguments of `SkipRNN`, such as `num_layers`, `transition` and `depth_skip`.
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
        capitals: tuple[int, int] | None = None,
        columns: Sequence[tuple[int, int]] = (),
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
        if check_whole("window", window) % 2 == 0:
            raise UserError(f"a window has a word in its middle: its size is odd, not {window}")
        if output not in ("crf", "softmax"):
            raise UserError(f"unknown output {output!r}: choose crf or softmax")
        check_rates("unknown_rate", unknown_rate)
        self.allowed = None
        if allowed is not None:
            self.allowed = tuple(map(_hashable, allowed))
        self.unknown_rate = unknown_rate
        self.num_frequent = num_frequent
        self.dtype = dtype

        def embedding(count: int, size: int, init: Initializer | None = None) -> nnx.Embed:
            return nnx.Embed(count, size, embedding_init=init or by_size(size), rngs=rngs)

        self.words = embedding(num_words, embedding_features, word_init)
        self.characters = nnx.List(list(characters))
        self.capitals = nnx.data(None if capitals is None else embedding(*capitals))
        self.columns = nnx.List([embedding(*column) for column in columns])

        # Features of a word: its window of embeddings, and those of all other modules.
        self.gates = nnx.data(None)
        if window > 1:
            w = _lecun_normal(rngs.params(), (window * embedding_features, window), jnp.float32)
            self.gates = Weights(F.WindowGates(w, jnp.zeros(window)))
        others = [*characters, *self.columns]
        if capitals is not None:
            others.append(self.capitals)
        size = window * embedding_features + sum(module.features for module in others)

        rnn_options |= dict(skip=skip, bidirectional=bidirectional, dropout=dropout, dtype=dtype)
        self.stack = SkipRNN(size, features, **rnn_options, rngs=rngs)
        self.emissions = Linear(
            features * self.stack.num_directions, num_tags, dtype=dtype, rngs=rngs
        )
        self.crf = nnx.data(None)
        if output == "crf":
            # At first, all sequences of tags have the same score.
            scores = F.CRFParams(
                jnp.zeros((num_tags, num_tags)), jnp.zeros(num_tags), jnp.zeros(num_tags)
            )
            self.crf = Weights(scores)

    def __call__(
        self,
        tokens: Any,
        *,
        seq_lengths: Int[Array, " batch"] | None = None,
        rngs: Rngs = None,
        deterministic: bool | None = None,
        **options: Any,
    ) -> TaggerOutput:
        """Compute the scores of all tags for a batch of sentences.

        Args:
            tokens: An object such as `data.vocabularies.TokenIds`: ids of `words`, (batch, time),
                of their `characters`, (batch, time, length), of their `capitals`, (batch, time),
                and of other `columns`, (batch, time, columns).
            seq_lengths: True lengths, (batch,).
            rngs: See `SkipLayers`, like the arguments that follow.
        """
        refuse("a tagger", options, "return_carry")
        if deterministic is None:
            deterministic = self.stack.deterministic

        # A row's own keys: one for its words, one for each module of characters, and the layers'.
        draws = self.unknown_rate or any(module.dropout for module in self.characters)
        character_keys = [None] * len(self.characters)
        if rngs is not None or (draws and not deterministic):
            keys = example_keys(self.stack.require_key(rngs, "this tagger"), tokens.words.shape[:1])
            words_key, *character_keys, rngs = split_each(keys, 2 + len(self.characters))

        words = tokens.words
        if self.unknown_rate and not deterministic:
            words = forget_rare(words, words_key, self.unknown_rate, self.num_frequent)
        embedded = self.words(words)
        if self.gates is not None:
            gates = F.cast_matrices(self.gates.read(), self.dtype or jnp.float32)
            embedded = F.gated_window(gates, embedded, seq_lengths)

        features = [embedded]
        for module, key in zip(self.characters, character_keys, strict=True):
            features.append(module(tokens.characters, key, deterministic=deterministic))
        if self.capitals is not None:
            features.append(self.capitals(tokens.capitals))
        for number, module in enumerate(self.columns):
            features.append(module(tokens.columns[..., number]))
        x = jnp.concatenate(features, axis=-1)

        options |= dict(seq_lengths=seq_lengths, rngs=rngs, deterministic=deterministic)
        outputs = self.stack(x, **options)
        return TaggerOutput(
            emissions=self.emissions(outputs.h),
            crf=self.crf_params(),
            decisions=outputs.decisions,
            observations=outputs.observations,
        )

    def crf_params(self) -> F.CRFParams | None:
        """Return the parameters of the CRF, constrained by `allowed`; None of a softmax."""
        if self.crf is None:
            return None
        params = self.crf.read()
        # The scores of forbidden transitions are constants: no gradient can bring them back.
        if self.allowed is None:
            return params
        return F.crf_constrain(params, *map(np.asarray, self.allowed))


def _hashable(mask: Any) -> Any:
    """Return an array of booleans as nested tuples, because static attributes are hashed."""
    if np.ndim(mask) == 0:
        return bool(mask)
    return tuple(map(_hashable, mask))
