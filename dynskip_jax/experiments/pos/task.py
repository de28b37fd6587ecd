"""The sentences with a tag for each word, and their tagger."""

from typing import Any

from dynskip_jax.data.tagged import find_tagged_corpus
from dynskip_jax.data.vocabularies import UNK
from dynskip_jax.experiment import Dataset
from dynskip_jax.experiments.tagger_task import (
    dataset_of,
    draw,
    encode,
    make_task,
    metrics,
    read,
    tokenize,
)

__all__ = ["draw", "encode", "load", "make_task", "metrics", "read", "tokenize"]


def load(settings: Any) -> Dataset:
    """Load the sentences; words of dev and test whose tag train lacks count as wrong."""
    data = settings.data
    how = dict(tag=data.tag, tag_column=data.tag_column, strict=data.strict)
    corpus = find_tagged_corpus(data.dataset, data.data, **how)
    tags, lines = corpus.train_tags, []
    held_out = [
        tag for name in ("dev", "test") for sentence in corpus.splits[name] for tag in sentence.tags
    ]
    if missing := {*held_out} - {*tags}:
        count = sum(tag in missing for tag in held_out)
        lines = [
            f"{count:,} words of dev and test have {len(missing):,} tags that train lacks: counted as wrong"
        ]
        tags = (*tags, UNK)
    return dataset_of(corpus, tags, settings, lines)
