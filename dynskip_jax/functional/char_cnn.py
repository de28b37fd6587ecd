"""Word features from characters: the convolutions and the highway layer of Kim et al. (2016)."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynskip_jax.functional.product import product


class CharFilters(NamedTuple):
    """The filters H of one width, Kim et al. (2016), Eq. 5.

    Attributes:
        w: what each map multiplies a window by, (width, char, maps).
        b: bias of each map, (maps,).
    """

    w: Float[Array, "width char maps"]
    b: Float[Array, " maps"]


class HighwayParams(NamedTuple):
    """Weights of one highway layer, Kim et al. (2016), Eq. 8, its two matrices side by side.

    Attributes:
        w: W_T, of the transform gate, and W_H, of the transformation, (features, 2 * features).
        b: b_T and b_H, (2 * features,).
    """

    w: Float[Array, "features two_features"]
    b: Float[Array, " two_features"]


def char_cnn(
    filters: Sequence[CharFilters],
    characters: Float[Array, "*words length char"],
    lengths: Int[Array, "*words"] | None = None,
) -> Float[Array, "*words features"]:
    """For each filter the maximum of tanh(<window, filter> + b) over a word, Kim et al. (2016), Eq. 5 and 6.

    A window begins at each character of the word, marks of its start and end included, and what it covers
    past the end is zeros. The features thus depend neither on the length to which words are padded nor on
    what the padding holds. (In Kim et al.'s released code padding is zeros too, and windows of nothing but
    padding, whose value is tanh(b), take part in the maximum where a word is shorter than the longest one.)

    Args:
        filters: one entry for each width.
        characters: embeddings of each word's characters, (*words, length, char).
        lengths: number of characters of each word, (*words,); all of them when None. A word of none is one
            window of zeros.

    Returns:
        (*words, features), the maps of all widths side by side.
    """
    if characters.shape[-2] == 0:
        characters = jnp.pad(characters, [(0, 0)] * (characters.ndim - 2) + [(0, 1), (0, 0)])
    steps = jnp.arange(characters.shape[-2]).reshape((1,) * (characters.ndim - 2) + (-1, 1))
    begins_inside = None
    if lengths is not None:
        ends = lengths[..., None, None]
        characters = jnp.where(steps < ends, characters, 0.0)
        begins_inside = steps < jnp.maximum(ends, 1)
    windows = _windows(characters, max(width.w.shape[0] for width in filters))

    def strongest(width: CharFilters) -> Float[Array, "*words maps"]:
        w = width.w.reshape(-1, width.w.shape[-1])
        z = product(windows[..., : w.shape[0]], w)
        scores = z if begins_inside is None else jnp.where(begins_inside, z, -jnp.inf)
        # The maximum as a sum: its derivative is one selection. That of `jnp.max` has to look for ties: on a
        # CPU the gradient took a third longer with it, and two thirds more memory.
        best = jnp.argmax(scores, axis=-2, keepdims=True)
        return jnp.sum(jnp.where(steps == best, z, 0.0), axis=-2)

    # Neither b nor tanh changes which window is the strongest: they are left to one window per word.
    z = jnp.concatenate([strongest(width) for width in filters], axis=-1)
    b = jnp.concatenate([width.b for width in filters])
    return jnp.tanh(z + b.reshape((1,) * (z.ndim - 1) + (-1,)))


def _windows(
    characters: Float[Array, "*words length char"], width: int
) -> Float[Array, "*words length window"]:
    """The `width` characters from each position on, one after the other; zeros past the last position.

    A narrower window is the beginning of a wider one, so the widest serve all filters.
    """
    length = characters.shape[-2]
    padding = [(0, 0)] * (characters.ndim - 2) + [(0, width - 1), (0, 0)]
    padded = jnp.pad(characters, padding)
    return jnp.concatenate([padded[..., k : k + length, :] for k in range(width)], axis=-1)


def highway(params: HighwayParams, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
    """t ⊙ relu(W_H x + b_H) + (1 - t) ⊙ x with t = sigmoid(W_T x + b_T), Kim et al. (2016), Eq. 8.

    Args:
        params: the weights.
        x: (*batch, features).

    Returns:
        (*batch, features).
    """
    z = product(x, params.w)
    t, h = jnp.split(z + params.b.reshape((1,) * (z.ndim - 1) + (-1,)), 2, axis=-1)
    t = jax.nn.sigmoid(t)
    return t * jax.nn.relu(h) + (1.0 - t) * x
