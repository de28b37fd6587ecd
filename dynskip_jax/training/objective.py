"""The agent's part of the objective: J_2 of Gui et al. (2019), Eq. 4 to 6, and what can take its place.

Nothing here replaces the paper's objective silently: the defaults of `AgentObjective` are Eq. 5 as printed.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.training.schedule import geometric, linear

# What the fields of `AgentObjective` that are words may be.
CHOICES = {
    "reward": ("log_likelihood", "probability", "correct"),
    "entropy": ("sampled", "exact"),
    "baseline": ("none", "batch", "rollouts", "moving_average", "learned"),
    "estimator": ("reinforce", "vimco"),
    "relaxation": ("none", *F.RELAXATIONS),
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
        entropy_coef_final: β of the last epoch, reached linearly; None keeps `entropy_coef`.
        baseline: `none` (the paper); `batch`: the mean return of the other examples of the batch;
            `rollouts`: of the other rollouts of the same example (leave-one-out, Kool et al. 2019);
            `moving_average`: of the batches before (Williams 1992); or `learned`: a critic's V(s(t)).
        rollouts: M, how often the actions of each training example are sampled.
        estimator: `reinforce` (the paper), for the mean reward of a sample; or `vimco`, for the likelihood
            of the averaged prediction of M samples (Mnih & Rezende 2016), which then is the network's loss
            too. It brings a baseline of its own, and its reward is the log-likelihood.
        decay: of the moving average, for each batch.
        relaxation: one of `F.RELAXATIONS`, with which the first `relaxed_epochs` are trained in place of the
            estimator; `none` relaxes nothing.
        relaxed_epochs: how many epochs these are.
        relaxed_entropy_coef: β in these epochs, of the exact entropy; None: as in the others. Below 0 it
            makes the policy certain, so that little changes when choices are no longer relaxed.
        relaxed_entropy_coef_final: that of the last relaxed epoch, reached linearly; None keeps it.
        temperature: τ of relaxed choices.
        temperature_final: τ of the last relaxed epoch, reached geometrically; None keeps `temperature`.
    """

    reward: str = "log_likelihood"
    rl_coef: float = 1.0
    entropy_coef: float = 1.0
    entropy: str = "sampled"
    discount: float = 1.0
    entropy_coef_final: float | None = None
    baseline: str = "none"
    rollouts: int = 1
    estimator: str = "reinforce"
    decay: float = 0.99
    relaxation: str = "none"
    relaxed_epochs: int = 0
    relaxed_entropy_coef: float | None = None
    relaxed_entropy_coef_final: float | None = None
    temperature: float = 1.0
    temperature_final: float | None = None

    def __post_init__(self) -> None:
        """Checks the values, with messages for the person who typed them."""
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise UserError(f"unknown {name} {getattr(self, name)!r}: choose one of {', '.join(known)}")
        if not 0.0 <= self.discount <= 1.0:
            raise UserError(f"the discount lies between 0 and 1, got {self.discount}")
        if not 0.0 <= self.decay < 1.0:
            raise UserError(f"the decay of a moving average lies in [0, 1), got {self.decay}")
        if self.rollouts < 1:
            raise UserError(f"rollouts must be at least 1, got {self.rollouts}")
        if self.baseline == "rollouts" and self.rollouts == 1:
            raise UserError("a baseline from the other rollouts needs at least 2 rollouts, got 1")
        if self.estimator == "vimco":
            self._check_vimco()
        for name in ("rl_coef", "entropy_coef", "entropy_coef_final", "relaxed_epochs"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UserError(f"{name} must not be negative, got {value}")
        for name in ("temperature", "temperature_final"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"{name} must be positive, got {value}")
        if self.relaxed_entropy_coef_final is not None and self.relaxed_entropy_coef is None:
            raise UserError("relaxed_entropy_coef_final is where relaxed_entropy_coef leads to: give both")
        if self.relaxation == "none" and self.relaxed_epochs > 0:
            raise UserError(
                f"{self.relaxed_epochs} relaxed epochs need a relaxation: choose {', '.join(F.RELAXATIONS)}"
            )

    def _check_vimco(self) -> None:
        if self.rollouts == 1:
            raise UserError("the estimator vimco averages several rollouts: it needs at least 2, got 1")
        if self.baseline not in ("none", "rollouts"):
            raise UserError(f"the estimator vimco has a baseline of its own: leave out {self.baseline!r}")
        if self.reward != "log_likelihood":
            raise UserError(f"the estimator vimco is rewarded with log_likelihood, not {self.reward!r}")
        if self.entropy == "sampled" and self.entropy_coef > 0:
            raise UserError("the estimator vimco needs the exact entropy, or an entropy_coef of 0")

    def mode(self, epoch: int) -> str:
        """Returns how choices are made in training in an epoch (from 0): a relaxation, or `sample`."""
        return self.relaxation if epoch < self.relaxed_epochs else "sample"

    def entropy_coef_at(self, epoch: int, epochs: int) -> float:
        """Returns β of an epoch (from 0) out of `epochs`."""
        if epoch < self.relaxed_epochs and self.relaxed_entropy_coef is not None:
            initial, final = self.relaxed_entropy_coef, self.relaxed_entropy_coef_final
            return initial if final is None else linear(initial, final, epoch, self.relaxed_epochs)
        if self.entropy_coef_final is None:
            return self.entropy_coef
        return linear(self.entropy_coef, self.entropy_coef_final, epoch, epochs)

    def temperature_at(self, epoch: int) -> float:
        """Returns τ of an epoch (from 0)."""
        if self.temperature_final is None:
            return self.temperature
        return geometric(self.temperature, self.temperature_final, epoch, self.relaxed_epochs)

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
    *,
    mode: str = "sample",
    entropy_coef: float | Float[Array, ""] | None = None,
    average: F.MovingAverage | None = None,
    values: tuple[Float[Array, "batch time"] | None, ...] | None = None,
) -> Float[Array, ""]:
    """Returns the batch mean of -J_2 (Eq. 4 to 6), summed over the layers that sample.

    Relaxed choices are trained by the network's own loss; of J_2 the entropy is left, which is exact then.

    Args:
        objective: how agents are rewarded.
        skips: the time skip of each layer.
        decisions: the trace of each layer; the rollouts of an example follow each other in the batch.
        rewards: a terminal reward for each example, or one for each step.
        axis_name: the mapped axis over which the batch is divided, if it is; the mean is that of the part.
        mode: how choices were made: `sample`, or a relaxation.
        entropy_coef: β in place of the objective's own, as in an epoch of a schedule.
        average: of earlier returns, for the baseline `moving_average`.
        values: a critic's V(s(t)) for each layer that samples, for the baseline `learned`; the critics'
            own loss is added.
    """
    rewards = jax.lax.stop_gradient(rewards)
    beta = objective.entropy_coef if entropy_coef is None else entropy_coef
    exact = objective.entropy == "exact" or mode != "sample"
    discount = objective.discount
    if values is not None and rewards.ndim == 1:
        # A critic has a value for each step, so the one reward becomes that of the last step.
        steps = decisions[0].log_prob.shape[1]
        rewards, discount = jnp.pad(rewards[:, None], ((0, 0), (steps - 1, 0))), 1.0
    returns = rewards if rewards.ndim == 1 else F.reward_to_go(rewards, discount)
    total = jnp.zeros((), rewards.dtype)
    for i, (skip, decision) in enumerate(zip(skips, decisions, strict=True)):
        if not skip.is_stochastic:
            continue
        learned = None if values is None else values[i]
        losses = jnp.zeros(len(rewards), rewards.dtype)
        if mode == "sample" and objective.estimator == "vimco":
            losses = _vimco_scores(objective, decision, rewards)
        elif mode == "sample":
            losses = F.reinforce_loss(
                decision.log_prob,
                rewards,
                discount=discount,
                entropy_coef=0.0 if exact else beta,
                baseline=_baseline(objective, returns, axis_name, average, learned),
            )
            if learned is not None:
                losses = losses + F.critic_loss(learned, returns)
        if exact:
            losses = losses - beta * decision.entropy.sum(axis=1)
        total = total + losses.mean()
    return objective.rl_coef * total


def _vimco_scores(
    objective: AgentObjective, decision: F.Decision, log_likelihood: Float[Array, " batch"]
) -> Float[Array, " batch"]:
    """The agents' part of `F.vimco_loss`, one for each rollout; the network's is `network_loss`."""
    M = objective.rollouts
    log_probs = decision.log_prob.reshape(-1, M, decision.log_prob.shape[-1])
    log_likelihood = log_likelihood.reshape(-1, M)
    losses = F.vimco_loss(log_probs, log_likelihood) + F.averaged_log_likelihood(log_likelihood)
    return jnp.repeat(losses, M)


def network_loss(objective: AgentObjective, mode: str, nll: Float[Array, " batch"]) -> Float[Array, ""]:
    """Returns J_1, the mean cross-entropy of each sample (Eq. 3); with VIMCO that of the averaged prediction.

    Args:
        objective: how agents are trained.
        mode: how choices were made: `sample`, or a relaxation.
        nll: the negative log-likelihood of the truth in nats; the rollouts of an example follow each other.
    """
    if mode == "sample" and objective.estimator == "vimco":
        return -F.averaged_log_likelihood(-nll.reshape(-1, objective.rollouts)).mean()
    return nll.mean()


def _baseline(
    objective: AgentObjective,
    returns: Float[Array, "batch"] | Float[Array, "batch time"],
    axis_name: str | None,
    average: F.MovingAverage | None,
    values: Float[Array, "batch time"] | None,
) -> Array | float:
    """What returns are compared with; none of it depends on the action it is subtracted for."""
    if objective.baseline == "none":
        return 0.0
    if objective.baseline == "batch":
        return F.leave_one_out_mean(returns, axis_name)
    if objective.baseline == "rollouts":
        grouped = returns.reshape(-1, objective.rollouts, *returns.shape[1:])
        return jax.vmap(F.leave_one_out_mean)(grouped).reshape(returns.shape)
    if objective.baseline == "learned" and values is not None:
        return values
    if objective.baseline == "moving_average" and average is not None:
        return F.moving_average_value(average)
    raise UserError(f"this task has no {objective.baseline!r} baseline: choose none, batch or rollouts")
