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
import numpy as np
from jaxtyping import Array, Bool, Float

from dynskip_jax import functional as F
from dynskip_jax import rl
from dynskip_jax.errors import UserError
from dynskip_jax.settings import check
from dynskip_jax.training.agent_settings import AgentSettings
from dynskip_jax.training.schedule import geometric, linear


class AgentStage(NamedTuple):
    """What an epoch tells every step of it. A pytree whose only static part is the policy's mode: an argument
    under `jit`, which compiles anew where choices are made in another way.

    Attributes:
        policy: how choices are made.
        entropy_coef: β.
        update_cost: of each word that is read; see `AgentSettings`.
    """

    policy: F.Policy
    entropy_coef: float | Float[Array, "..."]
    update_cost: float | Float[Array, "..."] = 0.0


@dataclasses.dataclass(frozen=True)
class AgentObjective(AgentSettings):
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

    The fields, each with what it means, are those of `training.agent_settings.AgentSettings`.
    """

    def __post_init__(self) -> None:
        """Checks the values, each and together, with messages for the person who typed them."""
        if any(isinstance(value, tuple) for value in vars(self).values()):
            raise UserError("an AgentObjective takes one value of each: several are for `Sweep`")
        check(self)
        if self.baseline == "rollouts" and self.rollouts == 1:
            raise UserError("a baseline from the other rollouts needs at least 2 rollouts, got 1")
        if self.estimator == "vimco":
            self._check_vimco()
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
        return AgentStage(policy, self._entropy_coef(epoch, epochs), self.update_cost)

    def _entropy_coef(self, epoch: int, epochs: int) -> float:
        if epoch < self.relaxed_epochs and self.relaxed_entropy_coef is not None:
            initial, final = self.relaxed_entropy_coef, self.relaxed_entropy_coef_final
            return initial if final is None else linear(initial, final, epoch, self.relaxed_epochs)
        if self.entropy_coef_final is None:
            return self.entropy_coef
        return linear(self.entropy_coef, self.entropy_coef_final, epoch, epochs)

    def _temperature(self, epoch: int) -> float:
        if self.mode(epoch) == "sample":
            return 1.0  # attention, which has a temperature too, is then as it is in evaluation
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
        reverse: Sequence[bool] | None = None,
        both_ways: Sequence[bool] | None = None,
        rewards: Float[Array, " rows"] | Float[Array, "rows time"] | None = None,
        correct: Float[Array, "..."] | None = None,
        weights: Float[Array, " rows"] | None = None,
        average: rl.MovingAverage | None = None,
        values: Sequence[Float[Array, "rows time"] | None] | None = None,
        axis_name: str | None = None,
    ) -> Float[Array, ""]:
        """Returns J_1 - rl_coef · J_2, Eq. 3 to 6, to be minimised: the mean over the rows of a batch.

        J_1 is the cross-entropy, summed over the steps where there is one for each; with VIMCO that of the
        averaged prediction. -J_2 is summed over all layers and directions that sample. Relaxed choices are
        trained by J_1 itself; of J_2 the entropy is left, which is exact then. Skips that leave words out and
        pass a gradient through what they read (Skip RNN) pay for it: the budget loss of Campos et al. (2018),
        Eq. 6, is added.

        Args:
            stage: of this epoch; the model was called with its policy.
            nll: the negative log-likelihood of the truth in nats, one for each row, or one for each step.
            decisions: the trace of each layer and direction, or of the only one; the rollouts of an example
                stand side by side (`repeat`).
            valid: False past the end of a sequence (`functional.length_mask`); None where all steps count.
            skips: the time skip of each, as `SkipStack.skips`, where not all of them sample.
            reverse: of each whether it read from the end, as `SkipStack.reverse`: the rewards that follow its
                actions are then those of the steps before; None where all read from the start.
            both_ways: of each whether its actions change the rewards of steps that it read before, too, as
                `SkipStack.both_ways`: below a layer that reads the other way. They are then paid for as those
                that follow are, discounted alike; None where no layer is below another one that does.
            rewards: in place of those that `reward` makes of the log-likelihood: one for each row, or for
                each step; stopped here.
            correct: where the reward is `correct`: 1 where a prediction was right, and 0 otherwise.
            weights: of the rows in both sums, which are then divided by the number of rows; None: 1 each.
                Rows of weight 0 have no part in the baseline of others.
            average: of earlier returns, for the baseline `moving_average`.
            values: a critic's V(s(t)) for each layer that samples, for the baseline `learned`; the critics'
                own loss is added.
            axis_name: the mapped axis over which the batch is divided, if it is; the mean is that of the
                part.

        Raises:
            UserError: shapes do not fit each other.
        """
        if isinstance(decisions, F.Decision | F.DecisionTrace):
            decisions = (decisions,)
        if skips is None:
            self._check_no_cost(stage, decisions)
            skips = (F.Dynamic(),) * len(decisions)
        if reverse is None:
            reverse = (False,) * len(decisions)
        if both_ways is None:
            both_ways = (False,) * len(decisions)
        lengths = {"skips": skips, "reverse": reverse, "both_ways": both_ways, "values": values}
        for name, of_each in lengths.items():
            if of_each is not None and len(of_each) != len(decisions):
                raise UserError(f"{len(decisions)} decisions need as many {name}, got {len(of_each)}")
        if weights is not None and jnp.shape(weights) != jnp.shape(nll)[:1]:
            raise UserError(f"expected weights to be {jnp.shape(nll)[:1]}, got {jnp.shape(weights)}")
        rewards = self._checked_rewards(stage, nll, decisions, valid, rewards, correct)
        total = budget = jnp.zeros((), rewards.dtype)
        of_layers = zip(skips, decisions, reverse, both_ways, strict=True)
        for i, (skip, decision, back, both) in enumerate(of_layers):
            if skip.is_stochastic:
                traces = decision, rewards, valid, None if values is None else values[i]
                if back:
                    # In the order of reading; padding, which counts for nothing, may lead as well as trail.
                    traces = jax.tree.map(lambda leaf: leaf if leaf.ndim == 1 else leaf[:, ::-1], traces)
                counted = None if weights is None else weights > 0
                losses = self._of_agent(stage, *traces, counted, average, axis_name, both)
                total = total + _weighted_mean(losses, weights)
            if decision.update is not None and skip.differentiable(stage.policy.mode, False):
                updates = decision.update if valid is None else jnp.where(valid, decision.update, 0)
                budget = budget + stage.update_cost * _weighted_mean(updates.sum(axis=1), weights)
        return self._of_network(stage, nll, valid, weights) + self.rl_coef * total + budget

    def _check_no_cost(self, stage: AgentStage, decisions: Sequence[F.Decision]) -> None:
        """Refuses a cost of updates where nobody says which of them are paid for."""
        traced = isinstance(stage.update_cost, jax.core.Tracer)
        cost = self.update_cost if traced else stage.update_cost
        if np.any(np.asarray(cost) > 0) and any(getattr(d, "update", None) is not None for d in decisions):
            raise UserError(
                "update_cost is of skips that leave words out: pass skips=, the time skip of each decision"
            )

    def _checked_rewards(self, stage, nll, decisions, valid, rewards, correct) -> Float[Array, "..."]:
        """The rewards, stopped, every shape beside them looked at."""
        if rewards is None:
            rewards = self.rewards(-nll, correct)
        for decision in decisions:
            if not isinstance(decision, F.Decision | F.DecisionTrace):
                raise UserError(
                    "decisions are those of a layer, out.decision, or of a stack, out.decisions; got "
                    f"{type(decision).__name__}"
                )
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

    def _of_network(
        self, stage: AgentStage, nll: Array, valid: Array | None, weights: Array | None
    ) -> Float[Array, ""]:
        """J_1."""
        if self._averages(stage):
            if nll.ndim > 1:
                raise UserError("the estimator vimco averages predictions of rows, not of steps")
            averaged = -rl.averaged_log_likelihood(-nll.reshape(-1, self.rollouts))
            return _weighted_mean(averaged, None if weights is None else weights[:: self.rollouts])
        if nll.ndim > 1:
            nll = (nll if valid is None else jnp.where(valid, nll, 0)).sum(axis=1)
        return _weighted_mean(nll, weights)

    def _averages(self, stage: AgentStage) -> bool:
        return stage.policy.mode == "sample" and self.estimator == "vimco"

    def _of_agent(
        self,
        stage: AgentStage,
        decision: F.Decision,
        rewards: Array,
        valid: Bool[Array, "rows time"] | None,
        values: Float[Array, "rows time"] | None,
        counted: Bool[Array, " rows"] | None,
        average: rl.MovingAverage | None,
        axis_name: str | None,
        both_ways: bool,
    ) -> Float[Array, " rows"]:
        """-J_2 of one layer, for each row, its steps in the order of reading."""
        sampled = stage.policy.mode == "sample"
        exact = self.entropy == "exact" or not sampled
        losses = jnp.zeros(len(rewards), rewards.dtype)
        if self._averages(stage):
            losses = self._vimco_scores(decision, rewards, valid)
        elif sampled:
            returns, earlier = rewards, jnp.zeros((), rewards.dtype)
            if rewards.ndim > 1:
                returns, earlier = _returns(rewards, valid, self.discount, both_ways)
            # The loss sums what follows itself: what came earlier is left to add.
            if returns.ndim > 1 and valid is not None:  # a sequence that has ended is in no step's mean
                counted = valid if counted is None else valid & counted[:, None]
            baseline = self._baseline(returns, axis_name, counted, average, values) - earlier

            def of_sequence(log_probs, rewards, valid, baseline):
                return rl.reinforce_loss(
                    log_probs,
                    rewards,
                    valid=valid,
                    discount=self.discount,
                    entropy_coef=0.0 if exact else stage.entropy_coef,
                    baseline=baseline,
                )

            losses = jax.vmap(of_sequence)(decision.log_prob, rewards, valid, baseline)
            if values is not None:
                losses = losses + jax.vmap(rl.critic_loss)(values, returns, valid)
        if exact:
            entropy = decision.entropy if valid is None else jnp.where(valid, decision.entropy, 0)
            losses = losses - stage.entropy_coef * entropy.sum(axis=1)
        return losses

    def _vimco_scores(self, decision: F.Decision, log_likelihood: Array, valid: Array | None) -> Array:
        """The agents' part of `rl.vimco_loss`, one for each rollout; the network's is J_1."""
        M = self.rollouts
        log_probs = decision.log_prob if valid is None else jnp.where(valid, decision.log_prob, 0)
        log_probs = log_probs.reshape(-1, M, log_probs.shape[-1])
        log_likelihood = log_likelihood.reshape(-1, M)
        losses = jax.vmap(rl.vimco_loss)(log_probs, log_likelihood) + rl.averaged_log_likelihood(
            log_likelihood
        )
        return jnp.repeat(losses, M)

    def _baseline(
        self,
        returns: Float[Array, " rows"] | Float[Array, "rows time"],
        axis_name: str | None,
        counted: Bool[Array, "rows ..."] | None,
        average: rl.MovingAverage | None,
        values: Float[Array, "rows time"] | None,
    ) -> Array:
        """What returns are compared with; none of it depends on the action it is subtracted for."""
        if self.baseline == "none":
            return jnp.zeros_like(returns)
        if self.baseline == "batch":
            return rl.leave_one_out_mean(returns, axis_name, counted)
        if self.baseline == "rollouts":
            grouped = returns.reshape(-1, self.rollouts, *returns.shape[1:])
            return jax.vmap(rl.leave_one_out_mean)(grouped).reshape(returns.shape)
        if self.baseline == "learned" and values is not None:
            return values
        if self.baseline == "moving_average" and average is not None:
            return jnp.broadcast_to(rl.moving_average_value(average), returns.shape)
        needs = {"learned": "values, what critics say", "moving_average": "average, of earlier returns"}
        raise UserError(f"the baseline {self.baseline!r} needs {needs[self.baseline]}")


def _returns(
    rewards: Float[Array, "rows time"], valid: Array | None, discount: float, both_ways: bool
) -> tuple[Float[Array, "rows time"], Float[Array, "rows time"]]:
    """The return of each action, and the part of it that came before the action's own step."""
    rewards = rewards if valid is None else jnp.where(valid, rewards, 0)
    following, earlier = rl.reward_to_go(rewards, discount), jnp.zeros_like(rewards)
    if both_ways:
        earlier = rl.reward_to_go(rewards[:, ::-1], discount)[:, ::-1] - rewards
    return following + earlier, earlier


def _weighted_mean(losses: Float[Array, " rows"], weights: Float[Array, " rows"] | None) -> Float[Array, ""]:
    return losses.mean() if weights is None else (losses * weights).mean()
