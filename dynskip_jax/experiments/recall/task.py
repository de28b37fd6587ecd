"""The rows, the model that copies a word of the past, and what is measured of its choices."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int
from typing_extensions import override

from dynskip_jax.config.experiment import Dataset
from dynskip_jax.data.batches import Batch, Examples
from dynskip_jax.data.recall import NOT_ASKED, NUM_WORDS, STEPS_OF_A_PAIR, load_recall
from dynskip_jax.data.vocabularies import Vocabulary
from dynskip_jax.functional import copied_log_probs
from dynskip_jax.models.language_model import LanguageModel
from dynskip_jax.nn import initializers
from dynskip_jax.runs.load import Trained
from dynskip_jax.tasks.task import ExampleTask, Forward, LossOutput


class OfAsked(NamedTuple):
    """Log-probabilities, in nats, at the places that ask; rows may have fewer of them."""

    target: Float[Array, "rows places"]  # of the true words
    words: Float[Array, "rows places vocabulary"]


class Recall(ExampleTask):
    """A task that predicts a word only where a key returns; it trains a `LanguageModel`."""

    is_of_steps = True

    @override
    @staticmethod
    def load(settings: Any) -> Dataset:
        """Generate the rows."""
        return load_recall(settings.data.length, settings.data.train_examples)

    def __init__(self, spec: Any, settings: Any, data: Dataset | None, vocabulary: Vocabulary):
        features = settings.model.features

        def make_model(rngs: nnx.Rngs) -> LanguageModel:
            return LanguageModel(
                NUM_WORDS,
                features,
                **spec.layer_options(),
                copy=spec.copy,
                weight_init=initializers.by_size(features),
                cell=spec.cell_options,
                rngs=rngs,
            )

        splits = {}
        if data is not None:
            splits = {name: Examples(*rows) for name, rows in data.content.items()}
        super().__init__(splits, make_model, batch_size=settings.training.batch_size)
        self.vocabulary = vocabulary

    @override
    def train_batches(self, epoch: int, seeds: Sequence[int]) -> Iterable[Batch]:
        return map(_asked, super().train_batches(epoch, seeds))

    @override
    def evaluation_batches(self, split: str, rows: int | None, samples: int) -> Iterable[Batch]:
        return map(_asked, super().evaluation_batches(split, rows, samples))

    @override
    def forward(self, model: LanguageModel, batch: Batch, carry: Any, **how: Any) -> Forward:
        # Words are predicted only at the few steps that ask, because the softmax is large.
        del how["shared_key"]
        output = model(batch.inputs, **how)
        places = _places(batch)
        states, copies, choices, targets = jax.tree.map(
            lambda leaf: leaf[places],
            (output.dropped_states, output.copies, output.choices, batch.targets),
        )
        of_softmax = model.softmax(states)
        words = jax.nn.log_softmax(of_softmax)
        if copies is not None:
            words = copied_log_probs(copies, words)
        there = output._replace(logits=words, of_softmax=of_softmax, copies=copies, choices=choices)
        found = OfAsked(there.log_likelihood(targets), words)
        return Forward(found, output.decisions, observations=output.observations)

    @override
    def compute_loss(self, log_probs: OfAsked, batch: Batch) -> LossOutput:
        """Return the loss and the accuracy at the steps that ask; they are 0 at all others."""
        places = _places(batch)
        right = (log_probs.words.argmax(-1) == batch.targets[places]).astype(log_probs.target.dtype)
        none = jnp.zeros(batch.targets.shape)
        nll = none.at[places].set(-log_probs.target)
        correct = none.at[places].set(right)
        return LossOutput(nll, correct, {"nll": nll, "accuracy": correct})

    @override
    def predict(self, log_probs: Any, batch: Batch) -> tuple[()]:
        return ()


def measure_longer(trained: Trained) -> dict[str, np.ndarray]:
    """Return the accuracy on rows of twice the length, in each mode if choices matter."""
    modes = {"": None}
    if trained.spec.choices_matter():
        modes |= {"_greedy": "greedy", "_sampled": "sample"}
    found = {}
    for suffix, mode in modes.items():
        scores = trained.learner.evaluate(trained.all_params, "twice", trained.keys, mode=mode)
        found[f"test_accuracy_twice{suffix}"] = scores["twice_accuracy"]
    return found


def _places(batch: Batch) -> tuple[Int[Array, "rows 1"], Int[Array, "rows places"]]:
    """Return the indices of each row's steps that ask, then others up to the most possible."""
    asked = batch.targets != NOT_ASKED
    # Stable, so that the steps that ask come first and in order, and all rows have one shape.
    steps = jnp.argsort(~asked, axis=1, stable=True)[:, : asked.shape[1] // STEPS_OF_A_PAIR]
    return jnp.arange(len(steps))[:, None], steps


def _asked(batch: Batch) -> Batch:
    """Mask the steps at which nothing is asked."""
    asked = batch.targets != NOT_ASKED
    return batch._replace(mask=asked if batch.mask is None else asked & batch.mask[..., None])
