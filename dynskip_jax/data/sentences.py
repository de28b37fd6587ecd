"""Turn labelled texts, or rated pairs of sentences, into padded arrays of word ids."""

import collections
import dataclasses
import itertools
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import regex
from jaxtyping import Int

from dynskip_jax.data.batches import Examples, fingerprint, pad_sequences, with_buckets
from dynskip_jax.data.vocabularies import Vocabulary, word_vocabulary
from dynskip_jax.terminal.messages import shares

# A function of the words of train, and the words of dev and test, that returns those words of dev
# and test that the vocabulary contains even if train lacks them.
Known = Callable[[Collection[str], Collection[str]], Collection[str]]

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


@dataclasses.dataclass(frozen=True)
class SentenceCorpus:
    """Labelled texts or rated pairs, with words as ids."""

    vocabulary: Vocabulary  # `<unk>`, the words of train, and other known words of dev and test
    num_frequent: int  # first id of the rare words, which occur at most once in train
    splits: Mapping[str, Examples]

    @property
    def sizes(self) -> dict[str, int]:
        """Number of examples of each split, and number of entries of the vocabulary."""
        sizes = {name: len(split) for name, split in self.splits.items()}
        return sizes | {"vocabulary": len(self.vocabulary)}

    @property
    def fingerprint(self) -> str:
        """Hash of the vocabulary, ids, lengths and targets."""
        arrays: list[np.ndarray] = []
        for split in self.splits.values():
            inputs = split.inputs
            arrays += inputs.values() if isinstance(inputs, dict) else [inputs]
            arrays += [split.targets, split.seq_lengths]
        return fingerprint(*self.vocabulary.tokens, *arrays)

    @property
    def about(self) -> str:
        """One line for messages: unknown words (%) in each split."""
        unknown = {}
        for name, split in self.splits.items():
            tokens = split.inputs
            if isinstance(tokens, dict):  # of two sentences
                tokens = tokens["tokens"]
            # `<unk>` and padding are 0.
            unknown[name] = 1 - np.count_nonzero(tokens) / int(split.seq_lengths.sum())
        return f"words outside the vocabulary of {len(self.vocabulary):,}: {shares(unknown)}"


def sentence_corpus(
    splits: Mapping[str, Iterable[Labelled]],
    *,
    max_words: int | None = None,
    max_length: int | None = None,
    batch_size: int = 1,
    known: Known = lambda train, others: (),
) -> SentenceCorpus:
    """Build a corpus from texts with a class, or from rated pairs, each a row of both sentences.

    Args:
        max_words: Maximum number of words of train in the vocabulary.
        max_length: Maximum number of words of a text; longer texts keep their first words.
        batch_size: Number of texts per training step; see `with_buckets`.
        known: Function that returns the words of dev and test to add to the vocabulary.
    """
    read = {}  # words, number of words of the first sentence, and label
    for split, texts in splits.items():
        read[split] = []
        for text in texts:
            first = text.words[:max_length]
            # Each distinct word is kept once.
            words = [sys.intern(word) for word in (*first, *text.second)]
            read[split].append((words, len(first), text.label))
    counts = {
        split: collections.Counter(word for words, *_ in texts for word in words)
        for split, texts in read.items()
    }
    train = counts.pop("train")
    # Words of dev and test are known only if they have pretrained vectors, for example.
    more = known(train.keys(), set().union(*counts.values()))
    vocabulary = word_vocabulary(train, max_words=max_words, more_words=more)
    # Words that `known` adds come last, also those of train that are not kept otherwise.
    frequent = itertools.takewhile(lambda word: train[word] > 1, vocabulary.tokens[1:])
    num_frequent = 1 + sum(1 for _ in frequent)
    examples = {}
    for split, texts in read.items():
        inputs, lengths = pad_sequences([vocabulary.encode(words) for words, *_ in texts])
        firsts, labels = (np.array([text[i] for text in texts]) for i in (1, 2))
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
