"""Data as NumPy arrays: corpora, vocabularies, synthetic tasks and batches."""

import importlib
from typing import Any

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


def __getattr__(name: str) -> Any:
    """Import and return a name on first access: a reader needs no other readers."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
