"""Represent words by their characters: an embedding, and features to stand beside one.

Words are given as character ids, with 0 as padding at the end. Every other id, including that of
unknown characters, has a trained embedding.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int
from typing_extensions import override

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.char_cnn import CharFilters, HighwayParams, char_cnn, highway
from dynskip_jax.functional.checks import check_rates, check_whole
from dynskip_jax.nn.base import HasModes
from dynskip_jax.nn.calls import Rngs, require_key
from dynskip_jax.nn.initializers import Initializer, by_size

_glorot = nnx.initializers.glorot_uniform()
_GATE_BIAS = -2.0  # at first, highway layers copy most of their input


def _check_sizes(**sizes: int | Sequence[int]) -> None:
    """Check sizes, or sequences of sizes, of these names."""
    for name, given in sizes.items():
        if not isinstance(given, Sequence):
            given = [given]
        for size in given:
            check_whole(name, size)


def _with_padding(table: Float[Array, "ids char"]) -> Float[Array, "ids_and_padding char"]:
    """Return the table with zeros as row 0, which stands for padding."""
    # Padding is no parameter, so that it is neither trained nor decayed.
    return jnp.concatenate([jnp.zeros_like(table[:1]), table])


def _params(arrays: Sequence[Array]) -> nnx.List:
    return nnx.List([nnx.Param(array) for array in arrays])


class CharEmbedding(nnx.Module):
    """Word embedding by a convolution over characters and highway layers (Kim et al. 2016).

    It replaces `nnx.Embed`. The defaults are the paper's large model (its Table 2). The small model
    has widths 1 to 6, maps (25, 50, 75, 100, 125, 150) and one highway layer.

    Args:
        characters: Character ids of each word, (vocabulary, length); see
            `data.vocabularies.character_table`. They are constants: part of the graphdef, not of
            the state.
        widths: Widths of the filters, in characters.
        maps: Number of filters of each width.
        dtype: Dtype in which matrices are multiplied, as in `SkipCell`; float32 by default.

    Example::

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from dynskip_jax.data.vocabularies import character_table
        >>> characters, symbols = character_table(["the", "cat", "<eos>"])
        >>> init = nnx.initializers.normal(0.1)
        >>> sizes = dict(widths=(1, 2), maps=(4, 8))
        >>> embed = CharEmbedding(characters, **sizes, weight_init=init, rngs=nnx.Rngs(0))
        >>> embed(jnp.array([[0, 1, 2, 0]])).shape
        (1, 4, 12)
    """

    def __init__(
        self,
        characters: Int[np.ndarray, "vocabulary length"],
        *,
        char_features: int = 15,
        widths: Sequence[int] = (1, 2, 3, 4, 5, 6, 7),
        maps: Sequence[int] = (50, 100, 150, 200, 200, 200, 200),
        num_highway: int = 2,
        weight_init: Initializer,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        # A word is a run of ids above 0 that begins at the first place and ends before the padding.
        used = characters > 0
        begins = used.size and used[:, 0].all() and characters.min() >= 0
        if not begins or (used[:, 1:] & ~used[:, :-1]).any():
            raise UserError("every word needs a character, and 0 (padding) only at its end")
        if not widths or len(widths) != len(maps):
            raise UserError(
                f"each width of filters has its number of maps, got {widths} and {maps}"
            )
        _check_sizes(char_features=char_features, widths=widths, maps=maps)
        # An array would be part of the module's state. Bytes are static, and keep their hash.
        self._ids = characters.astype(np.int32).tobytes()
        self._shape = characters.shape
        self.features = sum(maps)
        self.dtype = jnp.float32 if dtype is None else dtype

        def draw(*shape: int) -> Array:
            return weight_init(rngs.params(), shape, jnp.float32)

        self.embedding = nnx.Param(draw(int(characters.max()), char_features))
        filter_w = [draw(width, char_features, n) for width, n in zip(widths, maps, strict=True)]
        filter_b = [draw(n) for n in maps]
        self.filter_w = _params(filter_w)
        self.filter_b = _params(filter_b)

        # Each matrix has a block for the gate and one for the new features, drawn separately.
        n = self.features
        highway_w = []
        highway_b = []
        for _ in range(num_highway):
            highway_w.append(jnp.concatenate([draw(n, n), draw(n, n)], axis=-1))
            b = jnp.concatenate([draw(n), draw(n)], axis=-1)
            highway_b.append(b.at[:n].add(_GATE_BIAS))
        self.highway_w = _params(highway_w)
        self.highway_b = _params(highway_b)

    @property
    def characters(self) -> Int[np.ndarray, "vocabulary length"]:
        """Character ids of each word, as a read-only array."""
        return np.frombuffer(self._ids, np.int32).reshape(self._shape)

    def __call__(self, tokens: Int[Array, "batch time"]) -> Float[Array, "batch time features"]:
        """Return the embedding of each token, (batch, time, features)."""
        ids = jnp.asarray(self.characters)[tokens]  # (batch, time, length)
        lengths = jnp.sum(ids != 0, axis=-1)
        filters = []
        for w, b in zip(self.filter_w, self.filter_b, strict=True):
            filters.append(CharFilters(w[...].astype(self.dtype), b[...]))
        x = char_cnn(filters, _with_padding(self.embedding[...])[ids], lengths)
        for w, b in zip(self.highway_w, self.highway_b, strict=True):
            x = highway(HighwayParams(w[...].astype(self.dtype), b[...]), x)
        return x


class CharFeatures(HasModes):
    """Base class of features that are computed from embedded characters.

    The embeddings are drawn from U(±√(3/d)), and have dropout in training.

    Args:
        num_characters: Number of character ids, including padding and unknown characters.
        char_features: Size d of a character's embedding; 30 in Ma & Hovy (2016).
        dropout: Dropout rate of the embeddings in training.

    Attributes:
        features: Size of a word's features.
    """

    features: int

    def __init__(
        self, num_characters: int, *, char_features: int = 30, dropout: float = 0.0, rngs: nnx.Rngs
    ):
        _check_sizes(num_characters=num_characters, char_features=char_features)
        check_rates("dropout", dropout)
        # Padding, the id 0, has no row.
        shape = (num_characters - 1, char_features)
        self.embedding = nnx.Param(by_size(char_features)(rngs.params(), shape))
        self.dropout = dropout
        self.deterministic = False

    def __call__(
        self,
        characters: Int[Array, "batch time length"],
        rngs: Rngs = None,
        deterministic: bool | None = None,
    ) -> Float[Array, "batch time features"]:
        """Return the features of each word, (batch, time, features).

        Args:
            characters: Character ids, 0 past the end of a word.
            rngs: Source of keys for dropout, also one key for each row, (batch,).
            deterministic: Overrides the mode set by `.train()` and `.eval()`.
        """
        # Padding counts nowhere, so a word has as many characters as ids above 0.
        characters = self._picked(characters)
        x = _with_padding(self.embedding[...])[characters]
        if deterministic is None:
            deterministic = self.deterministic
        if self.dropout and not deterministic:
            x = F.dropout(require_key(rngs, "this module"), self.dropout, x)
        return self._features(x, jnp.sum(characters != 0, axis=-1))

    def _picked(
        self, characters: Int[Array, "batch time length"]
    ) -> Int[Array, "batch time picked"]:
        """Return the characters of each word that count; by default all."""
        return characters

    def _features(
        self, x: Float[Array, "batch time length char"], lengths: Int[Array, "batch time"]
    ) -> Float[Array, "batch time features"]:
        """Return the features of words from their embedded characters and their lengths."""
        raise NotImplementedError


class CharCNN(CharFeatures):
    """Character CNN: the maximum of each filter over a word (Ma & Hovy 2016; Chiu & Nichols 2016).

    Words are padded with `width` - 1 zeros on both sides. So the first window ends at the first
    character, and the last window begins at the last character.

    Args:
        width: Width of each filter, in characters.
        dtype: Dtype in which matrices are multiplied; float32 by default.
        **options: Options of `CharFeatures`.
    """

    def __init__(
        self,
        num_characters: int,
        *,
        filters: int = 30,
        width: int = 3,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        super().__init__(num_characters, rngs=rngs, **options)
        _check_sizes(filters=filters, width=width)
        self.features = filters
        self.width = width
        self.dtype = jnp.float32 if dtype is None else dtype
        # Draw one matrix, from whose shape the initializer computes the fan-in of a window.
        char_features = self.embedding.shape[1]
        w = _glorot(rngs.params(), (width * char_features, filters), jnp.float32)
        self.filter_w = nnx.Param(w.reshape(width, char_features, filters))
        self.filter_b = nnx.Param(jnp.zeros(filters))

    @override
    def _features(self, x, lengths):
        # (batch, time, length, char); `char_cnn` itself pads the end of a word.
        before = self.width - 1
        x = jnp.pad(x, ((0, 0), (0, 0), (before, 0), (0, 0)))
        filters = CharFilters(self.filter_w[...].astype(self.dtype), self.filter_b[...])
        return char_cnn([filters], x, lengths + before)


class CharAffixes(CharFeatures):
    """Embeddings of a word's first and last `count` characters (Wu et al. 2016, Section 5.1).

    They are concatenated. In words with fewer characters, a special symbol with a trained embedding
    fills the missing positions. `options` are those of `CharFeatures`.
    """

    def __init__(self, num_characters: int, *, count: int = 5, rngs: nnx.Rngs, **options: Any):
        # The additional last row is the special symbol.
        super().__init__(num_characters + 1, rngs=rngs, **options)
        _check_sizes(count=count)
        self.count = count
        self.missing = num_characters
        self.features = 2 * count * self.embedding.shape[1]

    @override
    def _picked(self, characters):
        # A word begins at the place 0, and its last character has the place `lengths` - 1.
        lengths = jnp.sum(characters != 0, axis=-1, keepdims=True)
        steps = jnp.arange(self.count)[None, None, :]
        first = jnp.where(steps < lengths, steps, -1)
        last = lengths - self.count + steps
        # Places that a short word does not have are negative, on both sides.
        places = jnp.concatenate([first, last], axis=-1)
        exists = places >= 0
        inside = jnp.clip(places, 0, characters.shape[-1] - 1)
        picked = jnp.take_along_axis(characters, inside, axis=-1)
        return jnp.where(exists, picked, self.missing)

    @override
    def _features(self, x, lengths):
        return x.reshape(*x.shape[:2], self.features)
