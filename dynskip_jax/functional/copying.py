"""Copying of recent words: those that followed the states among which a time skip chooses.

This is a pointer sentinel (Merity et al. 2017, "Pointer sentinel mixture models"). Its pointer is the time
skip's choice among the last K states, either sampled or in expectation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynskip_jax.functional.neural_cache import NO_WORD

_TINY = 1e-30  # replaces probability 0, whose logarithm has no gradient


class Copies(NamedTuple):
    """The words that may be copied at each step, and their probabilities.

    Attributes:
        words: Token ids, (batch, time, choices); `NO_WORD` where there is no word to copy.
        weights: Probability π of each choice, (batch, time, choices).
        gates: Log-odds of copying, log(g / (1 - g)): (batch, time, 1) with one gate for all choices, or
            (batch, time, choices).
    """

    words: Int[Array, "batch time choices"]
    weights: Float[Array, "batch time choices"]
    gates: Float[Array, "batch time #choices"]


def followers(
    tokens: Int[Array, "batch time"], earlier: Int[Array, "batch K_less_one"]
) -> tuple[Int[Array, "batch time K"], Int[Array, "batch K_less_one"]]:
    """Return the word that followed State(t-k), the input of step t-k+1, for each step t and each k.

    Args:
        tokens: Inputs of a segment, (batch, time).
        earlier: Last K - 1 inputs before the segment, (batch, K - 1); `NO_WORD` before the first input.

    Returns:
        Token ids for k = 1 (the tokens themselves) to K, (batch, time, K); and `earlier` for the next
        segment, (batch, K - 1).
    """
    K, time = earlier.shape[1] + 1, tokens.shape[1]
    words = jnp.concatenate([earlier, tokens], axis=1)
    places = jnp.arange(time)[:, None] + (K - 1) - jnp.arange(K)[None]
    return words[:, places], words[:, time:]


def copy_of_choice(copies: Copies, action: Int[Array, "batch time"]) -> Copies:
    """Return the copies for one chosen k at each step: its word, with probability 1, and its gate.

    Args:
        copies: Copies of all K choices, with one gate for each choice.
        action: Chosen k in 1..K, (batch, time); 0 (no choice was made) is treated as 1.
    """
    slot = jnp.maximum(action - 1, 0)[..., None]
    words, gates = (jnp.take_along_axis(of_each, slot, axis=-1) for of_each in (copies.words, copies.gates))
    return Copies(words, jnp.ones_like(gates), gates)


def copied_log_likelihood(
    copies: Copies, log_likelihood: Float[Array, "batch time"], targets: Int[Array, "batch time"]
) -> Float[Array, "batch time"]:
    """Return log p of the targets, in nats, with copying.

        p(w) = Σ_k π_k p_k(w),    p_k(w) = (1 - g_k) p_softmax(w) + g_k 1[w_k = w],

    where p_k is p_softmax if there is no word w_k.

    Args:
        copies: Words that may be copied.
        log_likelihood: log p_softmax of the targets, (batch, time).
        targets: Token ids of the targets, (batch, time).
    """
    hit = jnp.sum(jnp.where(copies.words == targets[..., None], _copying(copies), 0), axis=-1)
    return _mixed(copies, log_likelihood, hit)


def chosen_log_likelihood(
    copies: Copies, log_likelihood: Float[Array, "batch time"], targets: Int[Array, "batch time"]
) -> Float[Array, "batch time"]:
    """Return Σ_k π_k log p_k(w) of the targets, in nats: the expected log p_k(w) if k is sampled from π.

    It is a lower bound of `copied_log_likelihood`. REINFORCE with the reward log p_k(w) estimates its
    gradient with respect to π.

    Args:
        copies: Words that may be copied.
        log_likelihood: log p_softmax of the targets, (batch, time).
        targets: Token ids of the targets, (batch, time).
    """
    return jnp.sum(copies.weights * log_likelihood_of_each(copies, log_likelihood, targets), axis=-1)


def log_likelihood_of_each(
    copies: Copies, log_likelihood: Float[Array, "batch time"], targets: Int[Array, "batch time"]
) -> Float[Array, "batch time choices"]:
    """Return log p_k of the targets, in nats, for each choice k; see `copied_log_likelihood`.

    Args:
        copies: Words that may be copied; the weights are not used.
        log_likelihood: log p_softmax of the targets, (batch, time).
        targets: Token ids of the targets, (batch, time).
    """
    log_g, log_kept = jax.nn.log_sigmoid(copies.gates), jax.nn.log_sigmoid(-copies.gates)
    log_missed = log_kept + log_likelihood[..., None]
    log_p = jnp.where(copies.words == targets[..., None], jnp.logaddexp(log_missed, log_g), log_missed)
    return jnp.where(copies.words == NO_WORD, log_likelihood[..., None], log_p)


def copied_log_probs(
    copies: Copies, log_probs: Float[Array, "batch time vocabulary"]
) -> Float[Array, "batch time vocabulary"]:
    """Return log p of every word of the vocabulary, in nats, with copying.

    For one word per step, `copied_log_likelihood` is cheaper.

    Args:
        copies: Words that may be copied.
        log_probs: log p_softmax of every word, (batch, time, vocabulary).
    """

    def add(row, words, weights):
        return row.at[words].add(weights, mode="drop")

    nowhere = jnp.where(copies.words == NO_WORD, log_probs.shape[-1], copies.words)
    hit = jax.vmap(jax.vmap(add))(jnp.zeros_like(log_probs), nowhere, _copying(copies))
    return _mixed(copies, log_probs, hit)


def _copying(copies: Copies) -> Float[Array, "batch time choices"]:
    """Return π_k g_k, the probability of making choice k and copying."""
    return copies.weights * jax.nn.sigmoid(copies.gates)


def _mixed(copies: Copies, log_probs: Array, hit: Array) -> Array:
    # Probability of not copying: Σ_k π_k (1 - g_k), plus π_k g_k for each k without a word.
    weights, copying = copies.weights, _copying(copies)
    kept = weights * jax.nn.sigmoid(-copies.gates) + jnp.where(copies.words == NO_WORD, copying, 0)
    log_kept = jnp.log(jnp.maximum(jnp.sum(kept, axis=-1), _TINY))
    wider = (slice(None), slice(None)) + (None,) * (log_probs.ndim - 2)
    return jnp.logaddexp(log_kept[wider] + log_probs, jnp.log(jnp.maximum(hit, _TINY)))
