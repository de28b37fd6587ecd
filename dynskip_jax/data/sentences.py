"""Turn labelled texts, or rated pairs of sentences, into padded arrays of word ids."""

import collections
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import regex
from jaxtyping import Int

from dynskip_jax.data.batches import Examples, fingerprint, leaves, pad_sequences, with_buckets
from dynskip_jax.data.dataset import Dataset
from dynskip_jax.data.vocabularies import Vocabulary, word_vocabulary

LINE_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
# A character of a word. `\w` of the package regex matches letters of every script, combining marks,
# and the joiners within words; `\p{N}` adds numbers such as ².
_LETTER = r"[\w\p{N}]"
# Any other visible character, together with its combining characters, as in a joined emoji.
_SYMBOL = r"(?![\s\x1c-\x1f])\X"
_REVIEW_WORD = regex.compile(rf"{_LETTER}+(?:['’]{_LETTER}+)*|({_SYMBOL})\1{{0,2}}")
# Tokens of the Penn Treebank: bracket names; n't and 's as separate tokens; words with hyphens,
# dots or slashes; or the same symbol any number of times.
_TREEBANK_WORD = regex.compile(
    rf"-[lr][rscb]b-|{_LETTER}+(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b"
    rf"|{_LETTER}+(?:[-.,/:&]{_LETTER}+)*|({_SYMBOL})\1*",
    regex.IGNORECASE,
)


def review_words(text: str) -> list[str]:
    """Return a raw text's words in lower case: letters, digits and inner apostrophes.

    Any other visible character is a word, and so are up to three equal ones. HTML line breaks
    separate words.
    """
    return [found[0] for found in _REVIEW_WORD.finditer(LINE_BREAK.sub(" ", text).lower())]


def has_words(text: str) -> bool:
    """Return whether `review_words` finds a word in a text."""
    return _REVIEW_WORD.search(LINE_BREAK.sub(" ", text)) is not None


def treebank_words(text: str, *, lowercase: bool = True) -> list[str]:
    """Return a text's words, roughly as the Penn Treebank splits them: `is n't`, `it 's`, `(`."""
    return [found[0] for found in _TREEBANK_WORD.finditer(text.lower() if lowercase else text)]


class Labelled(NamedTuple):
    """The words of a text and its class, or of two sentences and a rating of their similarity."""

    words: Sequence[str]
    label: float
    second: Sequence[str] = ()


class SentenceCorpus(NamedTuple):
    """Labelled texts or rated pairs, with words as ids."""

    vocabulary: Vocabulary  # `<unk>`, the words of train, and other known words of dev and test
    num_frequent: int  # first id of the rare words, which occur at most once in train
    splits: Mapping[str, Examples]

    @property
    def unknown(self) -> dict[str, float]:
        """Fraction of each split's words that are `<unk>`."""
        found = {}
        for name, split in self.splits.items():
            tokens = leaves(split.inputs)[0]  # `<unk>` and padding are 0
            found[name] = 1 - np.count_nonzero(tokens) / int(split.seq_lengths.sum())
        return found

    def dataset(self, name: str, source: str, vocabulary: Vocabulary, **more: Any) -> Dataset:
        """Return the corpus as a `Dataset` of this name."""
        sizes = {split: len(examples) for split, examples in self.splits.items()}
        sizes["vocabulary"] = len(self.vocabulary)
        arrays: list[np.ndarray] = []
        for split in self.splits.values():
            arrays += [*leaves(split.inputs), split.targets, split.seq_lengths]
        content = fingerprint(*self.vocabulary.tokens, *arrays)
        return Dataset(name, sizes, content, source, self, vocabulary, **more)


def sentence_corpus(
    splits: Mapping[str, Sequence[Labelled]],
    *,
    max_words: int | None = None,
    batch_size: int = 1,
    known: Collection[str] = (),
) -> SentenceCorpus:
    """Build a corpus from texts with a class, or from rated pairs, each a row of both sentences.

    The vocabulary has at most `max_words` words of train, and words of `known` that dev or test
    have, even if train lacks them.
    """
    counts = {
        split: collections.Counter(word for text in texts for word in (*text.words, *text.second))
        for split, texts in splits.items()
    }
    train = counts.pop("train")
    more = set().union(*counts.values()) & {*known}
    vocabulary = word_vocabulary(train, max_words=max_words, more_words=more)
    # Words of `known` come last, also those of train that are not kept otherwise.
    frequent = itertools.takewhile(lambda word: train[word] > 1, vocabulary.tokens[1:])
    num_frequent = 1 + sum(1 for _ in frequent)
    examples = {}
    for split, texts in splits.items():
        rows = [vocabulary.encode((*text.words, *text.second)) for text in texts]
        inputs, lengths = pad_sequences(rows)
        firsts = np.array([len(text.words) for text in texts])
        labels = np.array([text.label for text in texts])
        # Rows of two sentences: a second array tells which words are whose.
        if (firsts < lengths).any():
            steps = np.arange(inputs.shape[1])
            is_second = (steps >= firsts[:, None]) & (steps < lengths[:, None])
            inputs = {"tokens": inputs, "sentences": is_second.astype(np.int32)}
        kind = np.int32 if labels.dtype.kind == "i" else np.float32
        examples[split] = Examples(inputs, labels.astype(kind), lengths)
    return SentenceCorpus(vocabulary, num_frequent, with_buckets(examples, batch_size))


def pair_inputs(
    first: Int[np.ndarray, " first"], second: Int[np.ndarray, " second"]
) -> dict[str, Int[np.ndarray, " time"]]:
    """Return `tokens`, the ids of both sentences, and `sentences`, 0 for the first and 1 else."""
    marks = np.repeat(np.arange(2, dtype=np.int32), [len(first), len(second)])
    return {"tokens": np.concatenate([first, second]).astype(np.int32), "sentences": marks}
