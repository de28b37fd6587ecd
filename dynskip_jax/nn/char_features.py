"""Features of words from their characters: a CNN, a bidirectional LSTM, or the first and last characters.

Words are given as character ids, (batch, time, length). Id 0 is padding at the end of a word. Every other id,
including that of unknown characters, has a trained embedding. It is drawn initially from U(±√(3/d)) (Ma &
Hovy 2016).
"""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int
from typing_extensions import override

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.char_cnn import CharFilters, char_cnn
from dynskip_jax.nn.calls import require_key
from dynskip_jax.nn.initializers import uniform
from dynskip_jax.nn.layers import SkipLSTM
from dynskip_jax.nn.modes import HasModes

_glorot = nnx.initializers.glorot_uniform()


def by_size(features: int) -> Any:
    """Return the initializer U(±√(3/d)) of embeddings of size d = `features`.

    Their entries have the variance 1/d.
    """
    return uniform((3 / features) ** 0.5)


class CharFeatures(HasModes):
    """Base class of character features: the characters' embeddings, with dropout.

    Args:
        num_characters: Number of character ids, including padding and unknown characters.
        char_features: Size d of a character's embedding.
        dropout: Dropout rate of the embeddings while `deterministic` is False.
        rngs: Source of the initial parameters.

    Attributes:
        features: Size of a word's features.
        deterministic: Whether dropout is disabled. Set by `.train()` and `.eval()`.
    """

    features: int

    def __init__(self, num_characters: int, char_features: int, dropout: float, rngs: nnx.Rngs):
        if min(num_characters, char_features) < 1 or not 0.0 <= dropout < 1.0:
            raise UserError(
                f"sizes must be at least 1 and dropout in [0, 1), got num_characters={num_characters}, "
                f"char_features={char_features}, dropout={dropout}"
            )
        # Padding has no row: its embedding is zero.
        shape = (num_characters - 1, char_features)
        self.embedding = nnx.Param(by_size(char_features)(rngs.params(), shape))
        self.dropout = dropout
        self.deterministic = False

    def __call__(
        self,
        characters: Int[Array, "batch time length"],
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
        deterministic: bool | None = None,
    ) -> Float[Array, "batch time features"]:
        """Return the features of each word, (batch, time, features).

        Args:
            characters: Character ids, 0 past the end of a word.
            rngs: Source of keys for dropout: a PRNG key, one key for each row, (batch,), an `nnx.Rngs` or a
                stream.
            deterministic: Overrides the mode set by `.train()` and `.eval()`.
        """
        characters, table = self._picked(characters), self.embedding[...]
        x = jnp.concatenate([jnp.zeros_like(table[:1]), table])[characters]
        if self.dropout and not (self.deterministic if deterministic is None else deterministic):
            x = F.dropout(require_key(rngs, "this module"), self.dropout, x)
        return self._features(x, jnp.sum(characters != 0, axis=-1))

    def _picked(self, characters: Int[Array, "batch time length"]) -> Int[Array, "batch time picked"]:
        """Return the characters of each word that count; by default all."""
        return characters

    def _features(
        self, x: Float[Array, "batch time length char"], lengths: Int[Array, "batch time"]
    ) -> Float[Array, "batch time features"]:
        """Return the features of words from their embedded characters and their lengths."""
        raise NotImplementedError


class CharCNN(CharFeatures):
    """Character CNN: the maximum of each filter over a word (Ma & Hovy 2016; Chiu & Nichols 2016).

    Words are padded with `width` - 1 zeros on both sides. So the first window ends at the first character,
    and the last window begins at the last character.

    Args:
        char_features: Size d of a character's embedding; 30 in Ma & Hovy (2016).
        filters: Number of filters.
        width: Width of each filter, in characters.
        dtype: Dtype in which matrices are multiplied; float32 by default.

    Example::

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> words = jnp.array([[[2, 3, 4, 0], [5, 0, 0, 0]]])
        >>> CharCNN(6, filters=7, rngs=nnx.Rngs(0))(words).shape
        (1, 2, 7)
    """

    def __init__(
        self,
        num_characters: int,
        *,
        char_features: int = 30,
        filters: int = 30,
        width: int = 3,
        dropout: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        super().__init__(num_characters, char_features, dropout, rngs)
        if min(filters, width) < 1:
            raise UserError(f"sizes must be at least 1, got filters={filters}, width={width}")
        self.features, self.width = filters, width
        self.dtype = jnp.float32 if dtype is None else dtype
        # Draw one matrix, from whose shape the initializer computes the fan-in of a window.
        w = _glorot(rngs.params(), (width * char_features, filters), jnp.float32)
        self.filter_w = nnx.Param(w.reshape(width, char_features, filters))
        self.filter_b = nnx.Param(jnp.zeros(filters))

    @override
    def _features(self, x, lengths):
        before = self.width - 1  # `char_cnn` itself pads the end
        x = jnp.pad(x, ((0, 0), (0, 0), (before, 0), (0, 0)))
        filters = CharFilters(self.filter_w[...].astype(self.dtype), self.filter_b[...])
        return char_cnn([filters], x, lengths + before)


class CharLSTM(CharFeatures):
    """Character LSTM: the last h of a forward and of a backward LSTM over a word (Lample et al. 2016).

    Args:
        char_features: Size d of a character's embedding.
        features: Size of a word's features, both directions together; an even number.
        dtype: Dtype in which matrices are multiplied; float32 by default.
    """

    def __init__(
        self,
        num_characters: int,
        *,
        char_features: int = 30,
        features: int = 50,
        dropout: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        super().__init__(num_characters, char_features, dropout, rngs)
        if features < 2 or features % 2:
            raise UserError(f"the two directions have as many features each: {features} is no even number")
        self.features = features
        self.rnn = SkipLSTM(char_features, features // 2, bidirectional=True, dtype=dtype, rngs=rngs)

    @override
    def _features(self, x, lengths):
        carries, _ = self.rnn(x, seq_lengths=lengths, return_carry=True)
        return jnp.concatenate([carry.state.h for carry in carries], axis=-1)


class CharAffixes(CharFeatures):
    """Concatenated embeddings of a word's first and last characters (Wu et al. 2016, Section 5.1).

    In words with fewer than `count` characters, a special symbol with a trained embedding fills the missing
    positions.

    Args:
        char_features: Size d of a character's embedding.
        count: Number of characters from the start of a word, and number of characters from its end.
    """

    def __init__(
        self,
        num_characters: int,
        *,
        char_features: int = 5,
        count: int = 5,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        # The additional last row is the special symbol.
        super().__init__(num_characters + 1, char_features, dropout, rngs)
        if count < 1:
            raise UserError(f"sizes must be at least 1, got count={count}")
        self.count, self.missing = count, num_characters
        self.features = 2 * count * char_features

    @override
    def _picked(self, characters):
        lengths = jnp.sum(characters != 0, axis=-1, keepdims=True)
        steps = jnp.arange(self.count)[None, None, :]
        places = jnp.concatenate(
            [jnp.where(steps < lengths, steps, -1), lengths - self.count + steps], axis=-1
        )
        inside = jnp.clip(places, 0, characters.shape[-1] - 1)
        return jnp.where(places >= 0, jnp.take_along_axis(characters, inside, axis=-1), self.missing)

    @override
    def _features(self, x, lengths):
        return x.reshape(*x.shape[:2], self.features)
