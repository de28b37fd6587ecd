"""Read rare words as the unknown one while training, so that its embedding learns (Lample et al. 2016)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from dynskip_jax.errors import UserError

UNKNOWN_WORD = 0  # its id


def check_unknown_rate(rate: float) -> None:
    """Raise a `UserError` unless a rate lies in [0, 1)."""
    if not 0.0 <= rate < 1.0:
        raise UserError(f"unknown_rate lies in [0, 1), got {rate}")


def forget_rare(
    words: Int[Array, "batch time"], keys: Key[Array, " batch"], rate: float, num_frequent: int
) -> Int[Array, "batch time"]:
    """Return the words, of which each rare one is the unknown word with probability `rate`.

    Args:
        words: ids of words.
        keys: one for each row.
        rate: how often a rare word is read as the unknown one.
        num_frequent: words from this id on are rare.
    """
    time = words.shape[1]
    forgotten = jax.vmap(lambda key: jax.random.bernoulli(key, rate, (time,)))(keys)
    return jnp.where(forgotten & (words >= num_frequent), UNKNOWN_WORD, words)
