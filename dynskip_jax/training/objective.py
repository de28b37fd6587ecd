"""The training objective: cross-entropy J_1 minus the agent's J_2 (Gui et al. 2019, Eq. 3 to 6)."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError

# What the fields of `AgentObjective` that are words may be.
CHOICES = {
    "reward": ("log_likelihood", "probability", "correct"),
    "entropy": ("sampled", "exact"),
    "baseline": ("none", "batch", "rollouts"),
}


@dataclasses.dataclass(frozen=True)
class AgentObjective:
    """How the agent is rewarded.

    Attributes:
        reward: `log_likelihood` of the ground truth (the paper); its `probability` (the released
            language model); or `correct`: +1 for a right answer and -1 for a wrong one (the released
            number prediction).
        rl_coef: weight of -J_2 beside J_1; the paper's is 1, the released language model's 0.3.
        entropy_coef: β, weight of the entropy inside J_2; the paper's is 1, the released code's 0.
        entropy: `sampled`: -log π of the actions taken, inside the return (Eq. 5); or `exact`: the
            entropy of each step's distribution, differentiated directly. Both push towards exploration;
            the second has no sampling noise, and leaves out how an action moves later steps' entropies.
        discount: of per-step rewards.
        baseline: `none` (the paper); `batch`: the mean return of the other examples of the batch; or
            `rollouts`: of the other rollouts of the same example (leave-one-out, Kool et al. 2019).
        rollouts: M, how often the actions of each training example are sampled.
    """

    reward: str = "log_likelihood"
    rl_coef: float = 1.0
    entropy_coef: float = 1.0
    entropy: str = "sampled"
    discount: float = 1.0
    baseline: str = "none"
    rollouts: int = 1

    def __post_init__(self) -> None:
        """Checks the values, with messages for the person who typed them."""
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise UserError(f"unknown {name} {getattr(self, name)!r}: choose one of {', '.join(known)}")
        if not 0.0 <= self.discount <= 1.0:
            raise UserError(f"the discount lies between 0 and 1, got {self.discount}")
        if self.rollouts < 1:
            raise UserError(f"rollouts must be at least 1, got {self.rollouts}")
        if self.baseline == "rollouts" and self.rollouts == 1:
            raise UserError("a baseline from the other rollouts needs at least 2 rollouts, got 1")
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
    axis_name: str | None = None,
) -> Float[Array, ""]:
    """Returns the batch mean of -J_2 (Eq. 4 to 6), summed over the layers that sample.

    Args:
        objective: how agents are rewarded.
        skips: the time skip of each layer.
        decisions: the trace of each layer; the rollouts of an example follow each other in the batch.
        rewards: a terminal reward for each example, or one for each step.
        axis_name: the mapped axis over which the batch is divided, if it is; the mean is that of the part.
    """
    rewards = jax.lax.stop_gradient(rewards)
    exact = objective.entropy == "exact"
    total = jnp.zeros((), rewards.dtype)
    for skip, decision in zip(skips, decisions, strict=True):
        if skip.is_stochastic:
            losses = F.reinforce_loss(
                decision.log_prob,
                rewards,
                discount=objective.discount,
                entropy_coef=0.0 if exact else objective.entropy_coef,
                baseline=_baseline(objective, rewards, axis_name),
            )
            if exact:
                losses = losses - objective.entropy_coef * decision.entropy.sum(axis=1)
            total = total + losses.mean()
    return objective.rl_coef * total


def _baseline(
    objective: AgentObjective,
    rewards: Float[Array, "batch"] | Float[Array, "batch time"],
    axis_name: str | None,
) -> Float[Array, "batch"] | Float[Array, "batch time"] | float:
    if objective.baseline == "none":
        return 0.0
    returns = rewards if rewards.ndim == 1 else F.reward_to_go(rewards, objective.discount)
    if objective.baseline == "batch":
        return F.leave_one_out_mean(returns, axis_name)
    grouped = returns.reshape(-1, objective.rollouts, *returns.shape[1:])
    return jax.vmap(F.leave_one_out_mean)(grouped).reshape(returns.shape)
