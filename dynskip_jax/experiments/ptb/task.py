"""The text of language modelling."""

import numpy as np
from typing_extensions import override

from dynskip_jax.config.experiment import Dataset
from dynskip_jax.data.corpora import find_language_corpus
from dynskip_jax.data.vocabularies import EOS
from dynskip_jax.experiments.language_task import TextModelling
from dynskip_jax.experiments.ptb.config import LARGE_PRESETS, TextSettings


class WordModelling(TextModelling):
    """Predict the next word of a text."""

    @override
    @staticmethod
    def load(settings: TextSettings) -> Dataset:
        """Load the text."""
        data = settings.data
        or_embedded = settings.run.preset not in LARGE_PRESETS
        corpus = find_language_corpus(data.data, data.dataset, or_embedded=or_embedded)
        about = (corpus.name, corpus.sizes, corpus.fingerprint, corpus.source)
        return Dataset(*about, content=corpus, vocabulary=corpus.vocabulary, lines=[corpus.about])

    @override
    def encode(self, text: str) -> tuple[np.ndarray, list[str]]:
        """Return the tokens of a text, which begin with `<eos>`; unknown ones become `<unk>`."""
        tokens = self.vocabulary.encode([EOS, *self.vocabulary.split(text)])
        return tokens, self.vocabulary.decode(tokens)
