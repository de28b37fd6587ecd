"""Replace rare words by the unknown word in training."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

UNKNOWN_WORD = 0  # id of the unknown word


def forget_rare(
    words: Int[Array, "batch time"], keys: Key[Array, " batch"], rate: float, num_frequent: int
) -> Int[Array, "batch time"]:
    """Return the words, with those from the id `num_frequent` on replaced by the unknown word at
    this rate.

    In training, this trains the embedding of the unknown word (Lample et al. 2016).
    """
    time = words.shape[1]
    forgotten = jax.vmap(lambda key: jax.random.bernoulli(key, rate, (time,)))(keys)
    return jnp.where(forgotten & (words >= num_frequent), UNKNOWN_WORD, words)
