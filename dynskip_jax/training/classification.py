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
from dynskip_jax.functional.agent import ActionMode
from dynskip_jax.functional.keys import example_keys, split_each
from dynskip_jax.models import SequenceClassifier
from dynskip_jax.training.objective import AgentObjective, agent_loss


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
        features: size of the state.
        num_symbols: number of input symbols.
        num_classes: number of classes.
        batch_size: examples per training step.
        seeds: one per model; each seed has an order of examples of its own.
        cell_options: options of `SkipLSTMCell` for each layer.
        objective: how agents are rewarded.
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
    dropout: float = 0.0
    dtype: Any = None
    evaluation_mode: ActionMode = "greedy"
    evaluation_batch_size: int = 1000


class Classification:
    """Trains `SequenceClassifier`; see `training.loop.Task`."""

    monitor = "dev_accuracy"
    higher_is_better = True
    headline = "accuracy"
    batch_axis = 0

    def __init__(self, splits: dict[str, Examples], settings: ClassificationSettings):
        self.splits = splits
        self.settings = settings
        # The rest of an epoch's order, less than a batch, is left out; each epoch leaves out another one.
        every = np.arange(len(splits["train"].y))
        self.num_batches = sum(1 for _ in minibatches(every, settings.batch_size, drop_remainder=True))
        self.graphdef = nnx.graphdef(nnx.eval_shape(lambda: self._model(jax.random.key(0))))
        self._evaluate_batch = jax.jit(
            jax.vmap(self._batch_outputs, in_axes=(0, None, 0, None)), static_argnums=3
        )

    def _model(self, key: Key[Array, ""]) -> SequenceClassifier:
        s = self.settings
        return SequenceClassifier(
            s.num_symbols,
            s.features,
            s.num_classes,
            s.skips,
            dropout=s.dropout,
            dtype=s.dtype,
            cell_options=s.cell_options,
            rngs=nnx.Rngs(key),
        )

    def init(self, key: Key[Array, ""]) -> nnx.State:
        """See `Task`."""
        return nnx.state(self._model(key), nnx.Param)

    def initial_carry(self, params: nnx.State, key: Key[Array, ""]) -> tuple:
        """Nothing passes from one batch to the next."""
        return ()

    def train_batches(self, epoch: int) -> Iterable[Examples]:
        """See `Task`; (seeds, batch, ...), each seed in an order of its own."""
        train, s = self.splits["train"], self.settings
        orders = [epoch_order(len(train.y), seed, epoch) for seed in s.seeds]
        for indices in zip(
            *(minibatches(order, s.batch_size, drop_remainder=True) for order in orders), strict=True
        ):
            chosen = np.stack(indices)
            yield Examples(train.x[chosen], train.y[chosen])

    def _classify(self, params, batch: Examples, carry_key, dropout_key, mode: ActionMode):
        model = nnx.merge(self.graphdef, params)
        output = model(batch.x, carry_key=carry_key, key=dropout_key, mode=mode)
        nll = optax.softmax_cross_entropy_with_integer_labels(output.logits, batch.y)
        correct = (output.logits.argmax(-1) == batch.y).astype(nll.dtype)
        return output, nll, correct

    def loss(
        self,
        params: nnx.State,
        carry: tuple,
        batch: Examples,
        keys: Key[Array, "*batch_or_none"],
        axis_name: str | None = None,
    ) -> tuple[Float[Array, ""], tuple[tuple, dict[str, Array]]]:
        """Mean cross-entropy (Eq. 3) plus the agent's loss with a terminal reward (Eq. 5, 6).

        Rollouts of one example stand side by side, each with noise of its own.
        """
        s = self.settings
        rollouts = s.objective.rollouts
        keys = jax.vmap(partial(jax.random.split, num=rollouts))(example_keys(keys, batch.y.shape))
        batch = jax.tree.map(lambda leaf: jnp.repeat(leaf, rollouts, axis=0), batch)
        carry_keys, dropout_keys = split_each(keys.reshape(-1), 2)
        uses_dropout = s.dropout > 0 or any(o.get("recurrent_dropout") for o in s.cell_options)
        output, nll, correct = self._classify(
            params, batch, carry_keys, dropout_keys if uses_dropout else None, "sample"
        )
        rewards = s.objective.rewards(-nll, correct)
        loss = nll.mean() + agent_loss(s.objective, s.skips, output.decisions, rewards, axis_name)
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

    def _batch_outputs(self, params, batch: Examples, key, mode: ActionMode):
        output, nll, correct = self._classify(params, batch, key, None, mode)
        actions = tuple(decision.action for decision in output.decisions)
        return self._sums(nll, correct, batch.mask.astype(nll.dtype), output.decisions), actions

    def _run(self, params, split: str, keys, mode: ActionMode):
        examples, size = self.splits[split], self.settings.evaluation_batch_size
        for number, (indices, mask) in enumerate(padded_minibatches(len(examples.y), size)):
            batch = Examples(examples.x[indices], examples.y[indices], mask)
            batch_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
            yield mask, *self._evaluate_batch(params, batch, batch_keys, mode)

    def evaluate(
        self,
        params: nnx.State,
        split: str,
        keys: Key[Array, " seeds"],
        *,
        mode: ActionMode | None = None,
    ) -> dict[str, np.ndarray]:
        """Metrics of a whole split; names lead with the split. See `summarise`."""
        totals: dict[str, np.ndarray] = {}
        for _, sums, _ in self._run(params, split, keys, mode or self.settings.evaluation_mode):
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
