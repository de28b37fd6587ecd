"""The pairs of sentences, the model that rates them, and how it reads a pair."""

import dataclasses
from typing import Any

import numpy as np
from flax import nnx

from dynskip_jax import hooks
from dynskip_jax.analysis.reading import Reading
from dynskip_jax.config import short
from dynskip_jax.data import corpora
from dynskip_jax.data.notes import DataNotes
from dynskip_jax.data.sentences import pair_inputs
from dynskip_jax.data.sentences import treebank_words as split
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import Dataset
from dynskip_jax.experiments.sentence_task import (
    embedding,
    load_sentences,
    model_options,
    task_options,
)
from dynskip_jax.models import SentencePairModel
from dynskip_jax.tasks import SentencePairs

__all__ = ["encode", "format_prediction", "load", "make_task", "read", "split", "tokenize"]


def load(settings: Any) -> Dataset:
    """Load the pairs."""
    notes = DataNotes(strict=settings.data.strict)
    splits, source = corpora.find_sick(settings.data.data, notes)
    return load_sentences("sick", splits, source, settings, lines=notes.lines)


def make_task(spec: Any, settings: Any, data: Dataset | None, vocabulary: Any) -> SentencePairs:
    """Return the task of a model; the layer that compares two sentences is that of Tai et al.
    (2015).
    """
    embed = embedding(settings, data, vocabulary)

    def make_model(rngs: nnx.Rngs) -> SentencePairModel:
        sizes, options = (
            (settings.model.features, corpora.SICK_RATINGS),
            model_options(spec, settings, data),
        )
        return SentencePairModel(embed(rngs), *sizes, similarity_features=50, **options, rngs=rngs)

    return SentencePairs(
        {} if data is None else data.content.splits, make_model, **task_options(settings)
    )


def tokenize(trained: Any, text: str) -> str:
    """Separate the words of each of the two sentences by spaces."""
    return "\t".join(" ".join(split(part)) for part in text.split("\t"))


def encode(trained: Any, text: str) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the ids of two sentences separated by a tab, and the words that they stand for."""
    sentences = [split(part) for part in text.split("\t")]
    if len(sentences) != 2 or not all(sentences):
        raise UserError(f"expected two sentences separated by a tab, got {short(text.strip())}")
    inputs = pair_inputs(*map(trained.vocabulary.encode, sentences))
    return inputs, trained.vocabulary.decode(inputs["tokens"])


def format_prediction(trained: Any, predicted: Any, probability: float) -> str:
    """Return the predicted rating."""
    return f"{float(predicted):.2f}"


def read(trained: Any, text: str) -> Reading:
    """Read a pair; a choice that reaches into the other sentence is shown as one outside of the
    text.

    Probabilities of each k are left out: near the other sentence, they would be shown at its words.
    """
    reading = hooks.read(trained, text)
    first, end = int((encode(trained, text)[0]["sentences"] == 0).sum()), len(reading.words)
    skips = [t + 1 if t >= first > t - k else k for t, k in enumerate(reading.skips)]
    backward = reading.backward
    if backward is not None:
        backward = [end - t if t < first <= t + k else k for t, k in enumerate(backward)]
    return dataclasses.replace(
        reading, skips=skips, weights=None, backward=backward, backward_weights=None
    )
