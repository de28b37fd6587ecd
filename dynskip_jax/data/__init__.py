"""Data as NumPy arrays: corpora, vocabularies, synthetic tasks and batches."""

from dynskip_jax.lazy import importer

_MODULES = dict(
    Batch="batches",
    Examples="batches",
    length_buckets="batches",
    num_segments="batches",
    pad_sequences="batches",
    segments="batches",
    find_language_corpus="corpora",
    find_labelled_text="labelled",
    LanguageCorpus="language",
    Pieces="language",
    make_corpus="language",
    load_number_prediction="number_prediction",
    find_tagged_corpus="tagged",
    EOS="vocabularies",
    UNK="vocabularies",
    Vocabulary="vocabularies",
)

__all__ = [*_MODULES]


# A reader needs no other readers.
__getattr__ = importer(__name__, _MODULES)
