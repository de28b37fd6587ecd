"""The pairs of sentences, the model that rates them, and how it reads a pair."""

import dataclasses
from functools import partial
from typing import Any

import numpy as np
from typing_extensions import override

from dynskip_jax.analysis.reading import Reading
from dynskip_jax.config.experiment import Dataset
from dynskip_jax.config.flags import short
from dynskip_jax.data import sentence_corpora
from dynskip_jax.data.sentences import pair_inputs, treebank_words
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.sentence_task import load_sentences, task_options
from dynskip_jax.experiments.vectors import width_of_vectors
from dynskip_jax.models.classifier import SentencePairModel
from dynskip_jax.runs.load import Trained
from dynskip_jax.runs.texts import read_text
from dynskip_jax.tasks.classification import SentencePairs

_SIMILARITY_FEATURES = 50  # of the layer that compares two sentences (Tai et al. 2015)


class Similarity(SentencePairs):
    """Rate how alike two sentences are; a text is two sentences separated by a tab."""

    settings_of_files = staticmethod(width_of_vectors)

    @override
    @staticmethod
    def load(settings: Any) -> Dataset:
        """Load the pairs."""
        splits, source = sentence_corpora.find_sick(settings.data.data)
        return load_sentences("sick", splits, source, settings)

    def __init__(self, spec: Any, settings: Any, data: Dataset | None, vocabulary: Any):
        build = partial(
            SentencePairModel,
            hidden_features=settings.model.features,
            num_ratings=sentence_corpora.SICK_RATINGS,
            similarity_features=_SIMILARITY_FEATURES,
        )
        super().__init__(**task_options(spec, settings, data, vocabulary, build))
        self.vocabulary = vocabulary

    @override
    def split(self, text: str) -> list[str]:
        return treebank_words(text)

    @override
    def encode(self, text: str) -> tuple[dict[str, np.ndarray], list[str]]:
        """Return the ids of two sentences, and the words that they stand for."""
        sentences = [self.split(part) for part in text.split("\t")]
        if len(sentences) != 2 or not all(sentences):
            raise UserError(f"expected two sentences separated by a tab, got {short(text.strip())}")
        inputs = pair_inputs(*map(self.vocabulary.encode, sentences))
        return inputs, self.vocabulary.decode(inputs["tokens"])


def read_pair(trained: Trained, text: str) -> Reading:
    """Show a choice that reaches into the other sentence as one outside of the text.

    Probabilities of each k are left out: near the other sentence, they would be shown at its words.
    """
    reading = read_text(trained, text, lambda task, rating, _: f"{float(rating):.2f}")
    # The row has the words of both sentences, those of the first one before the others.
    first = int((trained.encode(text)[0]["sentences"] == 0).sum())
    end = len(reading.words)
    # k = t + 1 is the state before the text.
    skips = [t + 1 if t >= first > t - k else k for t, k in enumerate(reading.skips)]
    backward = reading.backward
    if backward is not None:
        backward = [end - t if t < first <= t + k else k for t, k in enumerate(backward)]
    return dataclasses.replace(
        reading, skips=skips, weights=None, backward=backward, backward_weights=None
    )
