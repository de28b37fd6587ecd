"""Sequence classification as a task for the loop: accuracy, and the agent's choices."""

import dataclasses
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.data import epoch_order, minibatches, padded_minibatches
from dynskip_jax.devices.parallel import mean_over
from dynskip_jax.functional.agent import ActionMode
from dynskip_jax.functional.keys import example_keys
from dynskip_jax.models import SequenceClassifier
from dynskip_jax.nn import Weights
from dynskip_jax.training.objective import AgentObjective, AgentStage
from dynskip_jax.training.stage import Sweep


class Examples(NamedTuple):
    """A batch, or a whole split.

    Attributes:
        x: symbols, (examples, time).
        y: classes, (examples,).
        mask: False at examples that only fill the batch; None where there are none.
    """

    x: np.ndarray
    y: np.ndarray
    mask: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class ClassificationSettings:
    """The part of a configuration that this task needs.

    Attributes:
        skips: the time skip of each layer, bottom first.
        transition: of every layer.
        depth_skip: what each layer receives from further below; None for nothing.
        features: size of the state.
        num_symbols: number of input symbols.
        num_classes: number of classes.
        batch_size: examples per training step.
        seeds: one per model; each seed has an order of examples of its own.
        cell_options: options of `SkipCell` for each layer.
        objective: how agents are rewarded.
        epochs: how long training goes on, for what is scheduled over it.
        sweep: in what else than their seeds the models differ.
        num_positions: of how many steps the number is told beside the symbol; see `SequenceClassifier`.
        dropout: on every layer's input and before the softmax.
        dtype: in which matrices are multiplied, by default float32; parameters and all else are float32.
        evaluation_mode: how agents choose on dev during training.
        evaluation_batch_size: examples per evaluation step.
    """

    skips: tuple[F.TimeSkip, ...]
    features: int
    num_symbols: int
    num_classes: int
    batch_size: int
    seeds: tuple[int, ...]
    cell_options: tuple[dict[str, Any], ...]
    objective: AgentObjective
    transition: F.Transition = F.LSTM()  # noqa: RUF009 (immutable)
    depth_skip: F.DepthSkip | None = None
    epochs: int = 1
    sweep: Sweep = Sweep()  # noqa: RUF009 (immutable)
    num_positions: int = 0
    dropout: float = 0.0
    dtype: Any = None
    evaluation_mode: ActionMode = "greedy"
    evaluation_batch_size: int = 1000


class Classification:
    """Trains `SequenceClassifier`; see `training.step.Task`."""

    monitor = "dev_accuracy"
    higher_is_better = True
    headline = "accuracy"
    batch_axis = 0

    def __init__(self, splits: dict[str, Examples], settings: ClassificationSettings):
        self.splits = splits
        self.settings = settings
        self.examples_per_batch = settings.batch_size
        # The rest of an epoch's order, less than a batch, is left out; each epoch leaves out another one.
        every = np.arange(len(splits["train"].y))
        self.num_batches = sum(1 for _ in minibatches(every, settings.batch_size, drop_remainder=True))
        self.graphdef = nnx.graphdef(nnx.eval_shape(lambda: self._model(jax.random.key(0))))
        self._evaluate_batch = jax.jit(
            jax.vmap(self._batch_outputs, in_axes=(0, None, 0, 0, None)), static_argnums=4
        )

    def _model(self, key: Key[Array, ""]) -> SequenceClassifier:
        s = self.settings
        rngs = nnx.Rngs(key)
        model = SequenceClassifier(
            s.num_symbols,
            s.features,
            s.num_classes,
            s.skips,
            transition=s.transition,
            depth_skip=s.depth_skip,
            dropout=s.dropout,
            dtype=s.dtype,
            cell_options=s.cell_options,
            num_positions=s.num_positions,
            rngs=rngs,
        )
        if s.objective.baseline == "learned":
            # Beside the model, not in it: of use in training alone.
            model.critics = nnx.List([_critic(layer.cell, rngs) for layer in model.stack.layers])
        return model

    def init(self, key: Key[Array, ""]) -> nnx.State:
        """See `Task`."""
        return nnx.state(self._model(key), nnx.Param)

    def initial_carry(self, params: nnx.State, key: Key[Array, ""]) -> tuple:
        """See `Task`: the average of rewards so far, the same for each example, if there is to be one."""
        if self.settings.objective.baseline != "moving_average":
            return ()
        return F.moving_average_start((self.settings.batch_size,))

    def stage(self, epoch: int) -> AgentStage:
        """See `Task`."""
        s = self.settings
        return s.sweep.stage(s.objective.stage(epoch, s.epochs), len(s.seeds), s.skips)

    def train_batches(self, epoch: int) -> Iterable[Examples]:
        """See `Task`; (seeds, batch, ...), each seed in an order of its own."""
        train, s = self.splits["train"], self.settings
        orders = [epoch_order(len(train.y), seed, epoch) for seed in s.seeds]
        for indices in zip(
            *(minibatches(order, s.batch_size, drop_remainder=True) for order in orders), strict=True
        ):
            chosen = np.stack(indices)
            yield Examples(train.x[chosen], train.y[chosen])

    def loss(
        self,
        params: nnx.State,
        carry: tuple,
        batch: Examples,
        keys: Key[Array, "*batch_or_none"],
        stage: AgentStage,
        axis_name: str | None = None,
    ) -> tuple[Float[Array, ""], tuple[tuple, dict[str, Array]]]:
        """Mean cross-entropy (Eq. 3) plus the agent's loss with a terminal reward (Eq. 5, 6).

        Rollouts of one example stand side by side, each with noise of its own. Relaxed choices need no more
        than one.
        """
        s = self.settings
        keys = jax.vmap(partial(jax.random.split, num=s.objective.num_rollouts(stage)))(
            example_keys(keys, batch.y.shape)
        )
        batch = s.objective.repeat(batch, stage)
        model = nnx.merge(self.graphdef, params)
        output = model(batch.x, policy=stage.policy, rngs=keys.reshape(-1))
        nll, correct = _judged(output.logits, batch)
        loss = s.objective.loss(
            stage,
            nll,
            output.decisions,
            valid=None,
            skips=s.skips,
            correct=correct,
            average=jax.tree.map(lambda leaf: leaf[0], carry) if carry else None,
            values=_critics_say(model, output.observations),
            axis_name=axis_name,
        )
        if carry:
            rewards = jax.lax.stop_gradient(s.objective.rewards(-nll, correct))
            mean = mean_over(rewards.mean(), axis_name)
            carry = F.moving_average_update(carry, jnp.full_like(carry.mean, mean), s.objective.decay)
        return loss, (carry, self._sums(nll, correct, jnp.ones_like(nll), output.decisions))

    def _sums(self, nll, correct, mask, decisions) -> dict[str, Array]:
        sums = {"nll": jnp.sum(nll * mask), "correct": jnp.sum(correct * mask), "examples": jnp.sum(mask)}
        for i, (skip, decision) in enumerate(zip(self.settings.skips, decisions, strict=True)):
            if skip.has_agent:
                sums[f"entropy_{i}"] = jnp.sum(decision.entropy.mean(axis=1) * mask)
        return sums

    def summarise(self, sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Accuracy in [0, 1], mean negative log-likelihood and agents' mean entropy per step (nats)."""
        examples = sums["examples"]
        metrics = {"accuracy": sums["correct"] / examples, "nll": sums["nll"] / examples}
        for i, skip in enumerate(self.settings.skips):
            if skip.has_agent:
                metrics[f"agent_entropy_{i + 1}"] = sums[f"entropy_{i}"] / examples
        return metrics

    def _batch_outputs(self, params, batch: Examples, key, policy: F.Policy, samples: int):
        model = nnx.merge(self.graphdef, params)

        def classify(key):
            output = model(batch.x, policy=policy, rngs=key, deterministic=True)
            return jax.nn.log_softmax(output.logits), output.decisions

        if samples == 1:
            logits, decisions = classify(key)
        else:
            logits, decisions = jax.lax.map(classify, jax.random.split(key, samples))
            logits = F.averaged_log_likelihood(jnp.moveaxis(logits, 0, -1))
            decisions = jax.tree.map(lambda leaf: leaf[0], decisions)
        nll, correct = _judged(logits, batch)
        actions = tuple(decision.action for decision in decisions)
        return self._sums(nll, correct, batch.mask.astype(nll.dtype), decisions), actions

    def _run(self, params, split: str, keys, mode: ActionMode, samples: int = 1):
        examples, size = self.splits[split], self.settings.evaluation_batch_size
        policy = self.settings.sweep.policy(mode, len(keys), self.settings.skips)
        for number, (indices, mask) in enumerate(padded_minibatches(len(examples.y), size)):
            batch = Examples(examples.x[indices], examples.y[indices], mask)
            batch_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
            yield mask, *self._evaluate_batch(params, batch, batch_keys, policy, samples)

    def evaluate(
        self,
        params: nnx.State,
        split: str,
        keys: Key[Array, " seeds"],
        *,
        mode: ActionMode | None = None,
        samples: int = 1,
    ) -> dict[str, np.ndarray]:
        """Metrics of a whole split; names lead with the split. See `summarise`.

        Args:
            params: (seeds, ...).
            split: `train`, `dev` or `test`.
            keys: for sampled actions, (seeds,).
            mode: how agents choose; by default `evaluation_mode`.
            samples: how many predictions of each example are averaged, as probabilities.
        """
        totals: dict[str, np.ndarray] = {}
        for _, sums, _ in self._run(params, split, keys, mode or self.settings.evaluation_mode, samples):
            for name, value in sums.items():
                totals[name] = totals.get(name, 0.0) + np.asarray(value, np.float64)
        return {f"{split}_{name}": value for name, value in self.summarise(totals).items()}

    def trace(
        self, params: nnx.State, split: str, keys: Key[Array, " seeds"], layer: int
    ) -> Int[np.ndarray, "seeds examples time"]:
        """Returns k at each step of each example of a split, chosen greedily by the agent of a layer."""
        chosen = [
            np.asarray(actions[layer])[:, mask]
            for mask, _, actions in self._run(params, split, keys, "greedy")
        ]
        return np.concatenate(chosen, axis=1)


def _judged(logits: Float[Array, "batch classes"], batch: Examples) -> tuple[Array, Array]:
    """The negative log-likelihood of each truth in nats, and 1 where the most probable class is right."""
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, batch.y)
    return nll, (logits.argmax(-1) == batch.y).astype(nll.dtype)


def _critic(cell: Any, rngs: nnx.Rngs) -> Weights | None:
    """A critic for a layer that samples: an MLP of the agent's form and size whose one output is V(s(t))."""
    if not cell.skip.is_stochastic:
        return None
    sizes = (cell.in_features, cell.hidden_features, cell.agent_features)
    return Weights(F.Dynamic(1).init(rngs.params(), *sizes, F.Initializers(dtype=cell.param_dtype)))


def _critics_say(model: SequenceClassifier, observations: tuple) -> tuple[Array | None, ...] | None:
    """V(s(t)) for each layer that samples, (batch, time); None without critics."""
    if not hasattr(model, "critics"):
        return None
    return tuple(
        None if critic is None else F.critic_values(critic.read(), x, h)
        for critic, (x, h) in zip(model.critics, observations, strict=True)
    )
