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
from dynskip_jax.data.corpora import embedded_corpus, find_language_corpus, read_ptb
from dynskip_jax.data.labelled import (
    LabelledText,
    LabelledTextCorpus,
    find_labelled_text,
    read_labelled_file,
    stratified_split,
)
from dynskip_jax.data.language import LanguageCorpus, Pieces, make_corpus, read_corpus
from dynskip_jax.data.number_prediction import NumberPredictionData, load_number_prediction
from dynskip_jax.data.sentences import SentenceCorpus, labelled_corpus, pair_corpus
from dynskip_jax.data.tag_schemes import SCHEMES, Entity, convert_tags, detect_scheme, entities
from dynskip_jax.data.tagged import (
    TaggedCorpus,
    TaggedExamples,
    find_entity_corpus,
    find_part_of_speech_corpus,
    tagged_examples,
)
from dynskip_jax.data.tagged_files import (
    TaggedSentence,
    read_columns,
    read_conllu,
    read_parses,
    read_word_tag,
)
from dynskip_jax.data.vocabularies import EOS, UNK, TaggerVocabulary, Vocabulary, tagger_vocabulary
from dynskip_jax.data.word_vectors import WordVectors, read_word_vectors, vectors_of

__all__ = [
    "EOS",
    "SCHEMES",
    "UNK",
    "Batch",
    "Entity",
    "Examples",
    "LabelledText",
    "LabelledTextCorpus",
    "LanguageCorpus",
    "NumberPredictionData",
    "Pieces",
    "SentenceCorpus",
    "TaggedCorpus",
    "TaggedExamples",
    "TaggedSentence",
    "TaggerVocabulary",
    "Vocabulary",
    "WordVectors",
    "convert_tags",
    "detect_scheme",
    "embedded_corpus",
    "entities",
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
    "read_columns",
    "read_conllu",
    "read_corpus",
    "read_labelled_file",
    "read_parses",
    "read_ptb",
    "read_word_tag",
    "read_word_vectors",
    "segments",
    "stratified_split",
    "tagged_examples",
    "tagger_vocabulary",
    "vectors_of",
]
