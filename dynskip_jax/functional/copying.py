"""Copying of recent words: those that followed the states among which a time skip chooses.

This is a pointer sentinel (Merity et al. 2017, "Pointer sentinel mixture models"). Its pointer is
the time skip's choice among the last K states, either sampled or in expectation:

    p(w) = Σ_k π_k p_k(w),    p_k(w) = (1 - g_k) p_softmax(w) + g_k 1[w_k = w],

where p_k is p_softmax if there is no word w_k. All results are in nats.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax.functional.neural_cache import NO_WORD
from dynskip_jax.functional.serialization import register_for_export


@register_for_export
class Copies(NamedTuple):
    """The words that may be copied at each step, and their probabilities."""

    words: Int[Array, "batch time choices"]  # token ids; `NO_WORD` where there is no word to copy
    weights: Float[Array, "batch time choices"]  # probability π of each choice
    # Log-odds log(g / (1 - g)), of each choice or one for all
    gates: Float[Array, "batch time #choices"]


def followers(
    tokens: Int[Array, "batch time"], earlier: Int[Array, "batch K_less_one"]
) -> tuple[Int[Array, "batch time K"], Int[Array, "batch K_less_one"]]:
    """Return the word that followed State(t-k), for each step t and k = 1..K.

    That is the input of step t-k+1. `earlier` has the last K - 1 inputs before the segment;
    `NO_WORD` before the first input. Return it for the next segment, too.
    """
    K = earlier.shape[1] + 1
    time = tokens.shape[1]
    words = jnp.concatenate([earlier, tokens], axis=1)
    places = jnp.arange(time)[:, None] + (K - 1) - jnp.arange(K)[None]
    return words[:, places], words[:, time:]


def steps_since_start(
    start: Int[Array, " batch"], begins: Bool[Array, "batch time"]
) -> Int[Array, "batch time"]:
    """Return the number of steps before each step since its document began.

    `start` is this number before the first step, and `begins` is True where a document begins.
    """
    t = jnp.arange(begins.shape[1])[None]
    last_begin = jax.lax.cummax(jnp.where(begins, t, -1), axis=1)
    return jnp.where(last_begin < 0, start[:, None] + t, t - last_begin)


def copy_of_choice(copies: Copies, action: Int[Array, "batch time"]) -> Copies:
    """Return the copies for one chosen k at each step: its word, with probability 1, and its gate.

    `copies` are those of all K choices. An `action` of 0 (no choice was made) is treated as k = 1.
    """
    slot = jnp.maximum(action - 1, 0)[..., None]
    words = jnp.take_along_axis(copies.words, slot, axis=-1)
    gates = jnp.take_along_axis(jnp.broadcast_to(copies.gates, copies.words.shape), slot, axis=-1)
    return Copies(words, jnp.ones_like(gates), gates)


def copied_log_likelihood(
    copies: Copies, log_likelihood: Float[Array, "batch time"], targets: Int[Array, "batch time"]
) -> Float[Array, "batch time"]:
    """Return log p of the targets with copying, from their log p_softmax."""
    hit = jnp.sum(jnp.where(copies.words == targets[..., None], _copying(copies), 0), axis=-1)
    return _mixed(copies, log_likelihood, hit)


def copied_log_probs(
    copies: Copies, log_probs: Float[Array, "batch time vocabulary"]
) -> Float[Array, "batch time vocabulary"]:
    """Return log p of every word with copying, from log p_softmax of every word."""

    def add(row, words, weights):
        return row.at[words].add(weights, mode="drop")

    nowhere = jnp.where(copies.words == NO_WORD, log_probs.shape[-1], copies.words)
    hit = jax.vmap(jax.vmap(add))(jnp.zeros_like(log_probs), nowhere, _copying(copies))
    return _mixed(copies, log_probs, hit)


def log_likelihood_of_each(
    copies: Copies, log_likelihood: Float[Array, "batch time"], targets: Int[Array, "batch time"]
) -> Float[Array, "batch time choices"]:
    """Return log p_k of the targets for each choice k, from their log p_softmax."""
    log_g = jax.nn.log_sigmoid(copies.gates)
    log_kept = jax.nn.log_sigmoid(-copies.gates)
    log_missed = log_kept + log_likelihood[..., None]
    log_p = jnp.where(
        copies.words == targets[..., None], jnp.logaddexp(log_missed, log_g), log_missed
    )
    return jnp.where(copies.words == NO_WORD, log_likelihood[..., None], log_p)


def chosen_log_likelihood(
    copies: Copies, log_likelihood: Float[Array, "batch time"], targets: Int[Array, "batch time"]
) -> Float[Array, "batch time"]:
    """Return Σ_k π_k log p_k(w) of the targets: the expected log p_k(w) if k is sampled from π.

    It is a lower bound of `copied_log_likelihood`. REINFORCE with the reward log p_k(w) estimates
    its gradient with respect to π.
    """
    return jnp.sum(
        copies.weights * log_likelihood_of_each(copies, log_likelihood, targets), axis=-1
    )


def chosen_log_likelihood_with_greedy_gates(
    copies: Copies, log_likelihood: Float[Array, "batch time"], targets: Int[Array, "batch time"]
) -> Float[Array, "batch time"]:
    """Return `chosen_log_likelihood`; only the most probable choice gives gates a gradient.

    Evaluation copies by this choice, which is right more often than the average one, and a gate
    must know how often. So the gradient of the gates is that of log p_k(w) of the most probable k.
    """
    known_gates = copies._replace(gates=jax.lax.stop_gradient(copies.gates))
    expected = chosen_log_likelihood(known_gates, log_likelihood, targets)
    best = copy_of_choice(copies, jnp.argmax(copies.weights, axis=-1) + 1)
    greedy = copied_log_likelihood(best, jax.lax.stop_gradient(log_likelihood), targets)
    return expected + greedy - jax.lax.stop_gradient(greedy)


def _copying(copies: Copies) -> Float[Array, "batch time choices"]:
    """Return π_k g_k, the probability of making choice k and copying."""
    return copies.weights * jax.nn.sigmoid(copies.gates)


def _mixed(copies: Copies, log_probs: Array, hit: Array) -> Array:
    # Not copying has the probability Σ_k π_k (1 - g_k), plus π_k g_k for each k without a word. It
    # is summed in logarithms: a gate that is wide open gets a gradient that shuts it, however small
    # the sum.
    log_kept = jnp.where(copies.words == NO_WORD, 0, jax.nn.log_sigmoid(-copies.gates))
    log_kept = jax.nn.logsumexp(log_kept, axis=-1, b=copies.weights)
    log_kept = log_kept.reshape(log_kept.shape + (1,) * (log_probs.ndim - 2))
    is_hit = hit > 0
    # log 0 has no gradient.
    log_hit = jnp.where(is_hit, jnp.log(jnp.where(is_hit, hit, 1)), -jnp.inf)
    return jnp.logaddexp(log_kept + log_probs, log_hit)
