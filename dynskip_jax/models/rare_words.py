"""Replace rare words by the unknown word in training, to train its embedding (Lample et al. 2016)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

UNKNOWN_WORD = 0  # id of the unknown word


def forget_rare(
    words: Int[Array, "batch time"], keys: Key[Array, " batch"], rate: float, num_frequent: int
) -> Int[Array, "batch time"]:
    """Return the words, with each rare word replaced by the unknown word with probability `rate`.

    Args:
        words: Word ids, (batch, time).
        keys: One PRNG key per row, (batch,).
        rate: Probability of replacing a rare word.
        num_frequent: Words with this id or a larger one are rare.
    """
    time = words.shape[1]
    forgotten = jax.vmap(lambda key: jax.random.bernoulli(key, rate, (time,)))(keys)
    return jnp.where(forgotten & (words >= num_frequent), UNKNOWN_WORD, words)
