"""Texts with a label, or pairs of them with a rating: split into words, numbered, and padded."""

import dataclasses
import functools
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import regex
from jaxtyping import Int

from dynskip_jax.data.examples import Examples, length_buckets, pad_sequences, worthwhile_buckets
from dynskip_jax.data.messages import bad_line
from dynskip_jax.data.vocabulary import UNK, Vocabulary
from dynskip_jax.errors import UserError

# From the words of train and those of dev and test to those of the latter that are known without train.
Known = Callable[[Collection[str], Collection[str]], Collection[str]]

_MOST_BUCKETS = 8

# A line break of HTML.
LINE_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
# A character of a word: `\w` of the package regex has letters of every script, the marks that combine with
# them, and the joiners within words; numbers such as ² are added.
_LETTER = r"[\w\p{N}]"
# Any other character as readers see it, with all that combines with it, such as a joined emoji.
_SYMBOL = r"(?![\s\x1c-\x1f])\X"
# A word, with apostrophes inside it; or up to three of the same mark.
_REVIEW_WORD = regex.compile(rf"{_LETTER}+(?:['’]{_LETTER}+)*|({_SYMBOL})\1{{0,2}}")
# What the Penn Treebank writes apart: n't and 's; brackets by name; words with hyphens, dots or slashes.
_TREEBANK_WORD = regex.compile(
    rf"-[lr][rscb]b-|{_LETTER}+(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b"
    rf"|{_LETTER}+(?:[-.,/:&]{_LETTER}+)*|({_SYMBOL})\1*",
    regex.IGNORECASE,
)


def review_words(text: str) -> list[str]:
    """Return the words of a text as people type it, in lower case.

    A word is letters and digits in any script, with the marks that combine with them and with apostrophes
    inside it. Any other visible character is a word of its own, up to three of the same together (`...`,
    `!!!`). HTML line breaks, of which IMDB's reviews are full, separate words.
    """
    return [found[0] for found in _REVIEW_WORD.finditer(LINE_BREAK.sub(" ", text).lower())]


def treebank_words(text: str, *, lowercase: bool = True) -> list[str]:
    """Returns the words of a text much as the Penn Treebank has them: `is n't`, `it 's`, `(`.

    Args:
        text: as people type it.
        lowercase: whether the words are put into lower case.
    """
    return [found[0] for found in _TREEBANK_WORD.finditer(text.lower() if lowercase else text)]


class Labelled(NamedTuple):
    """Words and their class."""

    words: Sequence[str]
    label: int


class Pair(NamedTuple):
    """Two sentences and how alike they are."""

    first: Sequence[str]
    second: Sequence[str]
    rating: float


@dataclasses.dataclass(frozen=True)
class SentenceCorpus:
    """A corpus as ids.

    Attributes:
        name: what results call it.
        vocabulary: `<unk>`, the words of train, and words of dev and test that are known without it.
        num_frequent: words from this id on are rare: train has them once, or not at all.
        splits: `train`, `dev` and `test`.
        source: a phrase for people: where it was found.
        unknown: of each split the share of its words that are `<unk>`.
        cropped: of each split how many texts were longer than what is kept of them.
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
        """Examples of each split, and words of the vocabulary."""
        return {name: len(split) for name, split in self.splits.items()} | {
            "vocabulary": len(self.vocabulary)
        }

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over vocabulary, ids, lengths and targets."""
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
        """A line for people: how many words are unknown, and how many texts are cropped."""
        unknown = ", ".join(f"{100 * share:.2g} % of {name}" for name, share in self.unknown.items())
        line = f"words that the vocabulary of {len(self.vocabulary):,} has not: {unknown}"
        if not any(self.cropped.values()):
            return line
        cropped = ", ".join(f"{count:,} of {name}" for name, count in self.cropped.items())
        return f"{line}; texts cropped: {cropped}"


def word_vocabulary(
    counts: Mapping[str, int],
    *,
    min_count: int = 1,
    max_words: int | None = None,
    more_words: Collection[str] = (),
) -> Vocabulary:
    """Returns `<unk>` and the words, most frequent first, ties in alphabetical order.

    Args:
        counts: how often each word occurs in train.
        min_count: words that occur less often are left out.
        max_words: how many words of train there may be; None for all.
        more_words: words that train need not have; they come last, in alphabetical order.
    """
    words = sorted(word for word in counts if counts[word] >= min_count and word != UNK)
    words.sort(key=lambda word: -counts[word])
    words = words[:max_words]
    return Vocabulary((UNK, *words, *sorted(set(more_words) - {UNK, *words})))


class _Numbers:
    """Numbers for words as they come: texts are kept as numbers alone, a tenth of what words take."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}

    def of(self, words: Sequence[str]) -> Int[np.ndarray, " time"]:
        """A number for each word; a word that is new takes the next one."""
        index = self.index
        return np.fromiter((index.setdefault(word, len(index)) for word in words), np.int32, len(words))


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
    """Numbers texts with a class each.

    Args:
        name: of the corpus.
        splits: the texts of `train`, `dev` and `test`, each read once.
        source: where it was found.
        min_count: see `word_vocabulary`.
        max_words: likewise.
        max_length: longer texts are cropped to their first words; None: they are kept whole.
        buckets: to how many lengths the batches of each split are padded. None: up to 8, as many as train is
            worth (`worthwhile_buckets`), the same ones in all splits.
        batch_size: texts of a training step.
        known: which words of dev and test are in the vocabulary although train lacks them; None: none.
    """
    numbers, ids, labels = _Numbers(), {}, {}
    for split, texts in splits.items():
        ids[split], labels[split] = [], []
        for text in texts:
            ids[split].append(numbers.of(text.words))
            labels[split].append(text.label)
    cropped = {split: sum(len(own) > (max_length or len(own)) for own in ids[split]) for split in ids}
    ids = {split: [own[:max_length] for own in ids[split]] for split in ids}
    vocabulary, num_frequent, renumbered = _vocabulary(numbers, ids, min_count, max_words, known)
    examples, unknown = {}, {}
    for split, texts in ids.items():
        inputs, lengths = pad_sequences([renumbered[own] for own in texts])
        unknown[split] = _share_unknown([inputs[row, :n] for row, n in enumerate(lengths)])
        targets = np.array(labels[split], np.int32)
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
    """Numbers pairs of sentences: each row has the first and then the second; see `pair_inputs`.

    The arguments are those of `labelled_corpus`.
    """
    numbers, ids, ratings = _Numbers(), {}, {}
    for split, pairs in splits.items():
        ids[split], ratings[split] = [], []
        for pair in pairs:
            ids[split].append((numbers.of(pair.first), numbers.of(pair.second)))
            ratings[split].append(pair.rating)
    sentences = {split: [sentence for pair in pairs for sentence in pair] for split, pairs in ids.items()}
    vocabulary, num_frequent, renumbered = _vocabulary(numbers, sentences, min_count, max_words, known)
    examples, unknown = {}, {}
    for split, pairs in ids.items():
        rows = [pair_inputs(renumbered[first], renumbered[second]) for first, second in pairs]
        tokens, lengths = pad_sequences([row["tokens"] for row in rows])
        marks, _ = pad_sequences([row["sentences"] for row in rows])
        unknown[split] = _share_unknown([row["tokens"] for row in rows])
        examples[split] = Examples(
            {"tokens": tokens, "sentences": marks},
            np.array(ratings[split], np.float32),
            lengths,
        )
    examples, cropped = _bucketed(examples, buckets, batch_size), dict.fromkeys(ids, 0)
    return SentenceCorpus(name, vocabulary, num_frequent, examples, source, unknown, cropped)


def pair_inputs(
    first: Int[np.ndarray, " first"], second: Int[np.ndarray, " second"]
) -> dict[str, Int[np.ndarray, " time"]]:
    """Returns two sentences in one row: their `tokens`, and of which of the `sentences` each is, 0 or 1."""
    marks = np.repeat(np.arange(2, dtype=np.int32), [len(first), len(second)])
    return {"tokens": np.concatenate([first, second]).astype(np.int32), "sentences": marks}


def held_out(
    num_examples: int, share: float, seed: int
) -> tuple[Int[np.ndarray, " rest"], Int[np.ndarray, " held"]]:
    """Returns which examples are left to train on and which are held out, each in their order."""
    order = np.random.default_rng([seed, num_examples]).permutation(num_examples)
    count = round(share * num_examples)
    return np.sort(order[count:]), np.sort(order[:count])


def numbered_lines(
    lines: Iterable[str], where: str | os.PathLike[str]
) -> Iterator[tuple[int, str, Callable[[str], UserError]]]:
    """Yield the number and the text of each line, and a function that makes an error of a problem with it."""
    for number, line in enumerate(lines, 1):
        yield number, line, functools.partial(bad_line, where, number)


def _vocabulary(
    numbers: _Numbers,
    texts: Mapping[str, Sequence[Int[np.ndarray, "_"]]],
    min_count: int,
    max_words: int | None,
    known: Known | None,
) -> tuple[Vocabulary, int, Int[np.ndarray, " numbers"]]:
    """The vocabulary, how many of its words are not rare, and the id of each number."""
    words = list(numbers.index)

    def count(split: str) -> dict[str, int]:
        found = np.bincount(np.concatenate([np.zeros(0, np.int32), *texts[split]]), minlength=len(words))
        return {words[number]: int(found[number]) for number in np.flatnonzero(found)}

    counts, more = count("train"), set[str]()
    if known is not None:
        more = known(counts.keys(), {word for split in texts if split != "train" for word in count(split)})
    vocabulary = word_vocabulary(counts, min_count=min_count, max_words=max_words, more_words=more)
    rare = sum(counts.get(word, 0) < 2 for word in vocabulary.tokens[1:])
    return vocabulary, len(vocabulary) - rare, vocabulary.encode(words)


def _bucketed(splits: Mapping[str, Examples], count: int | None, batch_size: int) -> dict[str, Examples]:
    """The splits with the lengths to which their batches are padded; see `labelled_corpus`."""
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
    """The share of words that are `<unk>`, id 0."""
    return float(np.mean(np.concatenate([np.zeros(0, np.int32), *texts]) == 0)) if texts else 0.0
