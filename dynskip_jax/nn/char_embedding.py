"""Word embedding computed from each word's characters."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from dynskip_jax.errors import UserError
from dynskip_jax.functional.char_cnn import CharFilters, HighwayParams, char_cnn, highway
from dynskip_jax.nn.cells import Initializer


@dataclasses.dataclass(frozen=True)
class CharacterTable:
    """Constant character ids of a vocabulary, compared and hashed by value.

    An array attribute of an NNX module is part of the module's state. This table is static instead: it is
    part of the module's `nnx.graphdef`, and the state contains only the parameters.

    Attributes:
        data: Bytes of the ids, int32, row by row.
        shape: Shape of the table, (vocabulary, length).
    """

    data: bytes = dataclasses.field(repr=False)
    shape: tuple[int, int]

    @classmethod
    def of(cls, characters: Int[np.ndarray, "vocabulary length"]) -> "CharacterTable":
        """Return the table with the ids `characters`."""
        return cls(characters.astype(np.int32).tobytes(), characters.shape)

    @property
    def ids(self) -> Int[np.ndarray, "vocabulary length"]:
        """The ids as a read-only array."""
        return np.frombuffer(self.data, np.int32).reshape(self.shape)


class CharEmbedding(nnx.Module):
    """Word embedding by a convolution over characters and highway layers (Kim et al. 2016).

    It replaces `nnx.Embed`. The defaults are the paper's large model (its Table 2). The small model has
    widths 1 to 6, maps (25, 50, 75, 100, 125, 150) and one highway layer.

    Args:
        characters: Character ids of each word, (vocabulary, length), with 0 as padding at the end; see
            `data.vocabularies.character_table`. They are constants: part of the graphdef, not of the state.
        char_features: Size of a character's embedding.
        widths: Widths of the filters, in characters.
        maps: Number of filters of each width.
        num_highway: Number of highway layers.
        weight_init: Initializer of every weight and bias.
        highway_bias: Constant added to the transform gates' initial biases. A negative value makes the
            highway layers copy most of their input at first.
        dtype: Dtype in which matrices are multiplied; float32 by default. Everything else is float32 (see
            `SkipCell`).
        rngs: Source of the initial parameters.

    Attributes:
        features: Size of a word's embedding, the sum of `maps`.

    Example::

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from dynskip_jax.data.vocabularies import character_table
        >>> characters, symbols = character_table(["the", "cat", "<eos>"])
        >>> init = nnx.initializers.normal(0.1)
        >>> embed = CharEmbedding(characters, widths=(1, 2), maps=(4, 8), weight_init=init, rngs=nnx.Rngs(0))
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
        highway_bias: float = -2.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        if not widths or len(widths) != len(maps):
            raise UserError(f"each width of filters has its number of maps, got {widths} and {maps}")
        if min(char_features, *widths, *maps) < 1:
            raise UserError(
                f"sizes must be at least 1, got char_features={char_features}, widths={widths}, maps={maps}"
            )
        self.characters = CharacterTable.of(_checked(characters))
        self.features = sum(maps)
        self.dtype = jnp.float32 if dtype is None else dtype

        def draw(*shape: int) -> Array:
            return weight_init(rngs.params(), shape, jnp.float32)

        def highway_layer() -> tuple[Array, Array]:
            n = self.features
            w, b = (jnp.concatenate([draw(*size, n), draw(*size, n)], axis=-1) for size in ((n,), ()))
            return w, b.at[:n].add(highway_bias)

        # Padding has no row: its embedding is the constant 0, so it is neither trained nor decayed.
        self.embedding = nnx.Param(draw(int(characters.max()), char_features))
        self.filter_w = nnx.List(
            [nnx.Param(draw(width, char_features, n)) for width, n in zip(widths, maps, strict=True)]
        )
        self.filter_b = nnx.List([nnx.Param(draw(n)) for n in maps])
        layers = [highway_layer() for _ in range(num_highway)]
        self.highway_w = nnx.List([nnx.Param(w) for w, _ in layers])
        self.highway_b = nnx.List([nnx.Param(b) for _, b in layers])

    def filters(self) -> tuple[CharFilters, ...]:
        """Return the filters for `functional.char_cnn`, with weights cast to `dtype`."""
        pairs = zip(self.filter_w, self.filter_b, strict=True)
        return tuple(CharFilters(w[...].astype(self.dtype), b[...]) for w, b in pairs)

    def highways(self) -> tuple[HighwayParams, ...]:
        """Return the highway layers for `functional.highway`, in order, with weights cast to `dtype`."""
        pairs = zip(self.highway_w, self.highway_b, strict=True)
        return tuple(HighwayParams(w[...].astype(self.dtype), b[...]) for w, b in pairs)

    def table(self, words_at_once: int = 1000) -> Float[Array, "vocabulary features"]:
        """Return the embedding of each word of the vocabulary, (vocabulary, features).

        After training, this table can replace the module.

        Args:
            words_at_once: Number of words that are embedded in parallel.
        """
        words = jnp.arange(self.characters.shape[0])
        return jax.lax.map(lambda word: self(word[None, None])[0, 0], words, batch_size=words_at_once)

    def __call__(self, tokens: Int[Array, "batch time"]) -> Float[Array, "batch time features"]:
        """Return the embedding of each token, (batch, time, features)."""
        ids = jnp.asarray(self.characters.ids)[tokens]
        embedding = self.embedding[...]
        embedding = jnp.concatenate([jnp.zeros_like(embedding[:1]), embedding])
        x = char_cnn(self.filters(), embedding[ids], jnp.sum(ids != 0, axis=-1))
        for params in self.highways():
            x = highway(params, x)
        return x


def _checked(characters: Int[np.ndarray, "vocabulary length"]) -> Int[np.ndarray, "vocabulary length"]:
    """Return `characters`; raise a `ValueError` if they are not a valid table."""
    used = characters != 0
    if not used.size or not used[:, 0].all() or characters.min() < 0:
        raise ValueError("every word needs a character, with an id above 0")
    if (used[:, 1:] & ~used[:, :-1]).any():
        raise ValueError("padding (0) stands at the end of words only")
    return characters
