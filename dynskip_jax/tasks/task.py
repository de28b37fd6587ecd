"""What a task is: its batches, its model, what a forward pass says, and its score."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Key

from dynskip_jax import functional as F
from dynskip_jax import rl
from dynskip_jax.data.batching import Batch
from dynskip_jax.data.examples import Examples, evaluation_batches, num_train_batches, train_batches

PyTree = Any
MakeModel = Callable[[nnx.Rngs], nnx.Module]


class Forward(NamedTuple):
    """What a model makes of a batch.

    Attributes:
        log_probs: log-probabilities, each leaf (rows, ...); those of several samples of a row are averaged
            (`Task.average`) before they are scored.
        decisions: the trace of each layer and direction, as `SkipLSTM` returns them.
        carry: for the next batch of the same rows; each leaf leads with the rows.
        penalty: is added to the loss.
        observations: what agents saw, as `SkipLSTM` returns it, for critics; None where it is not known.
    """

    log_probs: PyTree
    decisions: tuple[F.DecisionTrace, ...]
    carry: PyTree = ()
    penalty: Float[Array, ""] | float = 0.0
    observations: tuple | None = None


class LossOutput(NamedTuple):
    """A forward pass beside the truth.

    Attributes:
        nll: the loss, -log p of the truth in nats: of each row, (rows,), or of each step, (rows, time).
        correct: 1 where the prediction is right, shaped as `nll`; None where nobody asks.
        counted: metrics that are means over rows, (rows,), or over steps, (rows, time, ...).
        rewarded: the log-likelihood that agents are rewarded with, (rows,) or (rows, time), where it is not
            that of the loss, and then `correct` is shaped as it is; None where it is.
    """

    nll: Float[Array, "rows *time"]
    correct: Float[Array, "rows *time"] | None
    counted: Mapping[str, Array]
    rewarded: Float[Array, "rows *time"] | None = None


class Task:
    """What is trained and how it is scored; a task of one's own is a class like this.

    `Learner` has the rest: seeds, sweeps, rollouts, agents' losses, evaluation in every mode.

    Args:
        make_model: from `nnx.Rngs` to the model, whose `stack` is a `SkipLSTM` or `SkipLayers`.

    Attributes:
        score: the metric that selects the best epoch on dev.
        higher_is_better: whether more of it is better.
        primary_metric: the metric shown while training; by default the score.
        is_of_steps: whether agents are rewarded at each step, not once for each row, as is the loss.
        has_host_metrics: whether `host_metrics` says something.
        shared_batches: whether all seeds read the same batches; otherwise each has its own, stacked.
        batch_size: rows of a training batch.
        num_batches: batches in an epoch.
        examples_per_batch: how many of its `unit` a batch has.
        unit: what is counted: `examples`, of a language model `tokens`.
    """

    score = "accuracy"
    higher_is_better = True
    primary_metric: str | None = None
    is_of_steps = False
    has_host_metrics = False
    shared_batches = False
    unit = "examples"
    batch_size: int
    num_batches: int
    examples_per_batch: int

    def __init__(self, make_model: MakeModel):
        self.make_model = make_model

    @property
    def max_length(self) -> int | None:
        """Steps of the longest sequence of train; None where sequences have no end, or without data."""
        return None

    @property
    def train_lengths(self) -> tuple[int, ...]:
        """The numbers of steps that training batches have; empty where all have the same one."""
        return ()

    def train_batches(self, epoch: int, seeds: Sequence[int]) -> Iterable[Batch]:
        """Returns the batches of an epoch (from 0), the same ones each time; (seeds, rows, ...) or shared."""
        raise NotImplementedError

    def evaluation_batches(self, split: str, rows: int | None, samples: int) -> Iterable[Batch]:
        """Returns a whole split, each example or token once.

        Args:
            split: `train`, `dev` or `test`.
            rows: of a batch; None: as the task thinks best.
            samples: how often each row will be read, side by side.
        """
        raise NotImplementedError

    def windows(self, split: str, rows: int, steps: int) -> Iterable[Batch]:
        """Returns a whole split in pieces as short as asked for, each from the carry of the one before it.

        Args:
            split: `train`, `dev` or `test`.
            rows: of a batch.
            steps: of a piece; by default rows are whole, however long.
        """
        return self.evaluation_batches(split, rows, 1)

    def initial_carry(self, model: nnx.Module, rows: int, key: Key[Array, ""]) -> PyTree:
        """Returns what the first batch of an epoch or a split starts from; nothing where rows are whole."""
        return ()

    def evaluation_model(self, model: nnx.Module) -> nnx.Module:
        """Returns the model as evaluation reads it, where that can be faster."""
        return model

    def forward(
        self,
        model: nnx.Module,
        batch: Batch,
        carry: PyTree,
        *,
        policy: F.Policy,
        rngs: Key[Array, "..."],
        shared_key: Key[Array, ""] | None,
        deterministic: bool,
    ) -> Forward:
        """Reads a batch.

        Args:
            model: with its parameters.
            batch: without a seed axis.
            carry: of the batch before.
            policy: how choices are made.
            rngs: a key for each row, or one.
            shared_key: for what is dropped for all rows alike; None where nothing is dropped.
            deterministic: drop nothing.
        """
        raise NotImplementedError

    def forward_of_each_choice(
        self, model: nnx.Module, batch: Batch, carry: PyTree, **how: Any
    ) -> tuple[Forward, Float[Array, "rows time K"]] | None:
        """Reads a batch where choices of the last layer enter no state (λ = 0): each matters at its own step
        alone.

        Returns:
            A forward pass, and the loss of each step with each choice in the place of the one taken, nats; or
            None where such choices change nothing.
        """
        return None

    def average(self, log_probs: PyTree, batch: Batch, samples: int) -> PyTree:
        """Returns one prediction of each row from several samples of it; by default the mean probability.

        Args:
            log_probs: each leaf (rows * samples, ...), the samples of a row side by side.
            batch: each row once.
            samples: how many.
        """

        def mean(leaf: Float[Array, "rows ..."]) -> Float[Array, "..."]:
            apart = leaf.reshape(-1, samples, *leaf.shape[1:])
            return rl.averaged_log_likelihood(jnp.moveaxis(apart, 1, -1))

        return jax.tree.map(mean, log_probs)

    def compute_loss(self, log_probs: PyTree, batch: Batch) -> LossOutput:
        """Compares log-probabilities with the truth.

        By default those of classes, (rows, [time,] classes), with the class of each row or step.
        """
        nll = -jnp.take_along_axis(log_probs, batch.targets[..., None], axis=-1)[..., 0]
        correct = (self.predict(log_probs, batch) == batch.targets).astype(nll.dtype)
        return LossOutput(nll, correct, {"accuracy": correct, "nll": nll})

    def predict(self, log_probs: PyTree, batch: Batch) -> PyTree:
        """Returns what is predicted, each leaf (rows, [time, ...]); by default the best class.

        The batch has no targets where a trained model is used.
        """
        return log_probs.argmax(-1)

    def metrics(self, means: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the metrics made of the means of what was counted, (seeds, ...)."""
        return dict(means)

    def split_metrics(self, split: str, metrics: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return more metrics of a split, which follow from those that were measured on it.

        Args:
            split: `train`, `dev` or `test`.
            metrics: what `metrics` returned.
        """
        return {}

    def host_metrics(self, split: str, predictions: Sequence[PyTree]) -> Mapping[str, float]:
        """Returns metrics of one model that are no means: functions of all its predictions.

        Args:
            split: `train`, `dev` or `test`.
            predictions: of each example, in the order of the split, without padding.
        """
        return {}


class ExampleTask(Task):
    """A task whose splits are examples that stand for themselves.

    Args:
        splits: `train`, `dev` and `test`; none where a model is only used.
        make_model: see `Task`.
        batch_size: examples of a training step.
        evaluation_rows: examples of an evaluation step.
    """

    def __init__(
        self,
        splits: Mapping[str, Examples],
        make_model: MakeModel,
        *,
        batch_size: int = 1,
        evaluation_rows: int = 1000,
    ):
        super().__init__(make_model)
        self.splits = dict(splits)
        self.batch_size = self.examples_per_batch = batch_size
        self.num_batches = num_train_batches(splits["train"], batch_size) if "train" in splits else 0
        self._rows = evaluation_rows

    @property
    def max_length(self) -> int | None:
        """See `Task`."""
        if "train" not in self.splits:
            return None
        lengths = self.splits["train"].seq_lengths
        return (
            jax.tree.leaves(self.splits["train"].inputs)[0].shape[1]
            if lengths is None
            else int(np.max(lengths))
        )

    @property
    def train_lengths(self) -> tuple[int, ...]:
        """See `Task`."""
        examples = self.splits.get("train")
        if examples is None or not examples.buckets:
            return ()
        return tuple(examples.buckets[bucket] for bucket in np.unique(examples.bucket_of_each()))

    def train_batches(self, epoch: int, seeds: Sequence[int]) -> Iterable[Batch]:
        """See `Task`; see `data.examples.train_batches`."""
        return train_batches(self.splits["train"], self.batch_size, seeds, epoch)

    def evaluation_batches(self, split: str, rows: int | None, samples: int) -> Iterable[Batch]:
        """See `Task`; samples of a row take the place of other rows."""
        return evaluation_batches(self.splits[split], rows or max(1, self._rows // samples))
