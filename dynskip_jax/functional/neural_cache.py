"""Neural cache (Grave et al. 2017): recent words get more probability where states are similar."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax.functional.serialization import register_for_export

NO_WORD = -1  # marks an empty slot of the cache


@register_for_export
class CacheCarry(NamedTuple):
    """The last N states of each stream with the words that followed them, oldest first."""

    states: Float[Array, "batch N hidden"]
    # Token ids; `NO_WORD` in empty slots, while fewer than N words were read
    words: Int[Array, "batch N"]


def empty_cache(batch_size: int, size: int, features: int) -> CacheCarry:
    """Return a cache of N = `size` empty slots, for states of size `features`."""
    states = jnp.zeros((batch_size, size, features))
    return CacheCarry(states, jnp.full((batch_size, size), NO_WORD, jnp.int32))


def first_of_document(begins: Bool[Array, "batch time"], size: int) -> Int[Array, "batch time"]:
    """Return the place at which each step's document begins, among N = `size` words and a segment.

    `begins` is True where a document begins. It is 0 for a document that began before the segment.
    """
    places = jnp.where(begins, size + jnp.arange(begins.shape[1])[None], 0)
    return jax.lax.cummax(places, axis=1)


def cached_log_likelihood(
    carry: CacheCarry,
    states: Float[Array, "batch time hidden"],
    targets: Int[Array, "batch time"],
    log_likelihood: Float[Array, "batch time"],
    *,
    flatness: Float[Array, ""] | float,
    weight: Float[Array, ""] | float,
    begins: Bool[Array, "batch time"] | None = None,
) -> tuple[CacheCarry, Float[Array, "batch time"]]:
    """Mix the model's and the cache's probability of each word of the next segment.

    Grave et al. (2017), "Improving neural language models with a continuous cache", Eq. 2-3. Here
    h_t is the state that predicts w_{t+1}, and i runs over the last N steps before t:

        p_cache(w) ∝ Σ_i 1[w = w_{i+1}] exp(θ h_t · h_i)
        p(w) = (1 - λ) p_model(w) + λ p_cache(w).

    While the cache is empty, p is p_model.

    `targets` are the w_{t+1}, and `log_likelihood` their log p_model, in nats. `flatness` is θ ≥ 0:
    with 0, p_cache is the relative frequency of a word in the cache. `weight` is λ in [0, 1].
    Where `begins` is True a document begins, and the cache is emptied before that step. Return the
    cache for the next segment, and log p(w_{t+1}), in nats.
    """
    size = carry.words.shape[1]
    time = targets.shape[1]
    all_states = jnp.concatenate([carry.states, states.astype(carry.states.dtype)], axis=1)
    all_words = jnp.concatenate([carry.words, targets], axis=1)
    scores = flatness * jnp.einsum("bth,bih->bti", states, all_states)
    steps_back = size + jnp.arange(time)[:, None] - jnp.arange(size + time)[None]
    in_window = (steps_back >= 1) & (steps_back <= size)
    seen = in_window[None] & (all_words != NO_WORD)[:, None]
    kept_words = all_words
    if begins is not None:
        first = first_of_document(begins, size)
        places = jnp.arange(size + time)
        seen &= places[None, None] >= first[..., None]
        kept_words = jnp.where(places[None] >= first[:, -1:], all_words, NO_WORD)
    hit = seen & (all_words[:, None] == targets[:, :, None])
    # With an empty cache, `cached` would be log 0 - log 0, which is NaN.
    any_seen = seen.any(axis=-1)
    total = jax.nn.logsumexp(scores, axis=-1, where=seen)
    cached = jax.nn.logsumexp(scores, axis=-1, where=hit) - jnp.where(any_seen, total, 0)
    mixed = jnp.logaddexp(jnp.log1p(-weight) + log_likelihood, jnp.log(weight) + cached)
    carry = CacheCarry(all_states[:, time:], kept_words[:, time:])
    return carry, jnp.where(any_seen, mixed, log_likelihood)
