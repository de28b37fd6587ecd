"""Train and evaluate models of any task: seeds, sweeps, rollouts, agents' losses, modes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, Key, PyTree, Shaped
from typing_extensions import override

from dynskip_jax import functional as F
from dynskip_jax.config.settings import Agent
from dynskip_jax.data.batches import Batch
from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import ActionMode
from dynskip_jax.functional.keys import example_keys
from dynskip_jax.storage.folder import RunDir
from dynskip_jax.tasks.agents import agents_loss, rewards_of
from dynskip_jax.tasks.rows import num_rows, repeat_rows, where_counted
from dynskip_jax.tasks.task import Forward, LossOutput, Task, evaluated
from dynskip_jax.training.loop import FitResult, FitSettings, fit
from dynskip_jax.training.mesh import mean_over
from dynskip_jax.training.scheduled import ScheduledValues, policy_of, scheduled_values
from dynskip_jax.training.step import Trainable

_MOST_SHARES = 1000  # largest K for which the fraction of each k is a metric
_STEP_OF_LENGTHS = 8  # single examples are padded to a multiple of this length


class Mean(NamedTuple):
    """A mean as a sum and the number of summed values, which can be added up over batches."""

    total: Float[Array, "..."]
    count: Float[Array, "..."]


class Learner(Trainable):
    """A `Trainable` for the models of a task, one for each seed.

    In its methods, `params` and `keys`, the keys for sampled actions, are (seeds, ...), a split is
    `train`, `dev` or `test`, and `mode` says how agents choose, by default as in `evaluation_mode`.

    Args:
        seeds: Seed of each model. Seeds order the examples differently, unless the task shares its
            batches.
        objective: How agents are trained.
        mixes: λ of each model, if they differ in it.
        epochs: Number of training epochs, for the schedules.
        evaluation_mode: How agents choose on dev during training.
    """

    counts = "updates"  # how long training is, as `run` says it
    axis = "epoch"  # entry of records over which curves are drawn

    def __init__(
        self,
        task: Task,
        seeds: Sequence[int] = (0,),
        *,
        objective: Agent = Agent(),  # noqa: B008 (immutable)
        mixes: Sequence[float] | None = None,
        epochs: int = 1,
        evaluation_mode: ActionMode = "greedy",
    ):
        self.task = task
        self.seeds = tuple(seeds)
        self.mixes = mixes
        self.epochs = epochs
        self.objective = objective
        self.evaluation_mode = evaluation_mode
        self.monitor = f"dev_{task.score}"
        self.higher_is_better = task.higher_is_better
        self.primary_metric = task.primary_metric or task.score
        self.num_batches = task.num_batches
        self.unit = task.unit
        self.batch_axis = None if task.shared_batches else 0
        abstract = nnx.eval_shape(lambda: task.make_model(nnx.Rngs(jax.random.key(0))))
        self.graphdef = nnx.graphdef(abstract)
        if not hasattr(abstract, "stack"):
            raise UserError(
                f"expected {type(abstract).__name__} to have its recurrent layers in `stack`"
            )
        self.skips: tuple[F.TimeSkip, ...] = abstract.stack.skips
        self.reverse: tuple[bool, ...] = abstract.stack.reads_reverse
        self._read_batch = jax.jit(self._read_rows)
        self._evaluate_batch = jax.jit(
            jax.vmap(self._batch_sums, in_axes=(0, 0, None, 0, 0, None, None)),
            static_argnums=(5, 6),
            donate_argnums=1,
        )

    @property
    def top_layers(self) -> dict[str, int]:
        """Index in `decisions` of the top layer with the time skip, `forward` and `backward`."""
        has_skip = [not isinstance(skip, F.Previous) for skip in self.skips]
        layers = [layer for layer, has in enumerate(has_skip) if has or not any(has_skip)]
        return {"backward" if self.reverse[layer] else "forward": layer for layer in layers}

    def model(self, params: nnx.State) -> nnx.Module:
        """Return the model with one seed's parameters."""
        return nnx.merge(self.graphdef, params)

    def abstract_params(self) -> nnx.State:
        """Return the shapes and dtypes of one model's parameters."""
        return jax.eval_shape(self.init, jax.random.key(0))

    def policy(self, mode: str | None = None) -> F.Policy:
        """Return the policy of the models in this mode, each leaf (seeds, ...)."""
        return policy_of(mode or self.evaluation_mode, len(self.seeds), self.mixes)

    # --- Training ---

    def fit(self, settings: FitSettings, run_dir: RunDir | None, **how: Any) -> FitResult:
        """Train all seeds, as `training.loop.fit` does with these arguments."""
        return fit(self, settings, run_dir, **how)

    @override
    def init(self, key: Key[Array, ""]) -> nnx.State:
        return nnx.state(self.task.make_model(nnx.Rngs(key)), nnx.Param)

    @override
    def initial_carry(self, params: nnx.State, key: Key[Array, ""]) -> PyTree:
        rows = self.task.batch_size * self.objective.rollouts
        return self.task.initial_carry(self.model(params), rows, key)

    @override
    def scheduled(self, epoch: int) -> ScheduledValues:
        return scheduled_values(self.objective, epoch, self.epochs, len(self.seeds), self.mixes)

    @override
    def train_batches(self, epoch: int) -> Iterator[Batch]:
        return iter(self.task.train_batches(epoch, self.seeds))

    @override
    def train_batch_sizes(self, epoch: int) -> Sequence[int]:
        return self.task.train_batch_sizes(epoch)

    @override
    def loss(
        self,
        params: nnx.State,
        carry: PyTree,
        batch: Batch,
        keys: Key[Array, "*batch_or_none"],
        scheduled: ScheduledValues,
        axis_name: str | None = None,
    ) -> tuple[Float[Array, ""], tuple[PyTree, dict[str, Mean]]]:
        """Return `agents_loss` plus the task's penalties; relaxed choices have one rollout."""
        task = self.task
        objective = self.objective
        rollouts = objective.rollouts if scheduled.policy.mode == "sample" else 1
        keys = example_keys(keys, (num_rows(batch),))
        shared_key = _shared_key(keys, axis_name)
        if jax.tree.leaves(carry):
            # The carry has its own keys, so rollouts of a row differ in choices but share dropout
            # masks.
            keys = repeat_rows(keys, rollouts)
            if rollouts < objective.rollouts:
                carry = jax.tree.map(lambda leaf: leaf[:: objective.rollouts], carry)
        else:
            keys = jax.vmap(partial(jax.random.split, num=rollouts))(keys).reshape(-1)
        batch = repeat_rows(batch, rollouts)
        how = dict(policy=scheduled.policy, rngs=keys, shared_key=shared_key, deterministic=False)
        read = task.forward(self.model(params), batch, carry, **how)
        scored = task.compute_loss(read.log_probs, batch)
        log_likelihood = -scored.nll if scored.rewarded is None else scored.rewarded
        in_rows, in_steps = where_counted(batch, read.decisions[0].action.shape[1])
        loss = agents_loss(
            objective,
            scheduled,
            read.decisions,
            scored.nll,
            rewards_of(objective, log_likelihood, scored.correct),
            weights=in_rows,
            step_weights=in_steps,
            axis_name=axis_name,
        )
        for mean, count in read.penalties:  # their mean over devices is that of the whole batch
            usual = mean_over(count, axis_name)
            loss += mean * (count / jnp.where(usual > 0, usual, 1))
        carry = repeat_rows(read.carry, objective.rollouts // rollouts)
        return loss, (carry, self._sums(scored, batch, read.decisions))

    # --- Evaluation ---

    def modes(self, spec: Any, samples: int) -> dict[str, tuple[str, int]]:
        """Return how agents choose, and the number of averaged samples, by the suffix of metrics.

        Models whose choices matter, controls too, have further metrics, with the suffixes
        `_greedy`, `_sampled` and `_averaged`, the mean of `samples` predictions.
        """
        modes = {"": (spec.evaluation_mode, 1)}
        if spec.choices_matter():
            averaged = ("sample", samples)
            modes |= {"_greedy": ("greedy", 1), "_sampled": ("sample", 1), "_averaged": averaged}
        return modes

    def _sums(
        self,
        scored: LossOutput,
        batch: Batch,
        decisions: Sequence[F.DecisionTrace],
        samples: int = 1,
    ) -> dict[str, Mean]:
        """Return a batch's sums by name; adjacent samples of a row are averaged."""
        in_rows, in_steps = where_counted(batch, decisions[0].action.shape[1])
        wide = repeat_rows(in_steps, samples)
        steps = in_steps.sum(dtype=jnp.float32)

        def mean_of(trace: Array) -> Mean:
            return Mean(jnp.sum(jnp.where(wide, trace, 0), dtype=jnp.float32) / samples, steps)

        sums = {}
        for name, values in scored.counted.items():
            where = in_rows if values.ndim == 1 else in_steps
            wide_where = where.reshape(where.shape + (1,) * (values.ndim - where.ndim))
            weighed = jnp.where(wide_where, values, 0)
            sums[name] = Mean(weighed.sum(range(where.ndim)), where.sum(dtype=jnp.float32))
        for i, (skip, decision) in enumerate(zip(self.skips, decisions, strict=True), 1):
            if skip.has_agent:
                who = "agent" if skip.is_stochastic else "attention"
                sums[f"{who}_entropy_{i}"] = mean_of(decision.entropy)
                sums[f"{who}_skip_{i}"] = mean_of(decision.action)
                if skip.is_stochastic and skip.max_skip <= _MOST_SHARES:
                    # Count with a scatter-add: one-hot vectors would be large for large K.
                    # Padding: out of range.
                    chosen = jnp.where(wide, decision.action - 1, skip.max_skip)
                    times = jnp.zeros(skip.max_skip).at[chosen].add(1 / samples, mode="drop")
                    sums[f"agent_share_{i}"] = Mean(times, steps)
            if decision.update is not None:
                sums[f"read_fraction_{i}"] = mean_of(decision.update)
        return sums

    @override
    def summarise(
        self, sums: dict[str, Mean], task: Task | None = None, split: str = "train"
    ) -> dict[str, np.ndarray]:
        """Return the metrics of the task and of the layers, each (seeds, ...).

        A layer with an agent or attention has the mean entropy in nats and the mean k (of
        attention, the k with the largest weight); an agent with K up to 1,000 also has the fraction
        of each k, (seeds, K). Layers that can skip words have the fraction of words read, each and
        together.
        """
        means = {}
        for name, (total, count) in sums.items():
            total = np.asarray(total, np.float64)
            count = np.asarray(count, np.float64)
            with np.errstate(invalid="ignore", divide="ignore"):
                means[name] = total / count.reshape(count.shape + (1,) * (total.ndim - count.ndim))
        read = [mean for name, mean in means.items() if name.startswith("read_fraction_")]
        if read:
            means["read_fraction"] = np.mean(read, axis=0)
        with np.errstate(over="ignore"):
            return (task or self.task).metrics(means, split)

    def _batch_sums(
        self, params, carry, batch: Batch, key, policy: F.Policy, task: Task, samples: int
    ):
        """Return one seed's carry, sums, and (actions, averaged predictions) of a batch."""
        repeated = repeat_rows(batch, samples)
        read: Forward = task.forward(self.model(params), repeated, carry, **evaluated(policy, key))
        log_probs = read.log_probs
        if samples > 1:
            log_probs = task.average(log_probs, batch, samples)
        sums = self._sums(task.compute_loss(log_probs, batch), batch, read.decisions, samples)
        actions = tuple(decision.action[::samples] for decision in read.decisions)
        return read.carry, sums, (actions, task.predict(log_probs, batch))

    def _run(
        self,
        params,
        split,
        keys,
        *,
        mode,
        samples=1,
        batch_size=None,
        task=None,
        advance=lambda _: None,
    ) -> Iterator[tuple[Batch, dict[str, Mean], tuple]]:
        """Yield each batch with its sums and (actions, predictions), leaves (seeds, ...)."""
        task = task or self.task
        carry = None
        policy = self.policy(mode)
        batches = list(task.evaluation_batches(split, batch_size, samples))
        for number, batch in enumerate(batches):
            if carry is None:
                start = partial(task.initial_carry, rows=num_rows(batch) * samples)
                carry = jax.vmap(lambda own, key, start=start: start(self.model(own), key=key))(
                    params, keys
                )
            batch_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
            carry, sums, seen = self._evaluate_batch(
                params, carry, batch, batch_keys, policy, task, samples
            )
            yield batch, sums, seen
            advance(1 / len(batches))

    @override
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
        advance: Callable[[float], None] = lambda _: None,
    ) -> dict[str, np.ndarray]:
        """Return the metrics of a whole split, each (seeds, ...); names start with the split.

        Every example or token counts once. See `summarise` for the metrics of layers.

        Args:
            samples: Number of samples of each row. Their predictions are averaged as probabilities;
                the entropies and skips of agents are averaged too.
            task: Task of the models in this evaluation; by default the one that was trained.
            advance: Function called after each batch with 1 / (number of batches).
        """
        how = dict(mode=mode, samples=samples, batch_size=batch_size, task=task, advance=advance)
        task = task or self.task
        totals = None
        found = []
        for batch, sums, (_, predicted) in self._run(params, split, keys, **how):
            sums = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), sums)
            if totals is not None:
                sums = jax.tree.map(np.add, totals, sums)
            totals = sums
            found.append((batch, predicted))
        metrics = {} if totals is None else self.summarise(totals, task, split)
        scores = [task.host_metrics(split, of_seed) for of_seed in self._in_order(found)]
        metrics |= {name: np.array([of[name] for of in scores]) for name in scores[0]}
        return {f"{split}_{name}": value for name, value in metrics.items()}

    def predictions(
        self, params: nnx.State, split: str, keys: Key[Array, " seeds"]
    ) -> list[list[PyTree]]:
        """Return each model's prediction for each example, in order and without padding."""
        run = self._run(params, split, keys, mode=self.evaluation_mode)
        return self._in_order((batch, predicted) for batch, _, (_, predicted) in run)

    def _in_order(self, found: Iterable[tuple[Batch, PyTree]]) -> list[list[PyTree]]:
        """Return each model's predictions in order and unpadded; leaves are (seeds, rows, ...)."""
        by_example: list[dict[int, PyTree]] = [{} for _ in self.seeds]
        for batch, predicted in found:
            if not jax.tree.leaves(predicted):
                continue
            leaves, tree = jax.tree.flatten(jax.device_get(predicted))
            for row, example in enumerate(batch.index.tolist()):
                # A row that fills a batch repeats an example before it. A mask of steps may exclude
                # all steps of a true row, so it does not tell which rows fill a batch.
                if example in by_example[0]:
                    continue
                stop = None if batch.seq_lengths is None else int(batch.seq_lengths[row])
                for seed, own in enumerate(by_example):
                    cut = [
                        leaf[seed, row] if leaf.ndim == 2 else leaf[seed, row][:stop]
                        for leaf in leaves
                    ]
                    own[example] = jax.tree.unflatten(tree, cut)
        return [[own[i] for i in sorted(own)] for own in by_example]

    def choices(
        self, params: nnx.State, split: str, keys: Key[Array, " seeds"], *, layer: int
    ) -> Iterator[tuple[Batch, Int[np.ndarray, "seeds rows time"]]]:
        """Yield each batch of a split, and the k that each agent chose greedily at each step."""
        for batch, _, (actions, _) in self._run(params, split, keys, mode="greedy"):
            yield batch, np.asarray(actions[layer])

    # --- One model ---

    def read(
        self, params: nnx.State, inputs: PyTree, length: int, policy: F.Policy
    ) -> tuple[Forward, PyTree]:
        """Return one model's forward pass and prediction for one example; leaves have no row axis.

        Each leaf of `inputs`, (time, ...), is padded so that few lengths are compiled. Results are
        cut on the host: on the device, each length would be a program. Choices use key 0.
        """

        def batch_of(more: int) -> Batch:
            rows = jax.tree.map(lambda leaf: padded(leaf, more)[None], inputs)
            return Batch(rows, None, seq_lengths=np.array([length], np.int32))

        found = jax.device_get(self._read_batch(params, batch_of(0), policy))
        # Time axes are those that grow with the padding: there may be as many classes as steps.
        longer = self._read_batch.eval_shape(params, batch_of(_STEP_OF_LENGTHS), policy)
        return jax.tree.map(
            lambda leaf, other: leaf[0] if leaf.shape == other.shape else leaf[0][:length],
            found,
            longer,
        )

    def _read_rows(
        self, params: nnx.State, batch: Batch, policy: F.Policy
    ) -> tuple[Forward, PyTree]:
        model = self.model(params)
        key = jax.random.key(0)
        carry = self.task.initial_carry(model, num_rows(batch), key)
        read = self.task.forward(model, batch, carry, **evaluated(policy, key))
        return read._replace(carry=(), penalties=()), self.task.predict(read.log_probs, batch)


def padded(array: Shaped[np.ndarray, "time ..."], more: int = 0) -> Shaped[np.ndarray, "steps ..."]:
    """Return an array whose time is padded with zeros to one of few lengths, and by `more`."""
    missing = -len(array) % _STEP_OF_LENGTHS + more
    return np.pad(array, ((0, missing), *((0, 0),) * (array.ndim - 1)))


def _shared_key(keys: Key[Array, " rows"], axis_name: str | None) -> Key[Array, ""]:
    """Return one key for all rows, on all devices; it differs from the rows' keys."""
    if axis_name is not None:
        keys = jax.random.wrap_key_data(jax.lax.all_gather(jax.random.key_data(keys[0]), axis_name))
    return F.shared_key(keys)
