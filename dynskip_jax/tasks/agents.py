"""Compute the loss of a batch from the settings of agents, with the losses of `rl`."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from dynskip_jax import functional as F
from dynskip_jax import rl
from dynskip_jax.config.settings import Agent
from dynskip_jax.errors import UserError
from dynskip_jax.training.scheduled import ScheduledValues


def rewards_of(
    objective: Agent,
    log_likelihood: Float[Array, "*shape"],
    correct: Float[Array, "*shape"] | None = None,
) -> Float[Array, "*shape"]:
    """Return the reward of each prediction, from the log-likelihood of its target, in nats.

    `correct` is 1 for a correct prediction and 0 for a wrong one.
    """
    if objective.reward == "correct":
        if correct is None:
            raise UserError(
                "this task does not say which predictions are correct: choose another --reward"
            )
        return jax.lax.stop_gradient(2.0 * correct - 1.0)
    is_log = objective.reward == "log_likelihood"
    return jax.lax.stop_gradient(log_likelihood if is_log else jnp.exp(log_likelihood))


def agents_loss(
    objective: Agent,
    scheduled: ScheduledValues,
    decisions: Sequence[F.DecisionTrace],
    nll: Float[Array, " rows"] | Float[Array, "rows time"],
    rewards: Float[Array, " rows"] | Float[Array, "rows time"],
    *,
    weights: Shaped[Array, " rows"] | None = None,
    step_weights: Shaped[Array, "rows time"] | None = None,
    axis_name: str | None = None,
) -> Float[Array, ""]:
    """Return J_1 - rl_coef · J_2 (Gui et al. 2019, Eq. 3 to 6) plus the cost of tokens read.

    J_1 is the cross-entropy. While choices are relaxed, it trains the agents, and J_2 contains only
    the exact entropy. The rollouts of an example are adjacent rows.

    Args:
        weights: Weight of each row; 0 or False for rows that only fill the batch.
        step_weights: Weight of each step; by default that of its row.
        axis_name: Name of the mapped axis over which the batch is divided.
    """
    is_sampled = scheduled.policy.mode == "sample"
    beta = scheduled.entropy_coef
    steps = weights if step_weights is None else step_weights
    if is_sampled and objective.baseline == "rollouts":
        apart = partial(
            jax.tree.map, lambda leaf: leaf.reshape(-1, objective.rollouts, *leaf.shape[1:])
        )
        decisions, nll, rewards, weights, steps = map(
            apart, (decisions, nll, rewards, weights, steps)
        )
    of_steps = nll.ndim == jnp.ndim(decisions[0].action)
    loss = rl.network_loss(decisions, nll, weights=steps if of_steps else weights)
    is_exact = objective.entropy == "exact" or not is_sampled
    of_agents = -beta * rl.entropy(decisions, weights=steps) if is_exact else 0.0
    if is_sampled:
        baselines = {
            "none": None,
            "batch": partial(rl.leave_one_out, axis_name=axis_name),
            "rollouts": partial(rl.leave_one_out, axis=1),
        }
        of_agents += rl.reinforce(
            decisions,
            rewards,
            baseline=baselines[objective.baseline],
            discount=objective.discount if of_steps else 1.0,
            entropy_coef=0.0 if is_exact else beta,
            weights=steps,
        )
    return (
        loss
        + objective.rl_coef * of_agents
        + scheduled.update_cost * rl.tokens_read(decisions, weights=steps)
    )
