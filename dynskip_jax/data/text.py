"""Word-level text corpora: read train, valid and test as streams of lines, and number their tokens."""

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

# A perplexity flatters where this much more of a split than of train is `<unk>`, as shares of all tokens.
_MANY_UNKNOWN = 0.1
_CUTS = (0.8, 0.9)  # where a single file is cut into train, valid and test


class TextSize(NamedTuple):
    """How long a text is, whatever its tokens are.

    Attributes:
      words: words, and one `<eos>` for each line.
      characters: characters, one space between words, and one end for each line.
    """

    words: int
    characters: int


@dataclasses.dataclass(frozen=True)
class LanguageCorpus:
    """A corpus for language modelling, as token ids.

    Attributes:
      name: what results call it: "ptb", "pydoc-topics" or the name of its folder.
      train: ids (int32) of the training text in order, one `<eos>` after each line.
      valid: the same for the validation text.
      test: the same for the test text.
      vocabulary: the tokens behind the ids, made from the training text alone.
      source: a phrase for people: where the corpus was found.
      min_count: words that the training text has fewer times are `<unk>`; 1 where it kept all.
      text_sizes: where tokens are pieces of words, the words and characters of each split.
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
        """Tokens of each split, `<eos>` included, and entries of the vocabulary."""
        return {split: getattr(self, split).size for split in SPLITS} | {"vocabulary": len(self.vocabulary)}

    @property
    def unknown(self) -> dict[str, float]:
        """The share of each split's tokens, `<eos>` included, that are `<unk>`: in the text or for a word."""
        unknown = self.vocabulary.index.get(UNK, -1)
        return {split: float(np.mean(getattr(self, split) == unknown)) for split in SPLITS}

    @property
    def about_pieces(self) -> str:
        """A line for people: what tokens are, where they are not words; else empty."""
        if not self.text_sizes:
            return ""
        rate = self.train.size / self.text_sizes["train"].words
        unit = self.vocabulary.unit
        return f"tokens are {unit}s: {len(self.vocabulary):,} in the vocabulary, {rate:.2f} per word of train"

    @property
    def about_unknown(self) -> str:
        """A line for people: which words are `<unk>`, and how many tokens of each split."""
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
        """A line for people where `<unk>` makes a perplexity low; empty where it does not.

        Predicting `<unk>` is easy where it is frequent, so a split with many has a low perplexity.
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
        """SHA-256 (hex) over the token ids of the splits and the vocabulary."""
        digest = hashlib.sha256("\n".join(self.vocabulary.tokens).encode())
        for split in SPLITS:
            ids = getattr(self, split)
            digest.update(f"\n{split} {ids.size}\n".encode())
            digest.update(np.ascontiguousarray(ids, "<i4").data)
        return digest.hexdigest()


def tokenize(lines: Sequence[str]) -> list[str]:
    """Blank-separated tokens of all lines, with one `<eos>` after each line, also after an empty one."""
    return [token for line in lines for token in (*line.split(), EOS)]


class TokenStream:
    """Numbers tokens in the order in which they first occur, and keeps the numbers alone: 4 bytes a token."""

    def __init__(self) -> None:
        self._numbers = _Numbers({EOS: 0})

    @property
    def tokens(self) -> list[str]:
        """The distinct tokens so far; the token with number i stands at place i."""
        return list(self._numbers)

    def read(self, lines: Iterable[str]) -> Int[np.ndarray, "tokens"]:
        """Return the numbers (int32) of the tokens of all lines, with one `<eos>` after each line."""
        ids, number = array.array("i"), self._numbers.__getitem__
        for line in lines:
            ids.extend(map(number, line.split()))
            ids.append(0)
        return np.frombuffer(ids, np.int32) if ids else np.zeros(0, np.int32)


class _Numbers(dict):
    """A number for each key, the next one for a new key."""

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
    """Number the tokens of a corpus.

    The vocabulary is made from the training text alone. Words of other splits that it lacks are read as
    `<unk>`, and are counted as every token is: leaving them out would make a perplexity too good. For that
    `<unk>` must occur in training; a row of the softmax that never was a target would answer for them with
    a probability that nothing has taught it. Where the training text has no `<unk>` of its own, its rarest
    words stand in: as a rule those seen once, whose share of the text is the usual estimate of the share of
    words never seen (Good 1953).

    Args:
      name: the corpus' name.
      lines: the lines of "train", "valid" and "test", each read once; only their ids are kept in memory.
      source: where the corpus was found.
      min_count: words that the training text has fewer times become `<unk>`. None is 1, which keeps all,
        where training has an `<unk>` or nothing in valid and test needs one, and else 2: valid and test
        decide whether words are dropped, never which. For characters it is then the least that drops one.
        Perplexities of different vocabularies cannot be compared.
      pieces: what words are split into; None keeps them whole.

    Returns:
      The corpus. Its `min_count` is the one that was used.

    Raises:
      UserError: when `min_count` is less than 1, or leaves training without an `<unk>` that valid or test
        need.
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
    """Turn a stream's numbers into ids of a vocabulary of train, in place."""
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
    """Split a stream of words into pieces, and number them."""
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
    """Return 1 where train has every token, else the least `min_count` that drops one; token 0 is `<eos>`."""
    counts = np.bincount(ids["train"], minlength=1 + max(int(ids[split].max()) for split in SPLITS))
    return 1 if counts.all() else 1 + int(counts[1:][counts[1:] > 0].min())


def _unseen(
    vocabulary: Vocabulary, tokens: Sequence[str], ids: Mapping[str, Int[np.ndarray, "_"]]
) -> tuple[str, str] | None:
    """Return the first split with a token that the vocabulary lacks, and that token."""
    known = np.array([token in vocabulary.index for token in tokens])
    for split in SPLITS:
        missing = np.flatnonzero(~known[ids[split]])
        if missing.size:
            return split, tokens[ids[split][missing[0]]]
    return None


def find_split_files(folder: str | os.PathLike[str], *, prefix: str | None = None) -> dict[str, Path]:
    """Return the text files of the three splits in `folder`; see `find_splits`.

    Args:
      folder: where to look, sub-folders excluded.
      prefix: take only the names with exactly this before the split's word ("ptb." for `ptb.train.txt`);
        None takes any.

    Raises:
      UserError: when `folder` is not a readable folder, or a split is missing or ambiguous.
    """
    return find_splits(folder, TEXT_ENDINGS, prefix=prefix)


def read_lines(path: str | os.PathLike[str], blank_lines: bool | None = None) -> list[str]:
    """Return the lines of a text file; see `text_lines`.

    Raises:
      UserError: see `text_lines`.
    """
    return list(text_lines(path, blank_lines))


def text_lines(path: str | os.PathLike[str], blank_lines: bool | None = None) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, plain or gzip, without their ends.

    A blank line stands between paragraphs, or at the end of a file, for the eye; kept, it would be an `<eos>`
    on its own, which is easy to predict and flatters a perplexity. WikiText is different: its published
    counts and perplexities have an `<eos>` for each blank line, and its files are called `.tokens`.

    Args:
      path: the file.
      blank_lines: whether to keep lines without a word; None keeps them in files called `.tokens` or
        `.tokens.gz`, and leaves them out of all others. A copy of WikiText under other names needs True.

    Raises:
      UserError: when the file cannot be read, is a damaged gzip, is not UTF-8 or holds no word.
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

    A single file is cut at ends of lines: about 80 % of its tokens are train, the next 10 % valid, the last
    10 % test. Files are streamed: memory holds 4 bytes for each token, and each distinct token once.

    Args:
      folder: the folder, or the file.
      name: the corpus' name; None takes that of the folder or file.
      prefix: see `find_split_files`.
      source: a phrase for where it was found; None says the folder.
      blank_lines: whether each is an `<eos>`; None says yes for WikiText's file names alone (`read_lines`).
      min_count: words that train has fewer times are `<unk>`; None as `make_corpus` says.
      pieces: what words are split into; None keeps them whole.

    Raises:
      UserError: see `find_split_files`, `text_lines` and `make_corpus`; or a single file has too few lines.
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
    """Read one text and cut it into train, valid and test."""
    _check_min_count(min_count)
    stream = TokenStream()
    ids = stream.read(text_lines(path, blank_lines))
    ends = np.flatnonzero(ids == stream.tokens.index(EOS)) + 1
    if len(ends) < len(SPLITS):
        raise bad_file(path, f"has {len(ends)} lines of text, too few to cut it into {', '.join(SPLITS)}")
    # Each split has a line at least.
    first = int(np.clip(np.searchsorted(ends, _CUTS[0] * ids.size), 0, len(ends) - 3))
    second = int(np.clip(np.searchsorted(ends, _CUTS[1] * ids.size), first + 1, len(ends) - 2))
    parts = np.split(ids, [ends[first], ends[second]])
    if source is None:
        source = f"the file {path}, cut into 80 %, 10 % and 10 % of its tokens"
    name = name or path.name.removesuffix(".gz").rpartition(".")[0] or path.name
    ids = dict(zip(SPLITS, parts, strict=True))
    return _numbered_corpus(name, stream.tokens, ids, source, min_count, pieces)
