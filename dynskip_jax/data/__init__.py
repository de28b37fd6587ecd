"""Data as NumPy arrays: corpora, vocabularies, synthetic tasks and batches."""

from dynskip_jax.data.batching import (
    Batch,
    epoch_order,
    minibatches,
    num_segments,
    segments,
)
from dynskip_jax.data.embedded import embedded_corpus
from dynskip_jax.data.examples import Examples, length_buckets, pad_sequences
from dynskip_jax.data.language_corpus import find_language_corpus
from dynskip_jax.data.number_prediction import NumberPredictionData, load_number_prediction
from dynskip_jax.data.ptb import read_ptb
from dynskip_jax.data.text import LanguageCorpus, make_corpus, read_corpus
from dynskip_jax.data.vocabulary import EOS, UNK, Vocabulary, build_vocabulary

__all__ = [
    "EOS",
    "UNK",
    "Batch",
    "Examples",
    "LanguageCorpus",
    "NumberPredictionData",
    "Vocabulary",
    "build_vocabulary",
    "embedded_corpus",
    "epoch_order",
    "find_language_corpus",
    "length_buckets",
    "load_number_prediction",
    "make_corpus",
    "minibatches",
    "num_segments",
    "pad_sequences",
    "read_corpus",
    "read_ptb",
    "segments",
]
