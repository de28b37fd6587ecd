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
from dynskip_jax.data.column_files import LinesToTag, lines_to_tag, tagged_lines
from dynskip_jax.data.embedded import embedded_corpus
from dynskip_jax.data.labelled_text import (
    LabelledText,
    LabelledTextCorpus,
    find_labelled_text,
    read_labelled_file,
    stratified_split,
)
from dynskip_jax.data.language_corpus import find_language_corpus
from dynskip_jax.data.number_prediction import NumberPredictionData, load_number_prediction
from dynskip_jax.data.pieces import Pieces
from dynskip_jax.data.ptb import read_ptb
from dynskip_jax.data.splits import find_splits
from dynskip_jax.data.tag_schemes import (
    SCHEMES,
    AllowedTransitions,
    DetectedScheme,
    Entity,
    allowed_transitions,
    convert_tags,
    detect_scheme,
    entities,
    read_entities,
    write_tags,
)
from dynskip_jax.data.tagged_corpus import (
    TaggedCorpus,
    entity_tags,
    find_entity_corpus,
    find_part_of_speech_corpus,
)
from dynskip_jax.data.tagged_examples import TaggedExamples, tagged_examples
from dynskip_jax.data.tagger_vocabulary import TaggerVocabulary, TokenIds, tagger_vocabulary
from dynskip_jax.data.tagging import (
    TaggedSentence,
    convert_sentences,
    read_columns,
    read_conll2000,
    read_conll2003,
    read_conllu,
    read_parses,
    read_ud,
    read_word_tag,
    read_wsj_sample,
)
from dynskip_jax.data.text import LanguageCorpus, make_corpus, read_corpus
from dynskip_jax.data.vocabulary import EOS, UNK, Vocabulary, build_vocabulary
from dynskip_jax.data.word_vectors import WordVectors, read_word_vectors, vectors_of

__all__ = [
    "EOS",
    "SCHEMES",
    "UNK",
    "AllowedTransitions",
    "Batch",
    "DetectedScheme",
    "Entity",
    "Examples",
    "LabelledText",
    "LabelledTextCorpus",
    "LanguageCorpus",
    "LinesToTag",
    "NumberPredictionData",
    "Pieces",
    "TaggedCorpus",
    "TaggedExamples",
    "TaggedSentence",
    "TaggerVocabulary",
    "TokenIds",
    "Vocabulary",
    "WordVectors",
    "allowed_transitions",
    "build_vocabulary",
    "convert_sentences",
    "convert_tags",
    "detect_scheme",
    "embedded_corpus",
    "entities",
    "entity_tags",
    "epoch_order",
    "find_entity_corpus",
    "find_labelled_text",
    "find_language_corpus",
    "find_part_of_speech_corpus",
    "find_splits",
    "length_buckets",
    "lines_to_tag",
    "load_number_prediction",
    "make_corpus",
    "num_segments",
    "pad_sequences",
    "read_columns",
    "read_conll2000",
    "read_conll2003",
    "read_conllu",
    "read_corpus",
    "read_entities",
    "read_labelled_file",
    "read_parses",
    "read_ptb",
    "read_ud",
    "read_word_tag",
    "read_word_vectors",
    "read_wsj_sample",
    "segments",
    "stratified_split",
    "tagged_examples",
    "tagged_lines",
    "tagger_vocabulary",
    "vectors_of",
    "write_tags",
]
