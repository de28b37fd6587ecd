"""Tag sentences in the formats of taggers."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from dynskip_jax.data import tag_schemes, tagged_files
from dynskip_jax.data.sentences import treebank_words
from dynskip_jax.data.tagged_files import LinesToTag
from dynskip_jax.runs.load import Trained


def tag_lines(trained: Trained, lines: Iterable[str], format: str) -> Iterator[tuple[str, bool]]:
    """Yield each sentence with its tags, and whether it has no words."""
    vocabulary = trained.vocabulary
    scheme = trained.learner.task.scheme
    beside = getattr(trained.settings.data, "columns", None) or ()
    for sentence in _sentences(lines, format, beside):
        words = sentence.words
        # A block may have only comments and blank lines, which are written as they are.
        tags = []
        if words:
            ids = vocabulary.encode(words, sentence.columns)
            _, best = trained.learner.read(trained.params, ids, len(words), trained.policy)
            tags = written([vocabulary.tags[k] for k in np.asarray(best)], scheme)
        if format == "columns":
            tagged = tagged_files.tagged_lines(sentence, tags)
        else:
            tagged = [f"{word} {tag}" for word, tag in zip(words, tags, strict=True)] + [""]
        yield "".join(f"{line}\n" for line in tagged), not words


def _sentences(lines: Iterable[str], format: str, beside: Sequence[int]) -> Iterator[LinesToTag]:
    if format == "columns":
        lines = (line.rstrip("\r\n") for line in lines)
        return tagged_files.lines_to_tag(lines, beside=beside)
    split = str.split if format == "words" else partial(treebank_words, lowercase=False)
    return (LinesToTag([], words, [], []) for words in map(split, lines) if words)


def written(tags: Sequence[str], scheme: str | None) -> list[str]:
    """Convert tags to what users see: entity tags (of a scheme) in BIO2, others as they are."""
    return list(tags) if scheme is None else tag_schemes.convert_tags(tags, "BIO2")
