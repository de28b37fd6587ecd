"""The text of language modelling, and how it is split into words."""

import re

import numpy as np
from typing_extensions import override

from dynskip_jax.config.experiment import Dataset
from dynskip_jax.data.corpora import PROSE_WORD, find_language_corpus
from dynskip_jax.data.sentences import treebank_words
from dynskip_jax.data.vocabularies import EOS
from dynskip_jax.experiments.language_task import TextModelling
from dynskip_jax.experiments.ptb.config import LARGE_PRESETS, TextSettings

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


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
        return Dataset(*about, content=corpus, vocabulary=corpus.vocabulary, lines=corpus.about)

    @override
    def tokenize(self, text: str) -> str:
        """Adapt the words of a text to the conventions of the vocabulary.

        Letters become lowercase and numbers `N` if they are so there, and punctuation marks that it
        lacks are dropped. Contractions are split (is n't) or not, whichever leaves fewer words
        unknown.
        """
        known = self.vocabulary.index
        if all(token == token.lower() for token in known if token != "N"):
            text = text.lower()
        ways = []
        for words in (PROSE_WORD.findall(text), treebank_words(text, lowercase=False)):
            if "N" in known:
                words = [
                    "N" if _NUMBER.fullmatch(word) and word not in known else word for word in words
                ]
            ways.append([word for word in words if word in known or any(map(str.isalnum, word))])
        return " ".join(min(ways, key=lambda words: sum(word not in known for word in words)))

    @override
    def encode(self, text: str) -> tuple[np.ndarray, list[str]]:
        """Return the tokens of a text, which begin with `<eos>`; unknown ones become `<unk>`."""
        tokens = self.vocabulary.encode([EOS, *self.vocabulary.split(text)])
        return tokens, self.vocabulary.decode(tokens)
