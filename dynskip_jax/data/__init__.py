"""Data as NumPy arrays: corpora, vocabularies, synthetic tasks and batches."""

from dynskip_jax.data.batching import (
    Segment,
    epoch_order,
    minibatches,
    num_segments,
    padded_minibatches,
    segments,
)
from dynskip_jax.data.embedded import embedded_corpus
from dynskip_jax.data.language_corpus import find_language_corpus
from dynskip_jax.data.number_prediction import NumberPredictionData, load_number_prediction
from dynskip_jax.data.ptb import read_ptb
from dynskip_jax.data.text import LanguageCorpus, make_corpus, read_corpus
from dynskip_jax.data.vocabulary import EOS, UNK, Vocabulary, build_vocabulary

__all__ = [
    "EOS",
    "UNK",
    "LanguageCorpus",
    "NumberPredictionData",
    "Segment",
    "Vocabulary",
    "build_vocabulary",
    "embedded_corpus",
    "epoch_order",
    "find_language_corpus",
    "load_number_prediction",
    "make_corpus",
    "minibatches",
    "num_segments",
    "padded_minibatches",
    "read_corpus",
    "read_ptb",
    "segments",
]
