"""Read the train, valid and test text of a language-modelling corpus and convert it to token ids."""

import array
import collections
import dataclasses
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.messages import bad_file, quoted
from dynskip_jax.data.pieces import (
    CharacterVocabulary,
    Pieces,
    consecutive_parts,
    learn_byte_pairs,
    split_words,
)
from dynskip_jax.data.splits import SPLITS, TEXT_ENDINGS, find_splits
from dynskip_jax.data.text_files import iter_lines
from dynskip_jax.data.vocabulary import EOS, UNK, Vocabulary, vocabulary_of_counts
from dynskip_jax.errors import UserError

# `unknown_warning` warns if more than this fraction of a split's tokens is `<unk>`.
_MANY_UNKNOWN = 0.1
_CUTS = (0.8, 0.9)  # Where a single file is cut into train, valid and test, as fractions of its tokens.


class TextSize(NamedTuple):
    """Length of a text, independent of its tokens.

    Attributes:
      words: Number of words, plus one `<eos>` per line.
      characters: Number of characters, with one space between words, plus one per line end.
    """

    words: int
    characters: int


@dataclasses.dataclass(frozen=True)
class LanguageCorpus:
    """A corpus for language modelling, as token ids.

    Attributes:
      name: Name of the corpus in results: "ptb", "pydoc-topics" or the name of its folder.
      train: Token ids (int32) of the training text in order, with one `<eos>` after each line.
      valid: The same for the validation text.
      test: The same for the test text.
      vocabulary: Tokens of the ids, built from the training text only.
      source: Phrase for messages that describes where the corpus was found.
      min_count: Tokens that occur less often in the training text are `<unk>`; 1 if all were kept.
      text_sizes: Length of each split in words and characters if tokens are pieces of words; else empty.
    """

    name: str
    train: Int[np.ndarray, "train_tokens"]
    valid: Int[np.ndarray, "valid_tokens"]
    test: Int[np.ndarray, "test_tokens"]
    vocabulary: Vocabulary
    source: str
    min_count: int = 1
    text_sizes: Mapping[str, "TextSize"] = dataclasses.field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of tokens of each split, including `<eos>`, and number of entries of the vocabulary."""
        return {split: getattr(self, split).size for split in SPLITS} | {"vocabulary": len(self.vocabulary)}

    @property
    def unknown(self) -> dict[str, float]:
        """Fraction of each split's tokens that are `<unk>`; tokens include `<eos>`."""
        unknown = self.vocabulary.index.get(UNK, -1)
        return {split: float(np.mean(getattr(self, split) == unknown)) for split in SPLITS}

    @property
    def about_pieces(self) -> str:
        """One line for messages that describes the tokens; empty if tokens are words."""
        if not self.text_sizes:
            return ""
        rate = self.train.size / self.text_sizes["train"].words
        unit = self.vocabulary.unit
        return f"tokens are {unit}s: {len(self.vocabulary):,} in the vocabulary, {rate:.2f} per word of train"

    @property
    def about_unknown(self) -> str:
        """One line for messages: which tokens are `<unk>`, and their percentage in each split."""
        unit = self.vocabulary.unit
        if UNK not in self.vocabulary.index:
            return f"train has every {unit} of valid and test: no {UNK}"
        seen = "once" if self.min_count == 2 else f"fewer than {self.min_count} times"
        rare = f"{unit}s seen {seen}"
        of_train = f"{rare} in train are {UNK}" if self.min_count > 1 else f"{UNK} as in the text of train"
        shares = ", ".join(f"{100 * share:.2g} % of {split}" for split, share in self.unknown.items())
        return f"{of_train}: {shares}"

    @property
    def unknown_warning(self) -> str:
        """One line for messages if frequent `<unk>` makes a perplexity low; else empty.

        A frequent `<unk>` is easy to predict, so a split with many of them has a low perplexity.
        """
        unknown = self.unknown
        many = {split: share for split, share in unknown.items() if share > _MANY_UNKNOWN}
        if not many:
            return ""
        shares = ", ".join(f"{100 * share:.2g} % of {split}" for split, share in many.items())
        return (
            f"{shares} is {UNK}, which is easy to predict: perplexities are lower than with all words known "
            "and cannot be compared between splits; a larger train, or a smaller min_count, has fewer"
        )

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the vocabulary and of the token ids of all splits."""
        digest = hashlib.sha256("\n".join(self.vocabulary.tokens).encode())
        for split in SPLITS:
            ids = getattr(self, split)
            digest.update(f"\n{split} {ids.size}\n".encode())
            digest.update(np.ascontiguousarray(ids, "<i4").data)
        return digest.hexdigest()


def tokenize(lines: Sequence[str]) -> list[str]:
    """Return the whitespace-separated tokens of all lines, with an `<eos>` after each line, even if empty."""
    return [token for line in lines for token in (*line.split(), EOS)]


class TokenStream:
    """A converter from lines to token numbers, which need only 4 bytes per token.

    Tokens are numbered in the order in which they first occur, except `<eos>`, which is 0.
    """

    def __init__(self) -> None:
        self._numbers = _Numbers({EOS: 0})

    @property
    def tokens(self) -> list[str]:
        """Distinct tokens so far; the token with number i is at index i."""
        return list(self._numbers)

    def read(self, lines: Iterable[str]) -> Int[np.ndarray, "tokens"]:
        """Return the numbers (int32) of the tokens of all lines, with one `<eos>` after each line."""
        ids, number = array.array("i"), self._numbers.__getitem__
        for line in lines:
            ids.extend(map(number, line.split()))
            ids.append(0)
        return np.frombuffer(ids, np.int32) if ids else np.zeros(0, np.int32)


class _Numbers(dict):
    """Dictionary that assigns the next unused number to a new key."""

    def __missing__(self, key: str) -> int:
        number = self[key] = len(self)
        return number


def make_corpus(
    name: str,
    lines: Mapping[str, Iterable[str]],
    source: str,
    min_count: int | None = None,
    pieces: Pieces | None = None,
) -> LanguageCorpus:
    """Build a corpus of token ids from lines of text.

    The vocabulary is built from the training text only. Words of other splits that the vocabulary lacks
    become `<unk>`. They count as tokens, because leaving them out would make the perplexity too low. So
    `<unk>` must occur in training: otherwise the model would never learn its probability. If valid or test
    need an `<unk>` that the training text lacks, its rarest words become `<unk>`, by default those that occur
    once. Their fraction of the text is the usual estimate of the fraction of unseen words (Good 1953).

    Args:
      name: Name of the corpus.
      lines: Lines of "train", "valid" and "test", each read once; only their ids are kept in memory.
      source: Phrase that describes where the corpus was found.
      min_count: Words that occur less often in the training text become `<unk>`. None means 1, which keeps
        all words, if training contains an `<unk>` or has all words of valid and test. Otherwise None means 2;
        for characters, it means the smallest value that drops a character. So valid and test decide whether
        words are dropped, but not which. Perplexities with different vocabularies cannot be compared. Byte
        pairs need no `<unk>` and ignore `min_count`.
      pieces: Units into which words are split; None keeps words whole.

    Returns:
      The corpus. Its `min_count` is the value that was used.

    Raises:
      UserError: If `min_count` is less than 1, or leaves training without an `<unk>` that valid or test
        needs.
    """
    _check_min_count(min_count)
    stream = TokenStream()
    ids = {split: stream.read(lines[split]) for split in SPLITS}
    return _numbered_corpus(name, stream.tokens, ids, source, min_count, pieces)


def _check_min_count(min_count: int | None) -> None:
    if min_count is not None and min_count < 1:
        raise UserError(f"min_count must be at least 1, which keeps every word of train, not {min_count}")


def _numbered_corpus(
    name: str,
    tokens: Sequence[str],
    ids: Mapping[str, Int[np.ndarray, "_"]],
    source: str,
    min_count: int | None,
    pieces: Pieces | None = None,
) -> LanguageCorpus:
    """Build a corpus from the token numbers of a `TokenStream`.

    Args:
      name: Name of the corpus.
      tokens: Distinct tokens in the order of their numbers.
      ids: Token numbers of each split. Without `pieces`, they are replaced in place by ids of the vocabulary.
      source: Phrase that describes where the corpus was found.
      min_count: See `make_corpus`.
      pieces: See `make_corpus`.
    """
    if pieces is not None:
        return _corpus_of_pieces(name, tokens, ids, source, min_count, pieces)
    counted = np.zeros(len(tokens), np.int64)
    for part in consecutive_parts(ids["train"]):
        counted += np.bincount(part, minlength=len(tokens))
    counts = collections.Counter({tokens[i]: int(counted[i]) for i in np.flatnonzero(counted)})
    vocabulary = vocabulary_of_counts(counts, min_count=min_count or 1)
    unseen = None if UNK in vocabulary.index else _unseen(vocabulary, tokens, ids)
    if min_count is None:
        min_count = 1
        if unseen is not None:
            min_count = 2
            vocabulary = vocabulary_of_counts(counts, min_count=min_count)
    if unseen is not None and UNK not in vocabulary.index:
        split, word = unseen
        rarest = min((n for token, n in counts.items() if token != EOS), default=1)
        raise UserError(
            f"the {split} split has a word that train lacks, {quoted(word)}, and train has no {UNK} to read "
            f"it as: use min_count {rarest + 1}, the least that makes rare words of train {UNK}, or change "
            "the text"
        )
    unknown = vocabulary.index.get(UNK, -1)
    renumbered = np.array([vocabulary.index.get(token, unknown) for token in tokens], np.int32)
    for split_ids in ids.values():
        for part in consecutive_parts(split_ids):
            part[:] = renumbered[part]
    return LanguageCorpus(name=name, **ids, vocabulary=vocabulary, source=source, min_count=min_count)


def _corpus_of_pieces(
    name: str,
    words: Sequence[str],
    ids: Mapping[str, Int[np.ndarray, "_"]],
    source: str,
    min_count: int | None,
    pieces: Pieces,
) -> LanguageCorpus:
    """Split words into pieces, and build a corpus from them; for the arguments see `_numbered_corpus`."""
    vocabulary = None
    if pieces.kind == "bpe":
        vocabulary = learn_byte_pairs(words, ids["train"], pieces.size)
    text = split_words(words, ids, vocabulary)
    sizes = {split: TextSize(ids[split].size, text.characters[split]) for split in SPLITS}
    if vocabulary is not None:
        return LanguageCorpus(name, **text.ids, vocabulary=vocabulary, source=source, text_sizes=sizes)
    if min_count is None:
        min_count = _least_count(text.ids)
    corpus = _numbered_corpus(name, text.tokens, text.ids, source, min_count)
    characters = CharacterVocabulary(corpus.vocabulary.tokens)
    return dataclasses.replace(corpus, vocabulary=characters, text_sizes=sizes)


def _least_count(ids: Mapping[str, Int[np.ndarray, "_"]]) -> int:
    """Return the default `min_count` for characters.

    It is 1 if train has every token, and otherwise the smallest value that drops a token of train. Token 0 is
    `<eos>`, which is never dropped.
    """
    counts = np.bincount(ids["train"], minlength=1 + max(int(ids[split].max()) for split in SPLITS))
    return 1 if counts.all() else 1 + int(counts[1:][counts[1:] > 0].min())


def _unseen(
    vocabulary: Vocabulary, tokens: Sequence[str], ids: Mapping[str, Int[np.ndarray, "_"]]
) -> tuple[str, str] | None:
    """Return the first split with a token that the vocabulary lacks, and that token; None if it has all."""
    known = np.array([token in vocabulary.index for token in tokens])
    for split in SPLITS:
        missing = np.flatnonzero(~known[ids[split]])
        if missing.size:
            return split, tokens[ids[split][missing[0]]]
    return None


def find_split_files(folder: str | os.PathLike[str], *, prefix: str | None = None) -> dict[str, Path]:
    """Return the text files of the three splits in `folder`; see `find_splits`.

    Args:
      folder: Folder to search; its sub-folders are not searched.
      prefix: Exact text before the split's word, such as "ptb." for `ptb.train.txt`; None accepts any.

    Raises:
      UserError: If `folder` is not a readable folder, or a split is missing or ambiguous.
    """
    return find_splits(folder, TEXT_ENDINGS, prefix=prefix)


def read_lines(path: str | os.PathLike[str], blank_lines: bool | None = None) -> list[str]:
    """Return the lines of a text file; see `text_lines`.

    Raises:
      UserError: See `text_lines`.
    """
    return list(text_lines(path, blank_lines))


def text_lines(path: str | os.PathLike[str], blank_lines: bool | None = None) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, plain or gzip, without their line ends.

    Blank lines usually only separate paragraphs. Each one that is kept becomes an additional `<eos>`, which
    is easy to predict and lowers the perplexity. WikiText is different: its published counts and perplexities
    include an `<eos>` for each blank line, and the names of its files end with `.tokens`.

    Args:
      path: Text file.
      blank_lines: Whether to keep lines without words. None keeps them only if the file name ends with
        `.tokens` or `.tokens.gz`. A copy of WikiText under other names needs True.

    Raises:
      UserError: If the file cannot be read, is a damaged gzip file, is not UTF-8 or contains no words.
    """
    path = Path(path)
    if blank_lines is None:
        blank_lines = path.name.lower().removesuffix(".gz").endswith(".tokens")
    is_empty = True
    for line in iter_lines(path):
        has_words = bool(line) and not line.isspace()
        is_empty &= not has_words
        if has_words or blank_lines:
            yield line
    if is_empty:
        raise bad_file(path, "is empty: fetch it again, each split needs some text")


def read_corpus(
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    prefix: str | None = None,
    source: str | None = None,
    blank_lines: bool | None = None,
    min_count: int | None = None,
    pieces: Pieces | None = None,
) -> LanguageCorpus:
    """Read a folder with one text file for each of train, valid and test, or cut one file into the three.

    A single file is cut at line ends: about 80 % of its tokens are train, the next 10 % valid, the last 10 %
    test. Files are streamed: memory contains 4 bytes for each token, and each distinct token once.

    Args:
      folder: Folder, or single file.
      name: Name of the corpus; None uses the name of the folder or file.
      prefix: See `find_split_files`.
      source: Phrase that describes where the corpus was found; None names the folder or file.
      blank_lines: Whether to keep lines without words, each of which becomes an `<eos>`; see `text_lines`.
      min_count: Words that occur less often in train become `<unk>`; for None see `make_corpus`.
      pieces: Units into which words are split; None keeps words whole.

    Raises:
      UserError: See `find_split_files`, `text_lines` and `make_corpus`; also if a single file has fewer than
        three lines.
    """
    folder = Path(folder)
    if folder.is_file():
        return _read_single_file(folder, name, source, blank_lines, min_count, pieces)
    paths = find_split_files(folder, prefix=prefix)
    lines = {split: text_lines(path, blank_lines) for split, path in paths.items()}
    source = source or f"the folder {folder}"
    return make_corpus(name or folder.resolve().name, lines, source, min_count, pieces)


def _read_single_file(
    path: Path,
    name: str | None,
    source: str | None,
    blank_lines: bool | None,
    min_count: int | None,
    pieces: Pieces | None,
) -> LanguageCorpus:
    """Read one text file and cut it into train, valid and test; for the arguments see `read_corpus`."""
    _check_min_count(min_count)
    stream = TokenStream()
    ids = stream.read(text_lines(path, blank_lines))
    ends = np.flatnonzero(ids == stream.tokens.index(EOS)) + 1
    if len(ends) < len(SPLITS):
        raise bad_file(path, f"has {len(ends)} lines of text, too few to cut it into {', '.join(SPLITS)}")
    # Each split gets at least one line.
    first = int(np.clip(np.searchsorted(ends, _CUTS[0] * ids.size), 0, len(ends) - 3))
    second = int(np.clip(np.searchsorted(ends, _CUTS[1] * ids.size), first + 1, len(ends) - 2))
    parts = np.split(ids, [ends[first], ends[second]])
    if source is None:
        source = f"the file {path}, cut into 80 %, 10 % and 10 % of its tokens"
    name = name or path.name.removesuffix(".gz").rpartition(".")[0] or path.name
    ids = dict(zip(SPLITS, parts, strict=True))
    return _numbered_corpus(name, stream.tokens, ids, source, min_count, pieces)
