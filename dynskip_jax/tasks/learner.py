"""Train and evaluate the models of any task: seeds, sweeps, rollouts, agents' losses, evaluation modes."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax import rl
from dynskip_jax.data.batches import Batch
from dynskip_jax.devices.parallel import mean_over, sum_over
from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import ActionMode
from dynskip_jax.functional.keys import example_keys
from dynskip_jax.nn import Weights
from dynskip_jax.tasks.agents import agents_loss, num_rollouts, rewards_of
from dynskip_jax.tasks.task import (
    Forward,
    LossOutput,
    Task,
    evaluated,
    num_rows,
    repeat_rows,
    valid_steps,
    where_counted,
)
from dynskip_jax.training.agent_settings import AgentSettings
from dynskip_jax.training.sweep import ScheduledValues, Sweep

PyTree = Any
MOST_SHARES = 1000  # largest K for which the fraction of each k is a metric
_STEP_OF_LENGTHS = 8  # single examples are padded to a multiple of this length


class Mean(NamedTuple):
    """A mean, stored as a sum and a count that can be added up over batches.

    Attributes:
        total: Sum of the counted values.
        count: Number of counted values.
    """

    total: Float[Array, "..."]
    count: Float[Array, "..."]


class Learner:
    """A `Trainable` for the models of a task, one for each seed; see `training.step.Trainable`.

    In its methods, `params` and `keys`, the keys for sampled actions, are (seeds, ...), a split is `train`,
    `dev` or `test`, and `mode` says how agents choose, by default as in `evaluation_mode`.

    Args:
        task: Task that the models are trained on.
        seeds: Seed of each model. Seeds order the examples differently, unless the task shares its batches.
        objective: How agents are trained.
        sweep: Settings in which the models differ, in addition to the seed.
        epochs: Number of training epochs, for the schedules.
        evaluation_mode: How agents choose on dev during training.

    Raises:
        UserError: If agents are rewarded at each step and the objective needs one reward for each row.
    """

    def __init__(
        self,
        task: Task,
        seeds: Sequence[int] = (0,),
        *,
        objective: AgentSettings = AgentSettings(),  # noqa: B008 (immutable)
        sweep: Sweep = Sweep(),  # noqa: B008 (immutable)
        epochs: int = 1,
        evaluation_mode: ActionMode = "greedy",
    ):
        self.task, self.seeds, self.sweep, self.epochs = task, tuple(seeds), sweep, epochs
        self.objective = objective
        self.evaluation_mode = evaluation_mode
        if task.is_of_steps and self.objective.baseline == "moving_average":
            raise UserError(
                "the baseline moving_average is of one reward for each row, and here each step has one: "
                "choose none, batch, rollouts or learned"
            )
        self.monitor, self.higher_is_better = f"dev_{task.score}", task.higher_is_better
        self.primary_metric = task.primary_metric or task.score
        self.num_batches, self.unit, self.train_lengths = task.num_batches, task.unit, task.train_lengths
        self.batch_axis = None if task.shared_batches else 0
        abstract = nnx.eval_shape(lambda: self._model(jax.random.key(0)))
        self.graphdef = nnx.graphdef(abstract)
        self.skips: tuple[F.TimeSkip, ...] = abstract.stack.skips
        self.reverse: tuple[bool, ...] = abstract.stack.reads_reverse
        if hasattr(abstract, "critics"):
            del abstract.critics
        self._used_graphdef = nnx.graphdef(abstract)
        # Evaluation may use another form of the model, computed once from its parameters.
        as_read = nnx.eval_shape(lambda: self._read_model(self.init(jax.random.key(0))))
        self._read_graphdef = nnx.graphdef(as_read)
        self._read_params = jax.jit(jax.vmap(lambda params: nnx.state(self._read_model(params), nnx.Param)))
        self._read_batch = jax.jit(self._forward_rows)
        self._predict_batch = jax.jit(lambda *how: self._forward_rows(*how)[2])
        self._evaluate_batch = jax.jit(
            jax.vmap(self._batch_sums, in_axes=(0, 0, None, 0, 0, None, None)),
            static_argnums=(5, 6),
            donate_argnums=1,
        )

    @property
    def top_layers(self) -> dict[str, int]:
        """Index of the top layer of each direction, by the direction's name, `forward` or `backward`.

        Indices are those of the stack's layers and directions, as in `decisions`.
        """
        return {"backward" if back else "forward": layer for layer, back in enumerate(self.reverse)}

    # --- Training ---

    def _model(self, key: Key[Array, ""]) -> nnx.Module:
        rngs = nnx.Rngs(key)
        model = self.task.make_model(rngs)
        if self.objective.baseline == "learned":
            # An extra attribute, not part of the task's model: critics are only used in training.
            model.critics = nnx.List([_critic(cell, rngs) for cell in model.stack.cells])
        return model

    def model(self, params: nnx.State) -> nnx.Module:
        """Return the model with one seed's parameters, with or without those of critics."""
        return nnx.merge(self.graphdef if "critics" in params else self._used_graphdef, params)

    @staticmethod
    def used_params(params: nnx.State) -> nnx.State:
        """Return the parameters that are used after training: all except those of critics."""
        return nnx.State({name: part for name, part in params.items() if name != "critics"})

    def abstract_params(self) -> nnx.State:
        """Return the shapes and dtypes of one model's parameters."""
        return jax.eval_shape(self.init, jax.random.key(0))

    def init(self, key: Key[Array, ""]) -> nnx.State:
        """See `Trainable`."""
        return nnx.state(self._model(key), nnx.Param)

    def initial_carry(self, params: nnx.State, key: Key[Array, ""]) -> tuple[PyTree, PyTree]:
        """See `Trainable`; the carry is a pair.

        The first part is the task's carry, with one row for each rollout. The second is the moving average of
        the rewards, with the same value in each row; it is empty for other baselines.
        """
        rows = self.task.batch_size
        carry = self.task.initial_carry(self.model(params), rows * self.objective.rollouts, key)
        is_average = self.objective.baseline == "moving_average"
        return carry, rl.MovingAverage(jnp.zeros(rows), jnp.zeros(rows)) if is_average else ()

    def carry_over(self, old: tuple[PyTree, PyTree], new: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        """See `Trainable`; the moving average of the rewards continues."""
        return new[0], old[1]

    def scheduled(self, epoch: int) -> ScheduledValues:
        """See `Trainable`."""
        return self.sweep.scheduled(self.objective, epoch, self.epochs, len(self.seeds), self.skips)

    def policy(self, mode: str | None = None) -> F.Policy:
        """Return the policy of the models in this mode, each leaf (seeds, ...)."""
        return self.sweep.policy(mode or self.evaluation_mode, len(self.seeds), self.skips)

    def train_batches(self, epoch: int) -> Iterator[Batch]:
        """See `Trainable`."""
        return iter(self.task.train_batches(epoch, self.seeds))

    def train_batch_sizes(self, epoch: int) -> Sequence[int]:
        """See `Trainable`."""
        return self.task.train_batch_sizes(epoch)

    def loss(
        self,
        params: nnx.State,
        carry: tuple[PyTree, PyTree],
        batch: Batch,
        keys: Key[Array, "*batch_or_none"],
        scheduled: ScheduledValues,
        axis_name: str | None = None,
    ) -> tuple[Float[Array, ""], tuple[tuple[PyTree, PyTree], dict[str, Mean]]]:
        """Return the loss of `agents_loss` plus the task's penalty.

        The rollouts of a row are adjacent rows. With relaxed choices there is one rollout.
        """
        objective, (carry, average) = self.objective, carry
        batch, carry, drawn = self._rollouts(batch, carry, keys, scheduled, axis_name)
        model = self.model(params)
        read: Forward = self.task.forward(
            model, batch, carry, policy=scheduled.policy, deterministic=False, **drawn
        )
        scored, weights = self.task.compute_loss(read.log_probs, batch), _weights(batch)
        log_likelihood = -scored.nll if scored.rewarded is None else scored.rewarded
        rewards = rewards_of(objective, log_likelihood, scored.correct)
        earlier = None
        if average:
            earlier, average = self._average(average, rewards, weights, axis_name)
        loss = agents_loss(
            objective,
            scheduled,
            read.decisions,
            scored.nll,
            rewards,
            weights=weights,
            counted=valid_steps(batch, read.decisions[0].action.shape[1]),
            average=earlier,
            values=_critic_values(model, read.observations),
            axis_name=axis_name,
        )
        carry = repeat_rows(read.carry, objective.rollouts // num_rollouts(objective, scheduled))
        return loss + _penalty(read, axis_name), ((carry, average), self._sums(scored, batch, read.decisions))

    def _rollouts(
        self,
        batch: Batch,
        carry: PyTree,
        keys: Key[Array, "*batch_or_none"],
        scheduled: ScheduledValues,
        axis_name: str | None,
    ) -> tuple[Batch, PyTree, dict[str, Key[Array, "..."]]]:
        """Return the batch and the carry with one row for each rollout, and the keys of the forward pass."""
        objective, rows = self.objective, num_rows(batch)
        rollouts = num_rollouts(objective, scheduled)
        keys = example_keys(keys, (rows,))
        shared_key = _shared_key(keys, axis_name)
        if jax.tree.leaves(carry):
            # The carry has its own keys, so rollouts of a row differ in choices but share dropout masks.
            keys = repeat_rows(keys, rollouts)
            if rollouts < objective.rollouts:
                carry = jax.tree.map(lambda leaf: leaf[:: objective.rollouts], carry)
        else:
            keys = jax.vmap(partial(jax.random.split, num=rollouts))(keys).reshape(-1)
        return repeat_rows(batch, rollouts), carry, dict(rngs=keys, shared_key=shared_key)

    def _average(
        self,
        average: rl.MovingAverage,
        rewards: Float[Array, " rows"],
        weights: Float[Array, " rows"] | None,
        axis_name: str | None,
    ) -> tuple[Float[Array, ""], rl.MovingAverage]:
        """Return the moving average of the earlier rewards, and the average with those of this batch."""
        weights = jnp.ones_like(rewards) if weights is None else weights
        total, count = sum_over(((rewards * weights).sum(), weights.sum()), axis_name)
        mean = jnp.full_like(average.mean, total / jnp.where(count > 0, count, 1))
        earlier, average = rl.moving_average(average, mean, self.objective.baseline_decay)
        return earlier[0], average

    # --- Evaluation ---

    def _sums(
        self, scored: LossOutput, batch: Batch, decisions: Sequence[F.DecisionTrace], samples: int = 1
    ) -> dict[str, Mean]:
        """Return the sums of a batch from which `summarise` computes metrics, by name.

        These are the task's counted values and, for each layer and direction: entropy and k of an agent or
        attention, the fraction of each k for agents, and the fraction of words read for layers that can skip
        words. The samples of a row are adjacent in `decisions` and are averaged.
        """
        in_rows, in_steps = where_counted(batch, decisions[0].action.shape[1])
        wide = repeat_rows(in_steps, samples)

        def mean_of(trace: Array) -> Mean:
            where = wide.reshape(wide.shape + (1,) * (trace.ndim - wide.ndim))
            total = jnp.sum(jnp.where(where, trace, 0), axis=(0, 1), dtype=jnp.float32)
            return Mean(total / samples, in_steps.sum(dtype=jnp.float32))

        sums = {}
        for name, values in scored.counted.items():
            where = in_rows if values.ndim == 1 else in_steps
            weighed = jnp.where(where.reshape(where.shape + (1,) * (values.ndim - where.ndim)), values, 0)
            axes = tuple(range(where.ndim))
            sums[name] = Mean(weighed.sum(axes), where.sum(dtype=jnp.float32))
        for i, (skip, decision) in enumerate(zip(self.skips, decisions, strict=True), 1):
            if skip.has_agent:
                who = "agent" if skip.is_stochastic else "attention"
                sums[f"{who}_entropy_{i}"] = mean_of(decision.entropy)
                sums[f"{who}_skip_{i}"] = mean_of(decision.action)
                if skip.is_stochastic and skip.max_skip <= MOST_SHARES:
                    # Count with a scatter-add: one-hot vectors would be large for large K.
                    chosen = jnp.where(wide, decision.action - 1, skip.max_skip)  # padding: out of range
                    times = jnp.zeros(skip.max_skip).at[chosen].add(1 / samples, mode="drop")
                    sums[f"agent_share_{i}"] = Mean(times, in_steps.sum(dtype=jnp.float32))
            if decision.update is not None:
                read = sums[f"read_fraction_{i}"] = mean_of(decision.update)
                earlier = sums.get("read_fraction", Mean(*map(jnp.zeros_like, read)))
                sums["read_fraction"] = Mean(earlier.total + read.total, earlier.count + read.count)
        return sums

    def summarise(self, sums: dict[str, Mean], task: Task | None = None) -> dict[str, np.ndarray]:
        """Return the metrics of the task and of the layers, each (seeds, ...).

        The metrics of each layer with an agent or attention are the mean entropy in nats and the mean k (for
        attention, the k with the largest weight). For agents with K up to 1,000, the fraction of each k,
        (seeds, K), is added. For layers that can skip words, the fraction of words read is added, for each
        layer and for all together.

        """
        means = {}
        for name, (total, count) in sums.items():
            total, count = np.asarray(total, np.float64), np.asarray(count, np.float64)
            with np.errstate(invalid="ignore", divide="ignore"):
                means[name] = total / count.reshape(count.shape + (1,) * (total.ndim - count.ndim))
        with np.errstate(over="ignore"):
            return (task or self.task).metrics(means)

    def _read_model(self, params: nnx.State) -> nnx.Module:
        return self.task.evaluation_model(self.model(self.used_params(params)))

    def _batch_sums(self, params, carry, batch: Batch, key, policy: F.Policy, task: Task, samples: int):
        """Return the carry, the sums, and (actions, predictions) of one evaluation batch of one seed.

        Each row is read `samples` times, in adjacent rows, and its predictions are averaged.
        """
        model = nnx.merge(self._read_graphdef, params)
        repeated = repeat_rows(batch, samples)
        read: Forward = task.forward(model, repeated, carry, **evaluated(policy, key))
        log_probs = read.log_probs if samples == 1 else task.average(read.log_probs, batch, samples)
        scored = task.compute_loss(log_probs, batch)
        actions = tuple(decision.action[::samples] for decision in read.decisions)
        sums = self._sums(scored, batch, read.decisions, samples)
        return read.carry, sums, (actions, task.predict(log_probs, batch))

    def _run(
        self,
        params: nnx.State,
        split: str,
        keys: Key[Array, " seeds"],
        *,
        mode: ActionMode | None = None,
        samples: int = 1,
        batch_size: int | None = None,
        task: Task | None = None,
        advance: Callable[[float], None] | None = None,
    ) -> Iterator[tuple[Batch, dict[str, Mean], tuple]]:
        """Yield each batch of a split with its sums and (actions, predictions), each leaf (seeds, ...)."""
        task, carry = task or self.task, None
        model_params = params
        if self._read_graphdef != self.graphdef:
            params = self._read_params(params)
        policy = self.policy(mode or self.evaluation_mode)
        batches = task.evaluation_batches(split, batch_size, samples)
        if advance is not None:
            batches = list(batches)  # to count them
        for number, batch in enumerate(batches):
            if carry is None:
                rows = num_rows(batch) * samples
                carry = jax.vmap(lambda own, key, rows=rows: task.initial_carry(self.model(own), rows, key))(
                    model_params, keys
                )
            batch_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
            carry, sums, seen = self._evaluate_batch(params, carry, batch, batch_keys, policy, task, samples)
            yield batch, sums, seen
            if advance is not None:
                advance(1 / len(batches))

    def evaluate(
        self,
        params: nnx.State,
        split: str,
        keys: Key[Array, " seeds"],
        *,
        mode: ActionMode | None = None,
        samples: int = 1,
        batch_size: int | None = None,
        task: Task | None = None,
        advance: Callable[[float], None] | None = None,
    ) -> dict[str, np.ndarray]:
        """Return the metrics of a whole split, each (seeds, ...); names start with the split.

        Every example or token counts once. See `summarise` for the metrics of layers.

        Args:
            params: Parameters.
            split: Name of the split.
            keys: Keys for sampled actions.
            mode: How agents choose.
            samples: Number of samples of each row. Their predictions are averaged as probabilities; the
                entropies and skips of agents are averaged too.
            batch_size: Number of rows in a batch; by default the task's choice.
            task: Task that evaluates the models; by default the task that was trained.
            advance: Function called after each batch with 1 / (number of batches).
        """
        how = dict(mode=mode, samples=samples, batch_size=batch_size, task=task, advance=advance)
        task, totals = task or self.task, None
        predictions: list[dict[int, PyTree]] = [{} for _ in self.seeds]
        for batch, sums, (_, predicted) in self._run(params, split, keys, **how):
            sums = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), sums)
            totals = sums if totals is None else jax.tree.map(np.add, totals, sums)
            if task.has_host_metrics:
                _collect(predictions, batch, predicted)
        metrics = {} if totals is None else self.summarise(totals, task)
        metrics |= task.split_metrics(split, metrics)
        if task.has_host_metrics:
            scores = [task.host_metrics(split, [found[i] for i in sorted(found)]) for found in predictions]
            metrics |= {name: np.array([of[name] for of in scores]) for name in scores[0]}
        return {f"{split}_{name}": value for name, value in metrics.items()}

    def predictions(
        self, params: nnx.State, split: str, keys: Key[Array, " seeds"], *, mode: ActionMode | None = None
    ) -> list[list[PyTree]]:
        """Return each model's prediction for each example of a split, in order and without padding."""
        found: list[dict[int, PyTree]] = [{} for _ in self.seeds]
        for batch, _, (_, predicted) in self._run(params, split, keys, mode=mode):
            _collect(found, batch, predicted)
        return [[of_seed[i] for i in sorted(of_seed)] for of_seed in found]

    def read(
        self, params: nnx.State, inputs: PyTree, length: int, policy: F.Policy
    ) -> tuple[Forward, PyTree]:
        """Return one model's forward pass and prediction for one example; leaves have no row axis.

        Each leaf of `inputs`, (time, ...), is padded to a multiple of 8 steps, so that few lengths are
        compiled. Samples are drawn with `jax.random.key(0)`.
        """
        steps = -(-length // _STEP_OF_LENGTHS) * _STEP_OF_LENGTHS

        def padded(steps: int) -> Batch:
            def pad(leaf):
                return np.pad(leaf, ((0, steps - length), *((0, 0),) * (leaf.ndim - 1)))[None]

            return Batch(jax.tree.map(pad, inputs), None, seq_lengths=np.array([length], np.int32))

        found = self._read_batch(params, padded(steps), policy)
        # Time axes are those that grow with the padding. Their size is ambiguous, since there may be as many
        # classes as steps.
        longer = self._read_batch.eval_shape(params, padded(steps + _STEP_OF_LENGTHS), policy)
        log_probs, decisions, predicted, observations = jax.tree.map(
            lambda leaf, other: leaf[0] if leaf.shape == other.shape else leaf[0][:length], found, longer
        )
        return Forward(log_probs, decisions, observations=observations), predicted

    def predict(self, params: nnx.State, batch: Batch, policy: F.Policy) -> PyTree:
        """Return one model's prediction for each row of a batch without targets; see `read`."""
        return self._predict_batch(params, batch, policy)

    def _forward_rows(self, params, batch: Batch, policy: F.Policy) -> tuple[PyTree, ...]:
        """Return the log-probabilities, decisions, predictions and observations of a batch."""
        model, key = self.model(params), jax.random.key(0)
        carry = self.task.initial_carry(model, num_rows(batch), key)
        read = self.task.forward(model, batch, carry, **evaluated(policy, key))
        return read.log_probs, read.decisions, self.task.predict(read.log_probs, batch), read.observations

    def choices(
        self,
        params: nnx.State,
        split: str,
        keys: Key[Array, " seeds"],
        *,
        layer: int,
        mode: ActionMode = "greedy",
        batch_size: int | None = None,
    ) -> Iterator[tuple[Batch, Int[np.ndarray, "seeds rows time"]]]:
        """Yield each batch of a split, and the k that each seed's agent chose at each step.

        `layer` is an index among the stack's layers and directions.
        """
        for batch, _, (actions, _) in self._run(params, split, keys, mode=mode, batch_size=batch_size):
            yield batch, np.asarray(actions[layer])


def _penalty(read: Forward, axis_name: str | None) -> Float[Array, ""] | float:
    """Return the sum of the penalties; its mean over devices is that of the whole batch."""
    total = read.penalty
    for mean, count in read.step_penalties:
        usual = mean_over(count, axis_name)
        total = total + mean * (count / jnp.where(usual > 0, usual, 1))
    return total


def _weights(batch: Batch) -> Float[Array, " rows"] | None:
    """Return the weight of each row in the loss, 0 for rows that only fill the batch; None for equal ones."""
    fills = batch.mask is not None and batch.mask.ndim == 1
    if not fills:
        return batch.weights
    mask = batch.mask.astype(jnp.float32)
    return mask if batch.weights is None else mask * batch.weights


def _collect(found: Sequence[dict[int, PyTree]], batch: Batch, predicted: PyTree) -> None:
    """Add the predictions of a batch, (seeds, ...), to the predictions `found` of each model."""
    for seed, own in enumerate(found):
        own |= _unpadded(batch, jax.tree.map(lambda leaf, i=seed: np.asarray(leaf[i]), predicted))


def _unpadded(batch: Batch, predicted: PyTree) -> dict[int, PyTree]:
    """Return the predictions by example number, without filled rows and without steps past the end."""
    mask = np.ones(len(batch.index), bool) if batch.mask is None else batch.mask

    def of_row(row: int) -> PyTree:
        stop = None if batch.seq_lengths is None else int(batch.seq_lengths[row])
        return jax.tree.map(lambda leaf: leaf[row] if leaf.ndim == 1 else leaf[row][:stop], predicted)

    return {int(batch.index[row]): of_row(row) for row in np.flatnonzero(mask).tolist()}


def _critic(cell: Any, rngs: nnx.Rngs) -> Weights | None:
    """Return a critic, an MLP of the agent's form and size with output V(s(t)).

    For a layer that does not sample, return None.
    """
    if not cell.skip.is_stochastic:
        return None
    sizes = (cell.in_features, cell.hidden_features, cell.agent_features)
    return Weights(F.Dynamic(1).init(rngs.params(), *sizes, F.Initializers(dtype=cell.param_dtype)))


def _critic_values(model: nnx.Module, observations: tuple | None) -> tuple[Array | None, ...] | None:
    """Return V(s(t)) of each layer, (rows, time), or None for a layer without a critic.

    Without critics, return None.
    """
    if not hasattr(model, "critics"):
        return None
    if observations is None:
        raise UserError("the baseline learned needs a task that says what agents observe: choose another one")
    return tuple(
        None if critic is None else rl.critic(critic.read(), x, h)
        for critic, (x, h) in zip(model.critics, observations, strict=True)
    )


def _shared_key(keys: Key[Array, " rows"], axis_name: str | None) -> Key[Array, ""]:
    """Return one key shared by all rows, also those on other devices; it differs from the rows' keys."""
    data = jax.random.key_data(keys[0])
    if axis_name is not None:
        data = jax.lax.all_gather(data, axis_name)[0]
    return jax.random.fold_in(jax.random.wrap_key_data(data), 2**31 - 1)
