"""Losses of proximal policy optimization (PPO), one function for each published equation.

All arguments have the layout (*batch, time). The functions return a value for each step, whose
mean over the steps that count is the loss: `mean_over_steps`.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax.functional.agent import entropy

Steps = Float[Array, "*batch time"]


def generalized_advantages(
    rewards: Steps, discounts: Steps, lambdas: Steps, values: Steps, next_values: Steps
) -> Steps:
    """Return generalized advantage estimates (GAE; Schulman et al. 2016, Eq. 16).

    δ(t) = r(t) + γ(t) V(t+1) - V(t), and A(t) = δ(t) + γ(t) λ(t) A(t+1). A(t) + V(t) is the target
    of the value.

    Args:
        discounts: γ at each step; 0 where an episode terminates, after which nothing follows.
        lambdas: λ at each step; 0 at the last step of an episode. If it was truncated, V(t+1)
            stands for what would have followed.
    """
    # δ(t), and the factor of A(t+1).
    deltas = rewards + discounts * next_values - values
    decays = discounts * lambdas

    def back(following, now):
        delta, decay = now
        advantage = delta + decay * following
        return advantage, advantage

    # From the last step to the first; time is the leading axis of a scan.
    by_time = (jnp.moveaxis(deltas, -1, 0), jnp.moveaxis(decays, -1, 0))
    none = jnp.zeros_like(deltas, shape=deltas.shape[:-1])
    _, advantages = jax.lax.scan(back, none, by_time, reverse=True)
    return jnp.moveaxis(advantages, 0, -1)


def clipped_surrogate(log_ratios: Steps, advantages: Steps, clip: float) -> Steps:
    """Return minus the clipped surrogate objective (Schulman et al. 2017, Eq. 7).

    It is -min(r A, clip(r, 1 - ε, 1 + ε) A), with r the ratio of the action's probabilities under
    the new and the old policy, and ε = `clip`.
    """
    ratios = jnp.exp(log_ratios)
    clipped = jnp.clip(ratios, 1 - clip, 1 + clip)
    return -jnp.minimum(ratios * advantages, clipped * advantages)


def action_log_prob(
    logits: Float[Array, "*batch time choices"],
    actions: Int[Array, "*batch time parts"],
    sizes: Sequence[int],
) -> Steps:
    """Return log π(action), the sum over an action's parts, of which part i has sizes[i] choices.

    `logits` of all parts are concatenated.
    """
    total = 0.0
    for part, of_part in enumerate(_by_part(logits, sizes)):
        log_probs = jax.nn.log_softmax(of_part)
        total += jnp.take_along_axis(log_probs, actions[..., part, None], axis=-1)[..., 0]
    return total


def action_entropy(logits: Float[Array, "*batch time choices"], sizes: Sequence[int]) -> Steps:
    """Return the entropy of the actions' distribution in nats, the sum over their parts."""
    return sum(entropy(jax.nn.log_softmax(of_part)) for of_part in _by_part(logits, sizes))


def sample_actions(
    logits: Float[Array, "*batch choices"], sizes: Sequence[int], key: Array | None
) -> Int[Array, "*batch parts"]:
    """Return sampled actions, or with `key` None the most probable ones."""
    parts = _by_part(logits, sizes)
    if key is None:
        return jnp.stack([of_part.argmax(-1) for of_part in parts], axis=-1)
    keys = jax.random.split(key, len(parts))
    return jnp.stack([*map(jax.random.categorical, keys, parts)], axis=-1)


def mean_over_steps(values: Steps, counted: Bool[Array, "*batch time"]) -> Float[Array, ""]:
    """Return the mean over the steps that count."""
    return jnp.where(counted, values, 0).sum() / jnp.maximum(counted.sum(), 1)


def normalized(values: Steps, counted: Bool[Array, "*batch time"]) -> Steps:
    """Return the values with mean 0 and standard deviation 1 over the steps that count."""
    centred = values - mean_over_steps(values, counted)
    variance = mean_over_steps(jnp.square(centred), counted)
    return centred / (jnp.sqrt(variance) + 1e-8)


def _by_part(logits: Array, sizes: Sequence[int]) -> list[Array]:
    """Return the logits of each part of an action."""
    return jnp.split(logits, np.cumsum(sizes)[:-1], axis=-1)
