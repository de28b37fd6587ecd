"""Replace rare words by the unknown word in training."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

UNKNOWN_WORD = 0  # id of the unknown word


def forget_rare(
    words: Int[Array, "batch time"], keys: Key[Array, " batch"], rate: float, num_frequent: int
) -> Int[Array, "batch time"]:
    """Replace words with ids of at least `num_frequent` by the unknown word, at this rate.

    In training, this trains the embedding of the unknown word (Lample et al. 2016).
    """
    time = words.shape[1]

    def draw(key: Key[Array, ""]) -> Bool[Array, " time"]:
        return jax.random.bernoulli(key, rate, (time,))

    # A key for each row, so that what is replaced does not depend on the other rows.
    is_forgotten = jax.vmap(draw)(keys)
    is_rare = words >= num_frequent
    return jnp.where(is_forgotten & is_rare, UNKNOWN_WORD, words)
