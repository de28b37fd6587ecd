"""Define the interface of a task: data, model, loss, score and words of texts, with defaults."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Key, PyTree
from typing_extensions import override

from dynskip_jax import functional as F
from dynskip_jax import rl
from dynskip_jax.data.batches import (
    Batch,
    Examples,
    evaluation_batches,
    train_batch_sizes,
    train_batches,
)

MakeModel = Callable[[nnx.Rngs], nnx.Module]


class Forward(NamedTuple):
    """Result of a forward pass on a batch; decisions and observations are those of `SkipRNN`."""

    log_probs: PyTree  # each leaf (rows, ...)
    decisions: tuple[F.DecisionTrace, ...]
    carry: PyTree = ()  # for the next batch of the same rows, each leaf (rows, ...)
    observations: tuple | None = None
    # Pairs (penalty, count) that are added to the loss: a mean over steps, or pairs of steps, of
    # the batch, and their number. Devices that divide a batch may have different numbers.
    penalties: tuple[tuple[Float[Array, ""], Float[Array, ""] | float], ...] = ()


class LossOutput(NamedTuple):
    """Loss and metrics of a batch: of each row, (rows,), or of each step, (rows, time)."""

    nll: Float[Array, "rows *time"]  # -log p of the truth, in nats
    correct: Float[Array, "rows *time"] | None  # 1 for a right prediction, 0 for a wrong one
    # Values whose means are metrics, by name; of steps also (rows, time, ...).
    counted: Mapping[str, Array]
    # Log-likelihood that agents are rewarded with, if it is not -`nll`. `correct` then has this
    # shape.
    rewarded: Float[Array, "rows *time"] | None = None


class Task:
    """Base class of tasks: data, model, batches, loss, score and words of texts.

    Subclass it to add a task. The class of an experiment's task has a `load`, and is called with
    `(spec, settings, data, vocabulary)`; without data (None), the task only reads single texts.
    `Learner` does the rest: seeds, sweeps, rollouts, agents' losses, evaluation in every mode. A
    split is `train`, `dev` or `test`.

    Args:
        make_model: Function from `nnx.Rngs` to the model, whose `stack` is a `SkipRNN` or
            `SkipLayers`.
    """

    score = "accuracy"  # metric that selects the best epoch on dev
    higher_is_better = True  # whether a larger score is better
    primary_metric: str | None = None  # metric shown during training; None for the score
    is_of_steps = False  # whether agents are rewarded at each step, instead of once for each row
    # Whether all seeds read the same batches; otherwise each has its own, stacked.
    shared_batches = False
    unit = "examples"  # what is counted; `tokens` for a language model
    # Of training sequences; None for endless streams, or without data.
    max_length: int | None = None
    batch_size: int  # rows in a training batch
    num_batches: int  # in an epoch
    vocabulary: Any = None  # of the words of a text
    most_words: int | None = None  # of a text that are read; None: all
    class_names: Sequence[str] = ()  # of the classes, if each text has one

    def __init__(self, make_model: MakeModel):
        self.make_model = make_model

    @staticmethod
    def load(settings: Any) -> Any:
        """Return the `Dataset` that an experiment with these settings reads."""
        raise NotImplementedError

    @staticmethod
    def settings_of_files(settings: Any) -> Mapping[str, Any]:
        """Return settings that follow from files that others name, by name."""
        return {}

    # --- Training and evaluation ---

    def train_batches(self, epoch: int, seeds: Sequence[int]) -> Iterable[Batch]:
        """Return an epoch's batches: (seeds, rows, ...), or (rows, ...) if they are shared."""
        raise NotImplementedError

    def train_batch_sizes(self, epoch: int) -> Sequence[int]:
        """Return one model's number of `unit` in each batch of an epoch, whose sum is fixed."""
        raise NotImplementedError

    def evaluation_batches(self, split: str, rows: int | None, samples: int) -> Iterable[Batch]:
        """Return the batches of a whole split, with each example or token once.

        With `rows` None the task chooses their number, for reading `samples` samples of each row at
        once.
        """
        raise NotImplementedError

    def initial_carry(self, model: nnx.Module, rows: int, key: Key[Array, ""]) -> PyTree:
        """Return the carry for a first batch; empty if rows are whole sequences."""
        return ()

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
        """Run the model on a batch without a seed axis, from the carry of the previous batch.

        `rngs` is one key for each row, or one key. `shared_key` is for dropout masks that all rows
        share; None without dropout (`deterministic`).
        """
        raise NotImplementedError

    def average(self, log_probs: PyTree, batch: Batch, samples: int) -> PyTree:
        """Average several samples of each row; by default return the log of the mean probability.

        Leaves of `log_probs` are (rows * samples, ...), and samples of a row are adjacent. `batch`
        has each row once.
        """
        apart = jax.tree.map(lambda leaf: leaf.reshape(-1, samples, *leaf.shape[1:]), log_probs)
        return jax.tree.map(lambda leaf: rl.averaged_log_likelihood(leaf, axis=1), apart)

    def compute_loss(self, log_probs: PyTree, batch: Batch) -> LossOutput:
        """Return the loss and the metrics; by default of one class for each row or step."""
        nll = -jnp.take_along_axis(log_probs, batch.targets[..., None], axis=-1)[..., 0]
        correct = (self.predict(log_probs, batch) == batch.targets).astype(nll.dtype)
        return LossOutput(nll, correct, {"accuracy": correct, "nll": nll})

    def predict(self, log_probs: PyTree, batch: Batch) -> PyTree:
        """Return predictions, (rows, [time, ...]), by default classes, without targets."""
        return log_probs.argmax(-1)

    def metrics(self, means: Mapping[str, np.ndarray], split: str) -> dict[str, np.ndarray]:
        """Return metrics, (seeds, ...), from the means of counted values; by default these."""
        return dict(means)

    def host_metrics(self, split: str, predictions: Sequence[PyTree]) -> Mapping[str, float]:
        """Return metrics of one model's predictions, unpadded and in order, such as F1."""
        return {}

    # --- Texts ---

    def split(self, text: str) -> list[str]:
        """Return the words of a line of text, as they were found in train."""
        return text.split()

    def encode(self, text: str) -> tuple[Any, list[str]]:
        """Return the ids of a line of text, as arrays of shape (time, ...), and each id's word.

        A text is cropped as in training, and unknown words become `<unk>`.
        """
        tokens = self.vocabulary.encode(self.split(text)[: self.most_words])
        return tokens, self.vocabulary.decode(tokens)


class ExampleTask(Task):
    """Base class of tasks whose splits consist of independent examples.

    Args:
        splits: `train`, `dev` and `test`; none if a model is only used.
        evaluation_rows: Number of examples in an evaluation batch.
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
        self.batch_size = batch_size
        self.num_batches = 0
        self._rows = evaluation_rows
        train = self.splits.get("train")
        if train is not None:
            self.num_batches = len(train_batch_sizes(train, batch_size, 0))
            self.max_length = train.longest or jax.tree.leaves(train.inputs)[0].shape[1]

    @override
    def train_batches(self, epoch: int, seeds: Sequence[int]) -> Iterable[Batch]:
        return train_batches(self.splits["train"], self.batch_size, seeds, epoch)

    @override
    def train_batch_sizes(self, epoch: int) -> Sequence[int]:
        return train_batch_sizes(self.splits["train"], self.batch_size, epoch)

    @override
    def evaluation_batches(self, split: str, rows: int | None, samples: int) -> Iterable[Batch]:
        return evaluation_batches(self.splits[split], rows or max(1, self._rows // samples))


def evaluated(policy: F.Policy, key: Key[Array, ""] | None) -> dict[str, Any]:
    """Return the arguments of `Task.forward` for evaluation."""
    return dict(policy=policy, rngs=key, shared_key=None, deterministic=True)
