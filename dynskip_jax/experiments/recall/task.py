"""The rows, the model that copies a word of the past, and what is measured of its choices."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from typing_extensions import override

from dynskip_jax.data import Batch, Examples, Vocabulary
from dynskip_jax.data.recall import NOT_ASKED, NUM_WORDS, STEPS_OF_A_PAIR, load_recall
from dynskip_jax.experiment import Dataset
from dynskip_jax.experiments.language_task import read
from dynskip_jax.functional import copied_log_probs
from dynskip_jax.models import LanguageModel
from dynskip_jax.nn import initializers
from dynskip_jax.tasks.language import OfTargets
from dynskip_jax.tasks.task import ExampleTask, Forward, LossOutput

__all__ = ["load", "make_task", "metrics", "read", "warnings"]


class Recall(ExampleTask):
    """A task that predicts a word only where a key returns; it trains a `LanguageModel`."""

    is_of_steps = True

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
        output, asked = model(batch.inputs, **how), batch.targets != NOT_ASKED
        places = jnp.argsort(~asked, axis=1, stable=True)[:, : asked.shape[1] // STEPS_OF_A_PAIR]
        rows = jnp.arange(len(places))[:, None]
        states, copies, choices, targets = jax.tree.map(
            lambda leaf: leaf[rows, places],
            (output.dropped_states, output.copies, output.choices, batch.targets),
        )
        logits = of_softmax = model.softmax(states)
        if copies is not None:
            logits = copied_log_probs(copies, jax.nn.log_softmax(of_softmax))
        there = output._replace(logits=logits, of_softmax=of_softmax, copies=copies, choices=choices)
        found = (jnp.zeros(asked.shape).at[rows, places].set(value) for value in OfTargets.of(there, targets))
        return Forward(OfTargets(*found), output.decisions, observations=output.observations)

    @override
    def compute_loss(self, log_probs: OfTargets, batch: Batch) -> LossOutput:
        scored = log_probs.loss()
        return scored._replace(counted={**scored.counted, "accuracy": scored.correct})

    @override
    def predict(self, log_probs: Any, batch: Batch) -> tuple[()]:
        return ()


def _asked(batch: Batch) -> Batch:
    """Mask the steps at which nothing is asked."""
    asked = batch.targets != NOT_ASKED
    return batch._replace(mask=asked if batch.mask is None else asked & batch.mask[..., None])


def load(settings: Any) -> Dataset:
    """Generate the rows."""
    found = load_recall(settings.data.length, settings.data.train_examples)
    words = Vocabulary(tuple(map(str, range(NUM_WORDS))))
    return Dataset(found.name, found.sizes, found.fingerprint, found.source, found.splits, words)


def make_task(spec: Any, settings: Any, data: Dataset | None, vocabulary: Vocabulary) -> Recall:
    """Return the task of a model."""

    def make_model(rngs: nnx.Rngs) -> LanguageModel:
        return LanguageModel(
            NUM_WORDS,
            settings.model.features,
            **spec.layer_options(),
            copy=spec.copy,
            weight_init=initializers.by_size(settings.model.features),
            cell=spec.cell_options,
            rngs=rngs,
        )

    splits = {} if data is None else {name: Examples(*rows) for name, rows in data.content.items()}
    return Recall(splits, make_model, batch_size=settings.training.batch_size)


def warnings(spec: Any, settings: Any, learner: Any) -> list[str]:
    """Return none: relaxed choices in every epoch, and a K beyond the rows of train, are meant."""
    return []


def metrics(trained: Any) -> dict[str, np.ndarray]:
    """Return the accuracy on rows of twice the length."""
    found = trained.learner.evaluate(trained.all_params, "twice", trained.keys)
    return {"test_accuracy_twice": found["twice_accuracy"]}
