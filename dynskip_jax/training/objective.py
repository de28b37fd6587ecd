"""The training objective: cross-entropy J_1 minus the agent's J_2 (Gui et al. 2019, Eq. 3 to 6)."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class AgentObjective:
    """How the agent is rewarded.

    Attributes:
        reward: `log_likelihood` of the ground truth (the paper); its `probability` (the released
            language model); or `correct`: +1 for a right answer and -1 for a wrong one (the released
            number prediction).
        rl_coef: weight of -J_2 beside J_1; the paper's is 1, the released code's 0.3.
        entropy_coef: β, weight of the entropy inside J_2; the paper's is 1, the released code's 0.
        discount: of per-step rewards.
        baseline: `none` (the paper), or `batch`: the mean return of the other examples of the batch.
    """

    reward: Literal["log_likelihood", "probability", "correct"] = "log_likelihood"
    rl_coef: float = 1.0
    entropy_coef: float = 1.0
    discount: float = 1.0
    baseline: Literal["none", "batch"] = "none"

    def __post_init__(self) -> None:
        """Checks the values, with messages for the person who typed them."""
        if not 0.0 <= self.discount <= 1.0:
            raise UserError(f"the discount lies between 0 and 1, got {self.discount}")
        for name in ("rl_coef", "entropy_coef"):
            if not getattr(self, name) >= 0.0:
                raise UserError(f"{name} must not be negative, got {getattr(self, name)}")

    def rewards(
        self, log_likelihood: Float[Array, "*shape"], correct: Float[Array, "*shape"]
    ) -> Float[Array, "*shape"]:
        """Returns the reward of each prediction from its log-likelihood and whether it was right."""
        if self.reward == "log_likelihood":
            return log_likelihood
        if self.reward == "probability":
            return jnp.exp(log_likelihood)
        return 2.0 * correct - 1.0


def agent_loss(
    objective: AgentObjective,
    skips: tuple[F.TimeSkip, ...],
    decisions: tuple[F.Decision, ...],
    rewards: Float[Array, "batch"] | Float[Array, "batch time"],
    entropy_coef: float | Float[Array, ""] | None = None,
) -> Float[Array, ""]:
    """Returns the batch mean of -J_2 (Eq. 4 to 6), summed over the layers that sample.

    Args:
        objective: how agents are rewarded.
        skips: the time skip of each layer.
        decisions: the trace of each layer.
        rewards: a terminal reward for each example, or one for each step.
        entropy_coef: β, in place of the objective's own; may be traced.
    """
    rewards = jax.lax.stop_gradient(rewards)
    baseline = 0.0
    if objective.baseline == "batch":
        returns = rewards if rewards.ndim == 1 else F.reward_to_go(rewards, objective.discount)
        baseline = F.leave_one_out_mean(returns)
    total = jnp.zeros((), rewards.dtype)
    for skip, decision in zip(skips, decisions, strict=True):
        if skip.is_stochastic:
            losses = F.reinforce_loss(
                decision.log_prob,
                rewards,
                discount=objective.discount,
                entropy_coef=objective.entropy_coef if entropy_coef is None else entropy_coef,
                baseline=baseline,
            )
            total = total + losses.mean()
    return objective.rl_coef * total
