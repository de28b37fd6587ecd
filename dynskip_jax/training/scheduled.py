"""The values of agents in each epoch: how they choose, and the weights in their loss."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from dynskip_jax import functional as F
from dynskip_jax.config.settings import Agent


class ScheduledValues(NamedTuple):
    """Values of agents in one epoch. A pytree whose only static part is the policy's mode."""

    policy: F.Policy
    entropy_coef: float | Float[Array, "..."] | np.ndarray  # β
    update_cost: float | Float[Array, "..."] | np.ndarray = 0.0  # of each token that is read


def scheduled_values(
    agent: Agent, epoch: int, epochs: int, count: int, mixes: Sequence[float] | None = None
) -> ScheduledValues:
    """Return the values of `count` models in an epoch (from 0) of `epochs`, each leaf (seeds, ...).

    `mixes` are the λ of models that differ in it.
    """
    return ScheduledValues(
        policy_of(policy_mode(agent, epoch), count, mixes),
        entropy_coef=np.full(count, beta(agent, epoch, epochs), np.float32),
        update_cost=np.full(count, agent.update_cost, np.float32),
    )


def policy_of(mode: str, count: int, mixes: Sequence[float] | None = None) -> F.Policy:
    """Return the policy of `count` models, each leaf (seeds, ...)."""
    return F.Policy(
        mode,
        temperature=np.ones(count, np.float32),
        mix=None if mixes is None else np.asarray(mixes, np.float32),
    )


def policy_mode(agent: Agent, epoch: int) -> str:
    """Return the policy's mode in `epoch`, from 0: relaxed choices first, then sampled ones."""
    return agent.relaxation if epoch < agent.relaxed_epochs else "sample"


def beta(agent: Agent, epoch: int, epochs: int) -> float:
    """Return the weight of the entropy in `epoch`, from 0, of `epochs`."""
    initial = agent.entropy_coef
    final = agent.entropy_coef_final
    if epoch < agent.relaxed_epochs and agent.relaxed_entropy_coef is not None:
        initial = agent.relaxed_entropy_coef[0]
        final = agent.relaxed_entropy_coef[-1]
        epochs = agent.relaxed_epochs
    progress = min(epoch / max(epochs - 1, 1), 1.0)  # from 0 to 1
    if final is None:
        return initial
    return initial + (final - initial) * progress
