"""Training a model whose layers choose: Gui et al. (2019), Eq. 3 to 6, and what can take the place of J_2.

For any Flax model; the experiments of this project use the very same. `AgentObjective` says how agents are
trained, its `stage` what an epoch tells its steps, and its `loss` is that of a step.
Nothing here replaces the paper's objective silently: the defaults of `AgentObjective` are Eq. 5 as printed.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

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


class AgentStage(NamedTuple):
    """What an epoch tells every step of it. A pytree whose only static part is the policy's mode: an argument
    under `jit`, which compiles anew where choices are made in another way.

    Attributes:
        policy: how choices are made.
        entropy_coef: β.
    """

    policy: F.Policy
    entropy_coef: float | Float[Array, "..."]


@dataclasses.dataclass(frozen=True)
class AgentObjective:
    """How agents are trained.

    An epoch is whatever the caller counts: `stage` is asked with its number. What is called an example is a
    row of the batch before rollouts.

    Example, a step of any model that returns logits and a layer's decisions::

        agents = AgentObjective(  # relaxed first, then four rollouts compared with each other
            relaxation="soft", relaxed_epochs=5, rollouts=4, baseline="rollouts",
            entropy="exact", entropy_coef=0.02,
        )

        @nnx.jit
        def train_step(model, optimizer, x, y, key, stage):
            x, y = agents.repeat((x, y), stage)

            def loss_fn(model):
                logits, decisions = model(x, policy=stage.policy, rngs=key)
                nll = optax.softmax_cross_entropy_with_integer_labels(logits, y)
                return agents.loss(stage, nll, decisions, valid=None)

            optimizer.update(model, nnx.grad(loss_fn)(model))

        for epoch in range(15):
            for x, y in batches(epoch):
                train_step(model, optimizer, x, y, next_key(), agents.stage(epoch, epochs=15))

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

    def stage(self, epoch: int, epochs: int) -> AgentStage:
        """Returns what the steps of an epoch (from 0) out of `epochs` are told."""
        policy = F.Policy(self.mode(epoch), temperature=self._temperature(epoch))
        return AgentStage(policy, self._entropy_coef(epoch, epochs))

    def _entropy_coef(self, epoch: int, epochs: int) -> float:
        if epoch < self.relaxed_epochs and self.relaxed_entropy_coef is not None:
            initial, final = self.relaxed_entropy_coef, self.relaxed_entropy_coef_final
            return initial if final is None else linear(initial, final, epoch, self.relaxed_epochs)
        if self.entropy_coef_final is None:
            return self.entropy_coef
        return linear(self.entropy_coef, self.entropy_coef_final, epoch, epochs)

    def _temperature(self, epoch: int) -> float:
        if self.temperature_final is None:
            return self.temperature
        return geometric(self.temperature, self.temperature_final, epoch, self.relaxed_epochs)

    def num_rollouts(self, stage: AgentStage) -> int:
        """Returns how often each example is read in a step: relaxed choices need no more than once."""
        return self.rollouts if stage.policy.mode == "sample" else 1

    def repeat(self, batch: Any, stage: AgentStage) -> Any:
        """Returns the rows of every leaf `num_rollouts` times, the rollouts of an example side by side."""
        return jax.tree.map(lambda leaf: jnp.repeat(leaf, self.num_rollouts(stage), axis=0), batch)

    def rewards(
        self, log_likelihood: Float[Array, "*shape"], correct: Float[Array, "*shape"] | None = None
    ) -> Float[Array, "*shape"]:
        """Returns the reward of each prediction from its log-likelihood and, for `correct`, whether it was
        right."""
        if self.reward == "log_likelihood":
            return log_likelihood
        if self.reward == "probability":
            return jnp.exp(log_likelihood)
        if correct is None:
            raise UserError("the reward `correct` needs to be told which predictions were: pass correct=")
        return 2.0 * correct - 1.0

    def loss(
        self,
        stage: AgentStage,
        nll: Float[Array, " rows"] | Float[Array, "rows time"],
        decisions: F.Decision | Sequence[F.Decision],
        *,
        valid: Bool[Array, "rows time"] | None,
        skips: Sequence[F.TimeSkip] | None = None,
        rewards: Float[Array, " rows"] | Float[Array, "rows time"] | None = None,
        correct: Float[Array, "..."] | None = None,
        average: F.MovingAverage | None = None,
        values: Sequence[Float[Array, "rows time"] | None] | None = None,
        axis_name: str | None = None,
    ) -> Float[Array, ""]:
        """Returns J_1 - rl_coef · J_2, Eq. 3 to 6, to be minimised: the mean over the rows of a batch.

        J_1 is the cross-entropy, summed over the steps where there is one for each; with VIMCO that of the
        averaged prediction. -J_2 is summed over all layers and directions that sample. Relaxed choices are
        trained by J_1 itself; of J_2 the entropy is left, which is exact then.

        Args:
            stage: of this epoch; the model was called with its policy.
            nll: the negative log-likelihood of the truth in nats, one for each row, or one for each step.
            decisions: the trace of each layer and direction, or of the only one; the rollouts of an example
                stand side by side (`repeat`).
            valid: False past the end of a sequence (`functional.length_mask`); None where all steps count.
            skips: the time skip of each, as `SkipStack.skips`, where not all of them sample.
            rewards: in place of those that `reward` makes of the log-likelihood: one for each row, or for
                each step; stopped here.
            correct: where the reward is `correct`: 1 where a prediction was right, and 0 otherwise.
            average: of earlier returns, for the baseline `moving_average`.
            values: a critic's V(s(t)) for each layer that samples, for the baseline `learned`; the critics'
                own loss is added.
            axis_name: the mapped axis over which the batch is divided, if it is; the mean is that of the
                part.

        Raises:
            UserError: shapes do not fit each other.
        """
        if isinstance(decisions, F.Decision):
            decisions = (decisions,)
        if skips is None:
            skips = (F.Dynamic(),) * len(decisions)
        rewards = self._checked_rewards(stage, nll, decisions, valid, rewards, correct)
        total = jnp.zeros((), rewards.dtype)
        for i, (skip, decision) in enumerate(zip(skips, decisions, strict=True)):
            if skip.is_stochastic:
                own = None if values is None else values[i]
                total = (
                    total + self._of_agent(stage, decision, rewards, valid, average, own, axis_name).mean()
                )
        return self._of_network(stage, nll, valid) + self.rl_coef * total

    def _checked_rewards(self, stage, nll, decisions, valid, rewards, correct) -> Float[Array, "..."]:
        """The rewards, stopped, every shape beside them looked at."""
        if rewards is None:
            rewards = self.rewards(-nll, correct)
        for decision in decisions:
            rows, time = jnp.shape(decision.log_prob)
            shapes = {"nll": nll, "rewards": rewards}
            for name, array in shapes.items():
                if jnp.shape(array) not in ((rows,), (rows, time)):
                    raise UserError(
                        f"expected {name} to be {(rows,)} or {(rows, time)} beside decisions {(rows, time)}, "
                        f"got {jnp.shape(array)}"
                    )
            if valid is not None and jnp.shape(valid) != (rows, time):
                raise UserError(f"expected valid to be {(rows, time)}, got {jnp.shape(valid)}")
            if rows % self.num_rollouts(stage):
                raise UserError(
                    f"{rows} rows are no multiple of {self.num_rollouts(stage)} rollouts: `repeat` the batch"
                )
        return jax.lax.stop_gradient(rewards)

    def _of_network(self, stage: AgentStage, nll: Array, valid: Array | None) -> Float[Array, ""]:
        """J_1."""
        if self._averages(stage):
            if nll.ndim > 1:
                raise UserError("the estimator vimco averages predictions of rows, not of steps")
            return -F.averaged_log_likelihood(-nll.reshape(-1, self.rollouts)).mean()
        if nll.ndim > 1:
            nll = (nll if valid is None else jnp.where(valid, nll, 0)).sum(axis=1)
        return nll.mean()

    def _averages(self, stage: AgentStage) -> bool:
        return stage.policy.mode == "sample" and self.estimator == "vimco"

    def _of_agent(
        self,
        stage: AgentStage,
        decision: F.Decision,
        rewards: Array,
        valid: Bool[Array, "rows time"] | None,
        average: F.MovingAverage | None,
        values: Float[Array, "rows time"] | None,
        axis_name: str | None,
    ) -> Float[Array, " rows"]:
        """-J_2 of one layer, for each row."""
        sampled = stage.policy.mode == "sample"
        exact = self.entropy == "exact" or not sampled
        losses = jnp.zeros(len(rewards), rewards.dtype)
        if self._averages(stage):
            losses = self._vimco_scores(decision, rewards, valid)
        elif sampled:
            returns = rewards if rewards.ndim == 1 else _returns(rewards, valid, self.discount)
            baseline = self._baseline(returns, axis_name, average, values)

            def of_sequence(log_probs, rewards, valid, baseline):
                return F.reinforce_loss(
                    log_probs,
                    rewards,
                    valid=valid,
                    discount=self.discount,
                    entropy_coef=0.0 if exact else stage.entropy_coef,
                    baseline=baseline,
                )

            losses = jax.vmap(of_sequence)(decision.log_prob, rewards, valid, baseline)
            if values is not None:
                losses = losses + jax.vmap(F.critic_loss)(values, returns, valid)
        if exact:
            entropy = decision.entropy if valid is None else jnp.where(valid, decision.entropy, 0)
            losses = losses - stage.entropy_coef * entropy.sum(axis=1)
        return losses

    def _vimco_scores(self, decision: F.Decision, log_likelihood: Array, valid: Array | None) -> Array:
        """The agents' part of `F.vimco_loss`, one for each rollout; the network's is J_1."""
        M = self.rollouts
        log_probs = decision.log_prob if valid is None else jnp.where(valid, decision.log_prob, 0)
        log_probs = log_probs.reshape(-1, M, log_probs.shape[-1])
        log_likelihood = log_likelihood.reshape(-1, M)
        losses = F.vimco_loss(log_probs, log_likelihood) + F.averaged_log_likelihood(log_likelihood)
        return jnp.repeat(losses, M)

    def _baseline(
        self,
        returns: Float[Array, " rows"] | Float[Array, "rows time"],
        axis_name: str | None,
        average: F.MovingAverage | None,
        values: Float[Array, "rows time"] | None,
    ) -> Array:
        """What returns are compared with; none of it depends on the action it is subtracted for."""
        if self.baseline == "none":
            return jnp.zeros(len(returns), returns.dtype)
        if self.baseline == "batch":
            return F.leave_one_out_mean(returns, axis_name)
        if self.baseline == "rollouts":
            grouped = returns.reshape(-1, self.rollouts, *returns.shape[1:])
            return jax.vmap(F.leave_one_out_mean)(grouped).reshape(returns.shape)
        if self.baseline == "learned" and values is not None:
            return values
        if self.baseline == "moving_average" and average is not None:
            return jnp.broadcast_to(F.moving_average_value(average), returns.shape)
        needs = {"learned": "values, what critics say", "moving_average": "average, of earlier returns"}
        raise UserError(f"the baseline {self.baseline!r} needs {needs[self.baseline]}")


def _returns(rewards: Float[Array, "rows time"], valid: Array | None, discount: float) -> Array:
    return F.reward_to_go(rewards if valid is None else jnp.where(valid, rewards, 0), discount)
