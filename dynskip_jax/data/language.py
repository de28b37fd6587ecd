"""Read the text of a language model as token ids: words, characters or byte pairs.

A text consists of words with one space between them, and one `<eos>` after each line.
"""

import array
import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.files import SPLIT_WORDS, SPLITS, PathLike, find_splits, iter_lines
from dynskip_jax.data.messages import bad_file, printable, quoted, shown
from dynskip_jax.data.vocabularies import (
    EOS,
    UNK,
    BytePairVocabulary,
    CharacterVocabulary,
    Vocabulary,
    learn_byte_pairs,
    vocabulary_of_counts,
)
from dynskip_jax.errors import UserError

TEXT_ENDINGS = ("txt", "tokens")
_MANY_UNKNOWN = 0.1  # fraction of a split's tokens above which `<unk>` makes its perplexity misleading
_CUTS = (0.8, 0.9)  # where a single file is cut into train, dev and test, as fractions of its tokens
_CHUNK = 1 << 20
_LONGEST_WORD = 50_000  # characters; the library of byte pairs takes time and memory for longer words

Ids = Int[np.ndarray, " tokens"]


class Pieces(NamedTuple):
    """Units into which words are split: characters, or at most `size` byte pairs (Sennrich et al. 2016)."""

    kind: Literal["characters", "bpe"]
    size: int = 4000


class TextSize(NamedTuple):
    """Words and characters of a text: one `<eos>` per line, one space between words."""

    words: int
    characters: int


@dataclasses.dataclass(frozen=True)
class LanguageCorpus:
    """A corpus for language modelling, as token ids.

    Attributes:
        name: Name of the corpus in results: "ptb", "pydoc-topics" or the name of its folder.
        train: Token ids (int32) of the training text in order, with one `<eos>` after each line.
        dev: The same for the development text.
        test: The same for the test text.
        vocabulary: Tokens of the ids, built from the training text only.
        source: Phrase for messages that describes where the corpus was found.
        min_count: Tokens that occur less often in the training text are `<unk>`; 1 if all were kept.
        text_sizes: Length of each split if tokens are pieces of words; else empty.
        note: Additional line for messages, or an empty string.
    """

    name: str
    train: Ids
    dev: Ids
    test: Ids
    vocabulary: Vocabulary
    source: str
    min_count: int = 1
    text_sizes: Mapping[str, TextSize] = dataclasses.field(default_factory=dict)
    note: str = ""

    @property
    def splits(self) -> dict[str, Ids]:
        """Token ids of each split."""
        return {split: getattr(self, split) for split in SPLITS}

    @property
    def sizes(self) -> dict[str, int]:
        """Number of tokens of each split, including `<eos>`, and number of entries of the vocabulary."""
        return {split: ids.size for split, ids in self.splits.items()} | {"vocabulary": len(self.vocabulary)}

    @property
    def unknown(self) -> dict[str, float]:
        """Fraction of each split's tokens that are `<unk>`; tokens include `<eos>`."""
        unknown = self.vocabulary.index.get(UNK, -1)
        return {split: float(np.mean(ids == unknown)) for split, ids in self.splits.items()}

    @property
    def about(self) -> list[str]:
        """Lines for messages: what the tokens are, how many are `<unk>`, and whether that is too many."""
        unit, lines = self.vocabulary.unit, [self.note] if self.note else []
        if self.text_sizes:
            rate = self.train.size / self.text_sizes["train"].words
            size = f"{len(self.vocabulary):,} in the vocabulary, {rate:.2f} per word of train"
            lines.append(f"tokens are {unit}s: {size}")
        if UNK not in self.vocabulary.index:
            return [*lines, f"train has every {unit} of dev and test: no {UNK}"]
        seen = "once" if self.min_count == 2 else f"fewer than {self.min_count} times"
        rare = f"{unit}s seen {seen} in train are {UNK}"
        of_train = rare if self.min_count > 1 else f"{UNK} as in the text of train"
        lines.append(f"{of_train}: {_shares(self.unknown)}")
        many = {split: share for split, share in self.unknown.items() if share > _MANY_UNKNOWN}
        if many:
            lines.append(
                f"{_shares(many)} is {UNK}, which is easy to predict: perplexities are lower than with all "
                "words known and cannot be compared between splits; --vocabulary bpe has no unknown words"
            )
        return lines

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the vocabulary and of the token ids of all splits."""
        digest = hashlib.sha256("\n".join(self.vocabulary.tokens).encode())
        for split, ids in self.splits.items():
            digest.update(f"\n{SPLIT_WORDS[split][0]} {ids.size}\n".encode())
            digest.update(np.ascontiguousarray(ids, "<i4").data)
        return digest.hexdigest()


def make_corpus(
    name: str,
    lines: Mapping[str, Iterable[str]],
    source: str,
    min_count: int | None = None,
    pieces: Pieces | None = None,
) -> LanguageCorpus:
    """Build a corpus of token ids from lines of text.

    Words that train lacks become `<unk>` in dev and test. They count as tokens, because leaving them out
    would make the perplexity too low. So `<unk>` must occur in training: otherwise the model would never
    learn its probability. If dev or test need an `<unk>` that train lacks, the rarest words of train become
    `<unk>`; their fraction of the text is the usual estimate of the fraction of unseen words (Good 1953).

    Args:
        name: Name of the corpus.
        lines: Lines of train, dev and test, each read once; only their ids are kept in memory.
        source: Phrase that describes where the corpus was found.
        min_count: Words that occur less often in train become `<unk>`. None keeps all words if train
            contains an `<unk>` or has all words of dev and test; otherwise it means 2 for words, and for
            characters the smallest value that drops one. Byte pairs need no `<unk>` and ignore it.
        pieces: Units into which words are split; None keeps words whole.
    """
    stream = _TokenStream()
    ids = {split: stream.read(lines[split]) for split in SPLITS}
    return _numbered_corpus(name, stream, ids, source, min_count, pieces)


def read_corpus(
    path: PathLike,
    *,
    name: str | None = None,
    source: str | None = None,
    min_count: int | None = None,
    pieces: Pieces | None = None,
) -> LanguageCorpus:
    """Read a folder with a text file for each of train, dev and test, or cut one file into 80, 10 and 10 %.

    Files are streamed: memory contains 4 bytes for each token, and each distinct token once.
    """
    path = Path(path)
    if not path.is_file():
        found = find_splits(path, TEXT_ENDINGS)
        lines = {split: text_lines(file) for split, file in found.items()}
        name = name or printable(path.resolve().name)
        return make_corpus(name, lines, source or f"the folder {path}", min_count, pieces)
    stream = _TokenStream()
    ids = stream.read(text_lines(path))
    ends = np.flatnonzero(ids == 0) + 1
    if len(ends) < len(SPLITS):
        raise bad_file(path, f"has {len(ends)} lines of text, too few to cut it into {', '.join(SPLITS)}")
    # Each split gets at least one line.
    first = int(np.clip(np.searchsorted(ends, _CUTS[0] * ids.size), 0, len(ends) - 3))
    second = int(np.clip(np.searchsorted(ends, _CUTS[1] * ids.size), first + 1, len(ends) - 2))
    parts = dict(zip(SPLITS, np.split(ids, [ends[first], ends[second]]), strict=True))
    source = source or f"the file {path}, cut into 80 %, 10 % and 10 % of its tokens"
    name = name or printable(path.name.removesuffix(".gz").rpartition(".")[0] or path.name)
    return _numbered_corpus(name, stream, parts, source, min_count, pieces)


def text_lines(path: PathLike) -> Iterator[str]:
    """Yield the lines of a text file that have words.

    Blank lines usually only separate paragraphs, and an `<eos>` for each would lower the perplexity. They are
    kept in files whose names end with `.tokens`, those of WikiText, whose published numbers include them.
    """
    path = Path(path)
    keeps_blank = path.name.lower().removesuffix(".gz").endswith(".tokens")
    is_empty = True
    for line in iter_lines(path):
        has_words = bool(line) and not line.isspace()
        is_empty &= not has_words
        if has_words or keeps_blank:
            yield line
    if is_empty:
        raise bad_file(path, "is empty: fetch it again, each split needs some text")


class _TokenStream:
    """A converter from lines to token numbers, in the order of first occurrence; `<eos>` is 0."""

    def __init__(self) -> None:
        self.tokens, self.own_ends = {EOS: 0}, 0

    def read(self, lines: Iterable[str]) -> Ids:
        """Return the numbers (int32) of the tokens of all lines, with one `<eos>` after each line."""
        ids, tokens = array.array("i"), self.tokens
        for line in lines:
            words = line.split()
            if words and words[-1] == EOS:
                self.own_ends += 1
                words.pop()
            ids.extend([tokens.setdefault(word, len(tokens)) for word in words])
            ids.append(0)
        return np.frombuffer(ids, np.int32) if ids else np.zeros(0, np.int32)


def _numbered_corpus(
    name: str,
    stream: _TokenStream,
    ids: Mapping[str, Ids],
    source: str,
    min_count: int | None,
    pieces: Pieces | None,
) -> LanguageCorpus:
    """Build a corpus from the token numbers of a stream; see `make_corpus`."""
    if min_count is not None and min_count < 1:
        raise UserError(f"min_count is {shown(min_count)}: use at least 1, which keeps every word of train")
    tokens = list(stream.tokens)
    if pieces is None:
        corpus = _corpus_of_tokens(name, tokens, ids, source, min_count)
    else:
        corpus = _corpus_of_pieces(name, tokens, ids, source, min_count, pieces)
    if stream.own_ends:
        note = f"{stream.own_ends:,} lines end with an {EOS} of their own, which is counted once"
        corpus = dataclasses.replace(corpus, note=note)
    return corpus


def _corpus_of_tokens(
    name: str, tokens: Sequence[str], ids: Mapping[str, Ids], source: str, min_count: int | None
) -> LanguageCorpus:
    """Build a corpus of whole tokens; the numbers of each split are replaced in place by ids."""
    counted = _counts(ids["train"], len(tokens))
    counts = {tokens[i]: int(counted[i]) for i in np.flatnonzero(counted)}
    vocabulary = vocabulary_of_counts(counts, min_count or 1)
    unseen = None if UNK in vocabulary.index else _unseen(vocabulary, tokens, ids)
    if min_count is None:
        min_count = 1 if unseen is None else 2
        vocabulary = vocabulary_of_counts(counts, min_count)
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
        for part in _parts(split_ids):
            part[:] = renumbered[part]
    return LanguageCorpus(name, **ids, vocabulary=vocabulary, source=source, min_count=min_count)


def _corpus_of_pieces(
    name: str,
    words: Sequence[str],
    ids: Mapping[str, Ids],
    source: str,
    min_count: int | None,
    pieces: Pieces,
) -> LanguageCorpus:
    """Split words into pieces, and build a corpus from them.

    A space belongs to the word after it. So each distinct word has two forms, with and without a leading
    space, and each form is split only once; form 2 i is word i, and form 2 i + 1 has a space before it.
    """
    forms = [form for word in words for form in ((word, word) if word == EOS else (word, f" {word}"))]
    form_ids = {split: 2 * of_split for split, of_split in ids.items()}
    for split, of_split in ids.items():
        form_ids[split][1:] += of_split[:-1] != 0
    vocabulary: BytePairVocabulary | None = None
    if pieces.kind == "bpe":
        longest = max(map(len, words))
        if longest > _LONGEST_WORD:
            problem = f"byte pairs read words of at most {_LONGEST_WORD:,} characters"
            raise UserError(f"{name} has a word of {longest:,} characters, and {problem}: add spaces")
        counts = _counts(form_ids["train"], len(forms))
        counted = {forms[i]: int(counts[i]) for i in np.flatnonzero(counts) if forms[i] != EOS}
        vocabulary = learn_byte_pairs(counted, pieces.size)
        tables = [[vocabulary.index[piece] for piece in form] for form in vocabulary.split_all(forms)]
    else:
        numbers: dict[str, int] = {}
        tables = [
            [numbers.setdefault(piece, len(numbers)) for piece in ([form] if form == EOS else form)]
            for form in forms
        ]
    lengths = np.array([1 if form == EOS else len(form) for form in forms])
    sizes = {
        split: TextSize(of_split.size, sum(int(lengths[part].sum()) for part in _parts(form_ids[split])))
        for split, of_split in ids.items()
    }
    expanded = {split: _expand(of_split, tables) for split, of_split in form_ids.items()}
    if vocabulary is not None:
        return LanguageCorpus(name, **expanded, vocabulary=vocabulary, source=source, text_sizes=sizes)
    if (
        min_count is None
    ):  # 1, or the smallest value that drops a character of train; `<eos>` is never dropped
        seen = _counts(expanded["train"], len(numbers))
        min_count = 1 if seen.all() else 1 + int(seen[1:][seen[1:] > 0].min())
    corpus = _corpus_of_tokens(name, list(numbers), expanded, source, min_count)
    characters = CharacterVocabulary(corpus.vocabulary.tokens)
    return dataclasses.replace(corpus, vocabulary=characters, text_sizes=sizes)


def _expand(form_ids: Ids, tables: Sequence[Sequence[int]]) -> Ids:
    """Return the piece ids of a text, one form after another; `tables[i]` has the piece ids of form i."""
    lengths = np.array([len(table) for table in tables])
    starts = np.cumsum(lengths) - lengths
    flat = np.fromiter(itertools.chain.from_iterable(tables), np.int32, int(lengths.sum()))
    found = []
    for part in _parts(form_ids):
        ends = np.cumsum(lengths[part])
        offsets = np.repeat(starts[part] - (ends - lengths[part]), lengths[part])
        found.append(flat[offsets + np.arange(len(offsets))])
    return np.concatenate(found)


def _unseen(vocabulary: Vocabulary, tokens: Sequence[str], ids: Mapping[str, Ids]) -> tuple[str, str] | None:
    """Return the first split with a token that the vocabulary lacks, and that token; None if it has all."""
    known = np.array([token in vocabulary.index for token in tokens])
    for split in SPLITS:
        missing = np.flatnonzero(~known[ids[split]])
        if missing.size:
            return split, tokens[ids[split][missing[0]]]
    return None


def _counts(ids: Ids, size: int) -> Int[np.ndarray, " size"]:
    counts = np.zeros(size, np.int64)
    for part in _parts(ids):
        counts += np.bincount(part, minlength=size)
    return counts


def _parts(ids: Ids) -> Iterator[Ids]:
    """Yield views of consecutive parts of `ids`, so that temporary arrays stay small."""
    return (ids[start : start + _CHUNK] for start in range(0, ids.size, _CHUNK))


def _shares(of_splits: Mapping[str, float]) -> str:
    return ", ".join(f"{100 * share:.2g} % of {split}" for split, share in of_splits.items())
