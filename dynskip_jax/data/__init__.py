"""Data as NumPy arrays: corpora, vocabularies, synthetic tasks and batches."""

from dynskip_jax.data.batches import (
    Batch,
    Examples,
    epoch_order,
    length_buckets,
    num_segments,
    pad_sequences,
    segments,
)
from dynskip_jax.data.corpora import find_language_corpus
from dynskip_jax.data.labelled import find_labelled_text
from dynskip_jax.data.language import LanguageCorpus, Pieces, make_corpus, read_corpus
from dynskip_jax.data.number_prediction import NumberPredictionData, load_number_prediction
from dynskip_jax.data.sentences import labelled_corpus, pair_corpus
from dynskip_jax.data.tagged import find_entity_corpus, find_part_of_speech_corpus, tagged_examples
from dynskip_jax.data.vocabularies import EOS, UNK, Vocabulary, tagger_vocabulary
from dynskip_jax.data.word_vectors import read_word_vectors

__all__ = [
    "EOS",
    "UNK",
    "Batch",
    "Examples",
    "LanguageCorpus",
    "NumberPredictionData",
    "Pieces",
    "Vocabulary",
    "epoch_order",
    "find_entity_corpus",
    "find_labelled_text",
    "find_language_corpus",
    "find_part_of_speech_corpus",
    "labelled_corpus",
    "length_buckets",
    "load_number_prediction",
    "make_corpus",
    "num_segments",
    "pad_sequences",
    "pair_corpus",
    "read_corpus",
    "read_word_vectors",
    "segments",
    "tagged_examples",
    "tagger_vocabulary",
]
