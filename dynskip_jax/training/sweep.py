"""Settings in which models trained together differ, and the agent's values in each epoch."""

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


class Sweep(NamedTuple):
    """Settings in which models trained together differ, a value for each; None if they agree."""

    mix: tuple[float, ...] | None = None  # λ
    entropy_coef: tuple[float, ...] | None = None  # β
    update_cost: tuple[float, ...] | None = None  # cost of each word read

    def scheduled(self, agent: Agent, epoch: int, epochs: int, count: int) -> ScheduledValues:
        """Return the values of `count` models in an epoch (from 0), each leaf (seeds, ...).

        The swept settings replace those of `agent`.
        """
        coefs = self.entropy_coef or (agent.entropy_coef,) * count
        costs = self.update_cost or (agent.update_cost,) * count
        return ScheduledValues(
            self.policy(policy_mode(agent, epoch), count),
            entropy_coef=np.array([beta(agent, coef, epoch, epochs) for coef in coefs], np.float32),
            update_cost=np.array(costs, np.float32),
        )

    def policy(self, mode: str, count: int) -> F.Policy:
        """Return the policy of `count` models, each leaf (seeds, ...)."""
        return F.Policy(
            mode,
            temperature=np.ones(count, np.float32),
            mix=None if self.mix is None else np.asarray(self.mix, np.float32),
        )


def policy_mode(agent: Agent, epoch: int) -> str:
    """Return the policy's mode in `epoch`, from 0: relaxed choices first, then sampled ones."""
    return agent.relaxation if epoch < agent.relaxed_epochs else "sample"


def beta(agent: Agent, initial: float, epoch: int, epochs: int) -> float:
    """Return the weight of the entropy in `epoch`, from 0, of `epochs`."""
    final = agent.entropy_coef_final
    if epoch < agent.relaxed_epochs and agent.relaxed_entropy_coef is not None:
        initial = agent.relaxed_entropy_coef[0]
        final = agent.relaxed_entropy_coef[-1]
        epochs = agent.relaxed_epochs
    progress = min(epoch / max(epochs - 1, 1), 1.0)  # from 0 to 1
    if final is None:
        return initial
    return initial + (final - initial) * progress
