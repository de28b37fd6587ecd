"""Turn labelled texts, or rated pairs of sentences, into padded arrays of word ids."""

import dataclasses
import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import regex
from jaxtyping import Int

from dynskip_jax.data.batches import Examples, length_buckets, pad_sequences, worthwhile_buckets
from dynskip_jax.data.vocabularies import Vocabulary, word_vocabulary

# A function of the words of train, and the words of dev and test, that returns those words of dev and test
# that the vocabulary contains even if train lacks them.
Known = Callable[[Collection[str], Collection[str]], Collection[str]]

LINE_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_MOST_BUCKETS = 8
# A character of a word. `\w` of the package regex matches letters of every script, combining marks, and the
# joiners within words; `\p{N}` adds numbers such as ².
_LETTER = r"[\w\p{N}]"
# Any other visible character, together with its combining characters, as in a joined emoji.
_SYMBOL = r"(?![\s\x1c-\x1f])\X"
# A word, possibly with apostrophes inside; or the same symbol up to three times.
_REVIEW_WORD = regex.compile(rf"{_LETTER}+(?:['’]{_LETTER}+)*|({_SYMBOL})\1{{0,2}}")
# Tokens of the Penn Treebank: bracket names; n't and 's as separate tokens; words with hyphens, dots or
# slashes; or the same symbol any number of times.
_TREEBANK_WORD = regex.compile(
    rf"-[lr][rscb]b-|{_LETTER}+(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b"
    rf"|{_LETTER}+(?:[-.,/:&]{_LETTER}+)*|({_SYMBOL})\1*",
    regex.IGNORECASE,
)


def review_words(text: str) -> list[str]:
    """Return the words of a raw text in lower case: letters and digits in any script, and inner apostrophes.

    Any other visible character is a word, and so are up to three equal ones. HTML line breaks separate words.
    """
    return [found[0] for found in _REVIEW_WORD.finditer(LINE_BREAK.sub(" ", text).lower())]


def treebank_words(text: str, *, lowercase: bool = True) -> list[str]:
    """Return the words of a text, approximately as the Penn Treebank splits them: `is n't`, `it 's`, `(`."""
    return [found[0] for found in _TREEBANK_WORD.finditer(text.lower() if lowercase else text)]


class Labelled(NamedTuple):
    """The words of a text and its class."""

    words: Sequence[str]
    label: int


class Pair(NamedTuple):
    """The words of two sentences and a rating of how similar or related they are."""

    first: Sequence[str]
    second: Sequence[str]
    rating: float


@dataclasses.dataclass(frozen=True)
class SentenceCorpus:
    """A corpus of labelled texts or rated pairs, with words as ids.

    Attributes:
        name: Name of the corpus in results.
        vocabulary: `<unk>`, the words of train, and words of dev and test that are known without train.
        num_frequent: First id of the rare words, which occur at most once in train.
        splits: Examples of `train`, `dev` and `test`.
        source: Phrase for messages that describes where the corpus was found.
        unknown: Fraction of the words of each split that are `<unk>`.
        cropped: Number of texts in each split that were cropped to the maximum length.
    """

    name: str
    vocabulary: Vocabulary
    num_frequent: int
    splits: Mapping[str, Examples]
    source: str
    unknown: Mapping[str, float]
    cropped: Mapping[str, int]

    @property
    def sizes(self) -> dict[str, int]:
        """Number of examples of each split, and number of entries of the vocabulary."""
        sizes = {name: len(split) for name, split in self.splits.items()}
        return sizes | {"vocabulary": len(self.vocabulary)}

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the vocabulary, ids, lengths and targets."""
        digest = hashlib.sha256("\n".join(self.vocabulary.tokens).encode())
        for name, split in self.splits.items():
            digest.update(f"\n{name} {len(split)}\n".encode())
            arrays = split.inputs.values() if isinstance(split.inputs, dict) else [split.inputs]
            for array in (*arrays, split.targets, split.seq_lengths):
                digest.update(f"{array.dtype} {array.shape}\n".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @property
    def about(self) -> str:
        """One line for messages: percentage of unknown words and number of cropped texts in each split."""
        unknown = ", ".join(f"{100 * share:.2g} % of {name}" for name, share in self.unknown.items())
        line = f"words outside the vocabulary of {len(self.vocabulary):,}: {unknown}"
        if not any(self.cropped.values()):
            return line
        cropped = ", ".join(f"{count:,} of {name}" for name, count in self.cropped.items())
        return f"{line}; texts cropped: {cropped}"


def labelled_corpus(
    name: str,
    splits: Mapping[str, Iterable[Labelled]],
    source: str,
    *,
    min_count: int = 1,
    max_words: int | None = None,
    max_length: int | None = None,
    buckets: int | None = 8,
    batch_size: int = 1,
    known: Known | None = None,
) -> SentenceCorpus:
    """Build a corpus from texts with one class each.

    Args:
        name: Name of the corpus.
        splits: Texts of `train`, `dev` and `test`; each iterable is read once.
        source: Phrase that describes where the corpus was found.
        min_count: Words that occur less often in train are left out; see `word_vocabulary`.
        max_words: Maximum number of words of train in the vocabulary; None keeps all.
        max_length: Maximum number of words of a text; longer texts keep their first words. None keeps all.
        buckets: Maximum number of lengths to which batches are padded, chosen for each split. None chooses at
            most 8 lengths from train, fewer for small data, for all splits.
        batch_size: Number of texts per training step; used only if `buckets` is None.
        known: Function that returns the words of dev and test to add to the vocabulary; None adds none.
    """
    numbers = _Numbers()
    read = {split: [(numbers.of(text.words), text.label) for text in own] for split, own in splits.items()}
    texts = {split: [ids[:max_length] for ids, _ in own] for split, own in read.items()}
    cropped = {
        split: sum(len(ids) > len(kept) for (ids, _), kept in zip(own, texts[split], strict=True))
        for split, own in read.items()
    }
    vocabulary, num_frequent, renumbered = _vocabulary(numbers, texts, min_count, max_words, known)
    examples, unknown = {}, {}
    for split, own in texts.items():
        rows = [renumbered[ids] for ids in own]
        inputs, lengths = pad_sequences(rows)
        unknown[split] = _share_unknown(rows)
        targets = np.array([label for _, label in read[split]], np.int32)
        examples[split] = Examples(inputs, targets, lengths)
    examples = _bucketed(examples, buckets, batch_size)
    return SentenceCorpus(name, vocabulary, num_frequent, examples, source, unknown, cropped)


def pair_corpus(
    name: str,
    splits: Mapping[str, Iterable[Pair]],
    source: str,
    *,
    min_count: int = 1,
    max_words: int | None = None,
    buckets: int | None = 4,
    batch_size: int = 1,
    known: Known | None = None,
) -> SentenceCorpus:
    """Build a corpus from rated pairs of sentences, each a row of both sentences; see `labelled_corpus`."""
    numbers = _Numbers()
    read = {
        split: [(numbers.of(pair.first), numbers.of(pair.second), pair.rating) for pair in own]
        for split, own in splits.items()
    }
    sentences = {split: [ids for pair in own for ids in pair[:2]] for split, own in read.items()}
    vocabulary, num_frequent, renumbered = _vocabulary(numbers, sentences, min_count, max_words, known)
    examples, unknown = {}, {}
    for split, own in read.items():
        rows = [pair_inputs(renumbered[first], renumbered[second]) for first, second, _ in own]
        tokens, lengths = pad_sequences([row["tokens"] for row in rows])
        marks, _ = pad_sequences([row["sentences"] for row in rows])
        unknown[split] = _share_unknown([row["tokens"] for row in rows])
        ratings = np.array([rating for *_, rating in own], np.float32)
        examples[split] = Examples({"tokens": tokens, "sentences": marks}, ratings, lengths)
    examples, cropped = _bucketed(examples, buckets, batch_size), dict.fromkeys(read, 0)
    return SentenceCorpus(name, vocabulary, num_frequent, examples, source, unknown, cropped)


def pair_inputs(
    first: Int[np.ndarray, " first"], second: Int[np.ndarray, " second"]
) -> dict[str, Int[np.ndarray, " time"]]:
    """Return `tokens`, the ids of both sentences, and `sentences`, 0 for those of the first and 1 else."""
    marks = np.repeat(np.arange(2, dtype=np.int32), [len(first), len(second)])
    return {"tokens": np.concatenate([first, second]).astype(np.int32), "sentences": marks}


def held_out(
    num_examples: int, share: float, seed: int
) -> tuple[Int[np.ndarray, " rest"], Int[np.ndarray, " held"]]:
    """Return the indices of the examples that remain and of a random share that is held out, ascending."""
    order = np.random.default_rng([seed, num_examples]).permutation(num_examples)
    count = round(share * num_examples)
    return np.sort(order[count:]), np.sort(order[:count])


class _Numbers:
    """Numbers for words in the order of first occurrence; they take a tenth of the memory of words."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}

    def of(self, words: Sequence[str]) -> Int[np.ndarray, " time"]:
        """Return the number of each word; a new word gets the next unused number."""
        index = self.index
        return np.fromiter((index.setdefault(word, len(index)) for word in words), np.int32, len(words))


def _vocabulary(
    numbers: _Numbers,
    texts: Mapping[str, Sequence[Int[np.ndarray, "_"]]],
    min_count: int,
    max_words: int | None,
    known: Known | None,
) -> tuple[Vocabulary, int, Int[np.ndarray, " numbers"]]:
    """Return the vocabulary, the number of its entries that are not rare, and the id of each word number."""
    words = list(numbers.index)

    def count(split: str) -> dict[str, int]:
        found = np.bincount(np.concatenate([np.zeros(0, np.int32), *texts[split]]), minlength=len(words))
        return {words[number]: int(found[number]) for number in np.flatnonzero(found)}

    counts, more = count("train"), set[str]()
    if known is not None:
        more = known(counts.keys(), {word for split in texts if split != "train" for word in count(split)})
    vocabulary = word_vocabulary(counts, min_count=min_count, max_words=max_words, more_words=more)
    # Words that `known` adds come last, also those of train that are not kept otherwise.
    frequent = itertools.takewhile(lambda word: counts.get(word, 0) > 1, vocabulary.tokens[1:])
    return vocabulary, 1 + sum(1 for _ in frequent), vocabulary.encode(words)


def _bucketed(splits: Mapping[str, Examples], count: int | None, batch_size: int) -> dict[str, Examples]:
    """Return the splits with the lengths to which their batches are padded; see `labelled_corpus`."""
    shared: tuple[int, ...] = ()
    if count is None:
        worth = worthwhile_buckets(len(splits["train"]), batch_size)
        shared = length_buckets(splits["train"].seq_lengths, min(_MOST_BUCKETS, worth))
    found = {}
    for split, own in splits.items():
        buckets = shared or length_buckets(own.seq_lengths, count)
        if buckets[-1] < own.longest:
            buckets += length_buckets(own.seq_lengths, 1)
        found[split] = dataclasses.replace(own, buckets=buckets)
    return found


def _share_unknown(texts: Sequence[Int[np.ndarray, "_"]]) -> float:
    """Return the fraction of words that are `<unk>`, id 0."""
    return float(np.mean(np.concatenate([np.zeros(0, np.int32), *texts]) == 0)) if texts else 0.0
