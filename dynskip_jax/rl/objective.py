"""Loss of a model whose layers make choices: `AgentObjective`, which combines this package's losses.

The defaults of `AgentObjective` are Gui et al. (2019), Eq. 3 to 6, as printed.
"""

import dataclasses
import functools
import math
import numbers
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.rl import baselines, policy_gradient
from dynskip_jax.rl.returns import noncausal_return, reward_to_go

# Requirements on the numbers of an objective: names of fields, a test, and the words of its error message.
_REQUIREMENTS = (
    (
        ("rl_coef", "entropy_coef", "entropy_coef_final", "update_cost"),
        lambda value: value >= 0,
        "must not be negative",
    ),
    (("temperature", "temperature_final"), lambda value: value > 0, "must be positive and finite"),
    (("discount",), lambda value: 0 <= value <= 1, "must lie between 0 and 1"),
    (("baseline_decay",), lambda value: 0 <= value < 1, "must lie in [0, 1)"),
    (("rollouts",), lambda value: value >= 1, "must be at least 1"),
    (("relaxed_epochs",), lambda value: value >= 0, "must not be negative"),
    (("relaxed_entropy_coef", "relaxed_entropy_coef_final"), math.isfinite, "must be finite"),
)


@F.register_for_export
class ScheduledValues(NamedTuple):
    """Values of an objective in one epoch. A pytree whose only static part is the policy's mode.

    Pass it to the jitted step as an argument: the step is compiled again only when the mode changes.

    Attributes:
        policy: How choices are made.
        entropy_coef: β, the weight of the entropy.
        update_cost: Cost of each token that is read; see `AgentObjective`.
    """

    policy: F.Policy
    entropy_coef: float | Float[Array, "..."]
    update_cost: float | Float[Array, "..."] = 0.0


@dataclasses.dataclass(frozen=True)
class AgentObjective:
    """Options of the agents' training, and the loss that they define.

    An example is a row of the batch before it is repeated for rollouts. The caller defines what an epoch is.

    Example, a training step of a model that returns logits and the output of its layers::

        agents = AgentObjective(rollouts=4, baseline="rollouts", entropy="exact", entropy_coef=0.02)
        schedule = agents.schedule(epochs=15)

        @nnx.jit
        def train_step(model, optimizer, x, y, key, scheduled):
            x, y = agents.repeat((x, y), scheduled)

            def loss_fn(model):
                logits, out = model(x, policy=scheduled.policy, rngs=key)
                nll = optax.softmax_cross_entropy_with_integer_labels(logits, y)
                return agents.loss(scheduled, nll, out)

            optimizer.update(model, nnx.grad(loss_fn)(model))

        for epoch in range(15):
            for x, y in batches(epoch):
                train_step(model, optimizer, x, y, next_key(), schedule.at(epoch))

    Attributes:
        reward: Reward of a prediction. `log_likelihood` (the paper) or `probability` of the true target;
            `correct`: 1 for a correct prediction and -1 for a wrong one (the released code).
        rl_coef: Weight of the agents' loss J_2.
        entropy_coef: β, the weight of the entropy in J_2 (1 in the paper).
        entropy: Form of the entropy. `sampled`: -log π of the actions taken, inside the return (Eq. 5).
            `exact`: the entropy of each step's distribution, differentiated directly. It has no sampling
            noise, but ignores how an action changes later entropies.
        discount: Discount per step of the rewards that follow an action (1 in the paper).
        entropy_coef_final: β of the last epoch, reached linearly; None keeps β constant.
        baseline: Value subtracted from the return. `none`: nothing, as in the paper. `batch`: the mean return
            of the other rows of the batch; needs no second sample. `rollouts`: the mean return of the other
            rollouts of the same example (Kool et al. 2019); compares equal inputs. `moving_average`: a
            moving average over earlier batches (Williams 1992); works for a batch of one example. `learned`:
            a critic's V(s(t)); works where expected returns differ between steps.
        rollouts: M, the number of times the actions of each training example are sampled.
        estimator: Estimator of the gradient. `reinforce`: of the mean reward of a sample (the paper).
            `vimco`: of the likelihood of the averaged prediction of M samples (Mnih & Rezende 2016), with its
            own baseline.
        baseline_decay: Weight of the earlier batches in the baseline `moving_average`.
        relaxation: Relaxation of the choices in the first epochs, which replaces the estimator: `soft` (no
            noise), `gumbel_softmax` (noise, small variance), `straight_through` (hard choices forward) or
            `reinmax` (hard choices, the smallest bias of the four); see `functional.relaxed_weights`.
        relaxed_epochs: Number of relaxed epochs. With 0, `relaxation` has no effect.
        relaxed_entropy_coef: β of the exact entropy in relaxed epochs; None uses `entropy_coef` and its
            schedule. Values below 0 make the policy more certain, so that less changes when sampling begins.
        relaxed_entropy_coef_final: β of the last relaxed epoch, reached linearly; None keeps it constant.
        temperature: Temperature τ of relaxed choices.
        temperature_final: τ of the last relaxed epoch, reached geometrically; None keeps τ constant.
        update_cost: Cost of each token that is read, for skips that learn by gradient which tokens to read:
            λ of Skip RNN (Campos et al. 2018, Eq. 6).

    Raises:
        UserError: A value is invalid, or does not fit the others.
    """

    reward: Literal["log_likelihood", "probability", "correct"] = "log_likelihood"
    rl_coef: float = 1.0
    entropy_coef: float = 1.0
    entropy: Literal["sampled", "exact"] = "sampled"
    discount: float = 1.0
    entropy_coef_final: float | None = None
    baseline: Literal["none", "batch", "rollouts", "moving_average", "learned"] = "none"
    rollouts: int = 1
    estimator: Literal["reinforce", "vimco"] = "reinforce"
    baseline_decay: float = 0.99
    relaxation: Literal["none", "soft", "gumbel_softmax", "straight_through", "reinmax"] = "none"
    relaxed_epochs: int = 0
    relaxed_entropy_coef: float | None = None
    relaxed_entropy_coef_final: float | None = None
    temperature: float = 1.0
    temperature_final: float | None = None
    update_cost: float = 0.0

    def __post_init__(self) -> None:
        """Check each value, and that the values fit together."""
        for name, kind in get_type_hints(type(self)).items():
            _check_word(name, getattr(self, name), get_args(kind))
        for names, holds, words in _REQUIREMENTS:
            for name in names:
                _check_number(name, getattr(self, name), holds, words)
        if self.baseline == "rollouts" and self.rollouts == 1:
            raise UserError("a baseline from the other rollouts needs at least 2 rollouts, got 1")
        if self.estimator == "vimco":
            self._check_vimco()
        if self.relaxed_entropy_coef_final is not None and self.relaxed_entropy_coef is None:
            raise UserError("relaxed_entropy_coef_final needs an initial value: give both")
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
        if self.entropy == "sampled" and max(self.entropy_coef, self.entropy_coef_final or 0.0) > 0:
            raise UserError("the estimator vimco needs the exact entropy, or an entropy_coef of 0 to the end")

    def schedule(self, epochs: int) -> "AgentSchedule":
        """Return the schedule of this objective for a training run of `epochs` epochs."""
        return AgentSchedule(self, epochs)

    def num_rollouts(self, scheduled: ScheduledValues) -> int:
        """Return the number of rollouts of each example: `rollouts` if choices are sampled, otherwise 1."""
        return self.rollouts if scheduled.policy.mode == "sample" else 1

    def repeat(self, batch: Any, scheduled: ScheduledValues) -> Any:
        """Return `batch`, a pytree of arrays, with each row repeated for its rollouts in adjacent rows."""
        return jax.tree.map(lambda leaf: jnp.repeat(leaf, self.num_rollouts(scheduled), axis=0), batch)

    def rewards(
        self, log_likelihood: Float[Array, "*shape"], correct: Float[Array, "*shape"] | None = None
    ) -> Float[Array, "*shape"]:
        """Return the reward of each prediction.

        Args:
            log_likelihood: Log-likelihood of the true target, in nats.
            correct: 1 for a correct prediction, 0 for a wrong one; required for the reward `correct`.
        """
        if self.reward == "log_likelihood":
            return log_likelihood
        if self.reward == "probability":
            return jnp.exp(log_likelihood)
        if correct is None:
            raise UserError("the reward `correct` needs to know which predictions are correct: pass correct=")
        return 2.0 * correct - 1.0

    def loss(
        self,
        scheduled: ScheduledValues,
        nll: Float[Array, " rows"] | Float[Array, "rows time"],
        out: Any,
        *,
        rewards: Float[Array, " rows"] | Float[Array, "rows time"] | None = None,
        correct: Float[Array, "..."] | None = None,
        weights: Float[Array, " rows"] | None = None,
        average: baselines.MovingAverage | None = None,
        values: Sequence[Float[Array, "rows time"] | None] | None = None,
        axis_name: str | None = None,
    ) -> Float[Array, ""]:
        """Return J_1 - rl_coef · J_2 (Eq. 3 to 6), averaged over the rows of a batch.

        J_1 is the cross-entropy, summed over valid steps if `nll` has one value for each step. With VIMCO, it
        is the cross-entropy of the averaged prediction. J_2 is summed over all layers and directions that
        sample. While choices are relaxed, J_1 trains the agents and J_2 contains only the exact entropy.
        Skips that learn by gradient which tokens to read add the budget loss of Campos et al. (2018), Eq. 6.

        Args:
            scheduled: Values of this epoch. Call the model with `scheduled.policy`.
            nll: Negative log-likelihood of the true target in nats, (rows,) or (rows, time). With layers that
                are `time_major`, all arrays that have a time axis are (time, rows).
            out: Output of a layer or model of this library, or its `decisions`. The rollouts of an example
                are adjacent rows (see `repeat`). To exclude more steps, use `DecisionTrace.where`.
            rewards: Rewards to use instead of those computed from `nll`, (rows,) or (rows, time); gradients
                are stopped.
            correct: 1 for a correct prediction, 0 for a wrong one; required for the reward `correct`.
            weights: Weights of the rows in J_1 and J_2, (rows,), whose sums are divided by the number of
                rows; 1 by default. The baseline `batch` excludes rows of weight 0.
            average: Moving average of earlier returns, for the baseline `moving_average`.
            values: A critic's V(s(t)) for each layer and direction, (rows, time), or None; for the baseline
                `learned`. The critics' loss is added.
            axis_name: Name of the mapped axis over which the batch is divided. The result is the mean over
                the local rows.

        Raises:
            UserError: `out` has no decisions, or shapes do not fit.
        """
        traces = F.traces_of(out)
        if traces[0].time_major:
            swap = functools.partial(jax.tree.map, _swap_axes)
            traces, values = swap(traces), swap(values)
            nll, rewards, correct = swap(nll), swap(rewards), swap(correct)
        traces = _with_common_mask(traces)
        rewards = self.rewards(-nll, correct) if rewards is None else rewards
        self._check_shapes(scheduled, traces, values, weights=weights, nll=nll, rewards=rewards)
        compared = _Compared(jax.lax.stop_gradient(rewards), weights, average, axis_name)
        total = self._network_loss(scheduled, nll, traces[0].valid, weights)
        for trace, value in zip(traces, values or (None,) * len(traces), strict=True):
            total = total + self._layer_loss(scheduled, trace, value, compared)
        return total

    def _check_shapes(
        self,
        scheduled: ScheduledValues,
        traces: Sequence[F.DecisionTrace],
        values: Sequence[Any] | None,
        **arrays: Array | None,
    ) -> None:
        """Check that each array has one value for each row or for each step of the decisions."""
        rows, time = traces[0].action.shape
        for name, array in arrays.items():
            shapes = ((rows,),) if name == "weights" else ((rows,), (rows, time))
            if array is not None and jnp.shape(array) not in shapes:
                wanted = " or ".join(map(str, shapes))
                raise UserError(
                    f"expected {name} of shape {wanted}, as the decisions, got {jnp.shape(array)}"
                )
        is_of_steps = any(jnp.ndim(arrays[name]) > 1 for name in ("nll", "rewards"))
        if is_of_steps and self._averages_rollouts(scheduled):
            raise UserError("the estimator vimco averages predictions of rows, not of steps")
        if values is not None and len(values) != len(traces):
            raise UserError(f"{len(traces)} decisions need as many values, got {len(values)}")
        if rows % self.num_rollouts(scheduled):
            raise UserError(
                f"{rows} rows are no multiple of {self.num_rollouts(scheduled)} rollouts: `repeat` the batch"
            )

    def _averages_rollouts(self, scheduled: ScheduledValues) -> bool:
        return scheduled.policy.mode == "sample" and self.estimator == "vimco"

    def _network_loss(
        self,
        scheduled: ScheduledValues,
        nll: Float[Array, "rows ..."],
        valid: Bool[Array, "rows time"] | None,
        weights: Float[Array, " rows"] | None,
    ) -> Float[Array, ""]:
        """Return J_1, averaged over rows; see `loss`."""
        if self._averages_rollouts(scheduled):
            averaged = -policy_gradient.averaged_log_likelihood(-nll.reshape(-1, self.rollouts))
            return _weighted_mean(averaged, None if weights is None else weights[:: self.rollouts])
        if nll.ndim > 1:
            nll = (nll if valid is None else jnp.where(valid, nll, 0)).sum(axis=1)
        return _weighted_mean(nll, weights)

    def _layer_loss(
        self,
        scheduled: ScheduledValues,
        trace: F.DecisionTrace,
        values: Float[Array, "rows time"] | None,
        compared: "_Compared",
    ) -> Float[Array, ""] | float:
        """Return the loss of one layer and direction: -rl_coef · J_2 if it samples, and its budget loss."""
        total: Float[Array, ""] | float = 0.0
        if trace.is_stochastic:
            losses = self._policy_loss(scheduled, trace, values, compared)
            total = self.rl_coef * _weighted_mean(losses, compared.weights)
        if trace.update_is_differentiable:
            total = total + self._budget_loss(scheduled, trace, compared.weights)
        return total

    def _budget_loss(
        self, scheduled: ScheduledValues, trace: F.DecisionTrace, weights: Float[Array, " rows"] | None
    ) -> Float[Array, ""]:
        """Return the cost of the tokens that one layer and direction read."""
        update = trace.update if trace.valid is None else jnp.where(trace.valid, trace.update, 0)
        return scheduled.update_cost * _weighted_mean(update.sum(axis=1), weights)

    def _policy_loss(
        self,
        scheduled: ScheduledValues,
        trace: F.DecisionTrace,
        values: Float[Array, "rows time"] | None,
        compared: "_Compared",
    ) -> Float[Array, " rows"]:
        """Return -J_2 of one layer and direction, for each row."""
        losses = jnp.zeros(len(compared.rewards), compared.rewards.dtype)
        is_sampled = scheduled.policy.mode == "sample"
        is_exact = self.entropy == "exact" or not is_sampled
        if self._averages_rollouts(scheduled):
            losses = self._vimco_losses(trace, compared.rewards)
        elif is_sampled:
            entropy_coef = 0.0 if is_exact else scheduled.entropy_coef
            losses = self._reinforce_losses(entropy_coef, trace, values, compared)
        if is_exact:
            entropies = jax.vmap(policy_gradient.entropy_loss)(trace.entropy, trace.valid)
            losses = losses + scheduled.entropy_coef * entropies
        return losses

    def _vimco_losses(
        self, trace: F.DecisionTrace, log_likelihood: Float[Array, " rows"]
    ) -> Float[Array, " rows"]:
        """Return the agents' part of `vimco_loss` for each row.

        The factor `rollouts` turns the later mean over rows into a sum over rollouts.
        """
        signals = jax.vmap(policy_gradient.vimco_signal)(log_likelihood.reshape(-1, self.rollouts))
        losses = jax.vmap(policy_gradient.policy_gradient_loss)
        return self.rollouts * losses(trace.log_prob, signals.reshape(-1), trace.valid)

    def _reinforce_losses(
        self,
        entropy_coef: float | Float[Array, "..."],
        trace: F.DecisionTrace,
        values: Float[Array, "rows time"] | None,
        compared: "_Compared",
    ) -> Float[Array, " rows"]:
        """Return the score-function loss of each row, plus the critic's loss if `values` are given."""
        rewards = compared.rewards
        if trace.reverse:
            # Put steps in the order in which the layer read them. Padding then comes first.
            trace, values, rewards = jax.tree.map(_reversed_steps, (trace, values, rewards))
        returns, counted = rewards, None if compared.weights is None else compared.weights > 0
        if rewards.ndim > 1:
            masked = rewards if trace.valid is None else jnp.where(trace.valid, rewards, 0)
            returns = (noncausal_return if trace.noncausal else reward_to_go)(masked, self.discount)
            if trace.valid is not None:  # means exclude sequences that have ended
                counted = trace.valid if counted is None else trace.valid & counted[:, None]
        baseline = self._baseline(returns, values, counted, compared)

        def of_row(log_probs, rewards, valid, baseline):
            return policy_gradient.reinforce_loss(
                log_probs,
                rewards,
                valid=valid,
                discount=self.discount,
                entropy_coef=entropy_coef,
                baseline=baseline,
                noncausal=trace.noncausal,
            )

        losses = jax.vmap(of_row)(trace.log_prob, rewards, trace.valid, baseline)
        if values is not None:
            losses = losses + jax.vmap(baselines.critic_loss)(values, returns, trace.valid)
        return losses

    def _baseline(
        self,
        returns: Float[Array, "rows ..."],
        values: Float[Array, "rows time"] | None,
        counted: Bool[Array, "rows ..."] | None,
        compared: "_Compared",
    ) -> Float[Array, "rows ..."]:
        """Return the baseline, which is subtracted from the returns."""
        if self.baseline == "none":
            return jnp.zeros_like(returns)
        if self.baseline == "batch":
            return baselines.leave_one_out_mean(returns, compared.axis_name, counted)
        if self.baseline == "rollouts":
            grouped = returns.reshape(-1, self.rollouts, *returns.shape[1:])
            return jax.vmap(baselines.leave_one_out_mean)(grouped).reshape(returns.shape)
        if self.baseline == "moving_average":
            if compared.average is None:
                raise UserError("the baseline 'moving_average' needs earlier returns: pass average=")
            return jnp.broadcast_to(baselines.moving_average_value(compared.average), returns.shape)
        if values is None:
            raise UserError("the baseline 'learned' needs a critic's values: pass values=")
        return values


@dataclasses.dataclass(frozen=True)
class AgentSchedule:
    """Schedule of an objective's values over the epochs of a training run.

    Attributes:
        objective: Objective with the initial and final values.
        epochs: Number of epochs.
    """

    objective: AgentObjective
    epochs: int

    def at(self, epoch: int) -> ScheduledValues:
        """Return the values of `epoch`, counted from 0."""
        objective = self.objective
        is_relaxed = epoch < objective.relaxed_epochs
        mode = objective.relaxation if is_relaxed else "sample"
        # Attention uses τ too: keep it at 1 in other epochs, as in evaluation.
        temperature = self._temperature(epoch) if is_relaxed else 1.0
        return ScheduledValues(
            F.Policy(mode, temperature=temperature), self._entropy_coef(epoch), objective.update_cost
        )

    def _entropy_coef(self, epoch: int) -> float:
        objective, epochs = self.objective, self.epochs
        initial, final = objective.entropy_coef, objective.entropy_coef_final
        if epoch < objective.relaxed_epochs and objective.relaxed_entropy_coef is not None:
            initial, final = objective.relaxed_entropy_coef, objective.relaxed_entropy_coef_final
            epochs = objective.relaxed_epochs
        return initial if final is None else linear(initial, final, epoch, epochs)

    def _temperature(self, epoch: int) -> float:
        initial, final = self.objective.temperature, self.objective.temperature_final
        return initial if final is None else geometric(initial, final, epoch, self.objective.relaxed_epochs)


def linear(initial: float, final: float, epoch: int, epochs: int) -> float:
    """Interpolate linearly from `initial` in epoch 0 to `final` in the last of `epochs` epochs.

    Returns:
        The value in `epoch`; `final` in later epochs.
    """
    return initial + (final - initial) * _progress(epoch, epochs)


def geometric(initial: float, final: float, epoch: int, epochs: int) -> float:
    """Interpolate geometrically from `initial` in epoch 0 to `final` in the last of `epochs` epochs.

    Each epoch multiplies by the same factor. Both ends must be positive.

    Returns:
        The value in `epoch`; `final` in later epochs.
    """
    return initial * (final / initial) ** _progress(epoch, epochs)


def _progress(epoch: int, epochs: int) -> float:
    """Return the progress of training: 0 in the first epoch, 1 in the last epoch and later."""
    return min(epoch / max(epochs - 1, 1), 1.0)


class _Compared(NamedTuple):
    """Inputs of the returns and baselines, shared by all layers."""

    rewards: Float[Array, "rows ..."]
    weights: Float[Array, " rows"] | None
    average: baselines.MovingAverage | None
    axis_name: str | None


def _with_common_mask(traces: Sequence[F.DecisionTrace]) -> tuple[F.DecisionTrace, ...]:
    """Return the traces with one common mask, the steps that are valid in all of them.

    Raises:
        UserError: The shapes differ, or some traces have a mask and others have none.
    """
    shapes = sorted({jnp.shape(trace.action) for trace in traces})
    if len(shapes) > 1 or len(shapes[0]) != 2:
        found = ", ".join(map(str, shapes))
        raise UserError(f"expected decisions of one shape (rows, time), got {found}")
    masks = [trace.valid for trace in traces if trace.valid is not None]
    if not masks:
        return tuple(traces)
    if len(masks) < len(traces):
        raise UserError(
            f"{len(masks)} of {len(traces)} decisions say which steps are valid: give all layers the same "
            "seq_lengths"
        )
    valid = functools.reduce(lambda a, b: a if a is b else a & b, masks)
    return tuple(dataclasses.replace(trace, valid=valid) for trace in traces)


def _check_word(name: str, value: Any, words: tuple[Any, ...]) -> None:
    """Check that the value of a field with a `Literal` type is one of `words`."""
    if words and isinstance(words[0], str) and value not in words:
        choices = f"{', '.join(words[:-1])} or {words[-1]}"
        raise UserError(f"{name} is {value!r}: choose {choices}")


def _check_number(name: str, value: Any, holds: Any, words: str) -> None:
    """Check a field whose value is a number; None is accepted if it is the default."""
    default = getattr(AgentObjective, name)
    if value is None and default is None:
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise UserError(f"expected a number for {name}, got {value!r}")
    if isinstance(default, int) and not isinstance(value, numbers.Integral):
        raise UserError(f"{name} must be a whole number, got {value!r}")
    if not math.isfinite(value) or not holds(value):
        raise UserError(f"{name} {words}, got {value}")


def _swap_axes(leaf: Array) -> Array:
    """Return an array of (time, rows) as (rows, time), and other arrays unchanged."""
    return jnp.swapaxes(leaf, 0, 1) if jnp.ndim(leaf) == 2 else leaf


def _reversed_steps(leaf: Array) -> Array:
    return leaf if leaf.ndim == 1 else leaf[:, ::-1]


def _weighted_mean(losses: Float[Array, " rows"], weights: Float[Array, " rows"] | None) -> Float[Array, ""]:
    return losses.mean() if weights is None else (losses * weights).mean()
