"""Read the text of a language model as token ids: words, characters or byte pairs.

A text consists of words with one space between them, and one `<eos>` after each line.
"""

import array
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.batches import fingerprint
from dynskip_jax.data.files import SPLITS, PathLike, find_splits, iter_lines
from dynskip_jax.data.messages import bad_file, printable, shares
from dynskip_jax.data.vocabularies import (
    EOS,
    UNK,
    CharacterVocabulary,
    Vocabulary,
    learn_byte_pairs,
    vocabulary_of_counts,
)
from dynskip_jax.errors import UserError

# Fraction of a split's tokens above which `<unk>` makes its perplexity misleading.
_MANY_UNKNOWN = 0.1
# Where a single file is cut into train, dev and test, as fractions of its tokens.
_CUTS = (0.8, 0.9)
# Characters. The library of byte pairs takes time and memory for longer words.
_LONGEST_WORD = 50_000

Ids = Int[np.ndarray, " tokens"]


class Pieces(NamedTuple):
    """Parts of words: characters, or at most `size` byte pairs (Sennrich et al. 2016)."""

    kind: Literal["characters", "bpe"]
    size: int = 0  # for byte pairs


class TextSize(NamedTuple):
    """Words and characters of a text, with one `<eos>` per line and one space between words."""

    words: int
    characters: int


@dataclasses.dataclass(frozen=True)
class LanguageCorpus:
    """A corpus for language modelling: token ids (int32), with one `<eos>` after each line.

    Attributes:
        min_count: Tokens that occur less often in the training text are `<unk>`; 1 keeps all.
        text_sizes: Length of each split if tokens are pieces of words; else empty.
        own_ends: Number of lines that ended with an `<eos>` of their own, which is counted once.
    """

    name: str
    train: Ids
    dev: Ids
    test: Ids
    vocabulary: Vocabulary
    source: str
    min_count: int = 1
    text_sizes: Mapping[str, TextSize] = dataclasses.field(default_factory=dict)
    own_ends: int = 0

    @property
    def splits(self) -> dict[str, Ids]:
        """Token ids of each split."""
        return {split: getattr(self, split) for split in SPLITS}

    @property
    def sizes(self) -> dict[str, int]:
        """Number of tokens of each split, including `<eos>`, and size of the vocabulary."""
        return {split: ids.size for split, ids in self.splits.items()} | {
            "vocabulary": len(self.vocabulary)
        }

    @property
    def unknown(self) -> dict[str, float]:
        """Fraction of each split's tokens that are `<unk>`; tokens include `<eos>`."""
        unknown = self.vocabulary.index.get(UNK, -1)
        return {split: float(np.mean(ids == unknown)) for split, ids in self.splits.items()}

    @property
    def about(self) -> list[str]:
        """Lines for messages: what the tokens are, and whether too many of them are `<unk>`."""
        unit = self.vocabulary.unit
        lines = []
        if self.own_ends:
            lines.append(
                f"{self.own_ends:,} lines end with an {EOS} of their own, which is counted once"
            )
        if self.text_sizes:
            rate = self.train.size / self.text_sizes["train"].words
            size = f"{len(self.vocabulary):,} in the vocabulary, {rate:.2f} per word of train"
            lines.append(f"tokens are {unit}s: {size}")
        if UNK not in self.vocabulary.index:
            return [*lines, f"train has every {unit} of dev and test: no {UNK}"]
        seen = "once" if self.min_count == 2 else f"fewer than {self.min_count} times"
        rare = f"{unit}s seen {seen} in train are {UNK}"
        if self.min_count == 1:  # it keeps all that train has
            rare = f"{UNK} as in the text of train"
        lines.append(f"{rare}: {shares(self.unknown)}")
        many = {split: share for split, share in self.unknown.items() if share > _MANY_UNKNOWN}
        if many:
            problem = "which is easy to predict: perplexities are low"
            problem = f"{problem}, and cannot be compared between splits"
            remedy = "--vocabulary bpe has no unknown words"
            lines.append(f"{shares(many)} is {UNK}, {problem}; {remedy}")
        return lines

    @property
    def fingerprint(self) -> str:
        """Hash of the vocabulary and of the token ids of all splits."""
        return fingerprint(*self.vocabulary.tokens, *self.splits.values())


def make_corpus(
    name: str, lines: Mapping[str, Iterable[str]], source: str, pieces: Pieces | None = None
) -> LanguageCorpus:
    """Build a corpus from the lines of train, dev and test; train only is cut into three.

    Words that train lacks become `<unk>` in dev and test, and count as tokens: without them the
    perplexity would be too low. If dev or test need an `<unk>` that train lacks, the rarest words
    of train become `<unk>`, so that its probability is learned; their share estimates that of
    unseen words (Good 1953). Likewise for characters; byte pairs need no `<unk>`. `source` says in
    messages where the text was found.
    """
    words, ids, own_ends = _numbered(lines)
    sizes = {}
    kind = pieces and pieces.kind
    min_count = 1
    if ids.keys() == {"train"}:
        ids = _cut(name, ids["train"])
    if pieces is not None:
        ids, vocabulary, sizes = _in_pieces(name, words, ids, pieces)
        words = vocabulary.tokens
    if kind != "bpe":
        vocabulary, ids, min_count = _with_vocabulary(words, ids)
    if kind == "characters":
        vocabulary = CharacterVocabulary(vocabulary.tokens)
    about = dict(min_count=min_count, text_sizes=sizes, own_ends=own_ends)
    return LanguageCorpus(name, **ids, vocabulary=vocabulary, source=source, **about)


def corpus_name(path: Path) -> str:
    """Return the name of the corpus in a folder or a text file."""
    name = path.resolve().name
    if not path.is_dir():
        name = name.removesuffix(".gz").rpartition(".")[0] or name
    return printable(name)


def read_corpus(
    path: PathLike, *, name: str | None = None, pieces: Pieces | None = None
) -> LanguageCorpus:
    """Read a folder with a text file for each of train, dev and test, or cut one file into three.

    Files are streamed: memory contains a few bytes for each token, and each distinct token once.
    """
    path = Path(path)
    if path.is_file():
        files = {"train": path}
        source = f"the file {path}, cut into 80 %, 10 % and 10 % of its tokens"
    else:
        files = find_splits(path, ["txt", "tokens"])
        source = f"the folder {path}"
    lines = {split: text_lines(file) for split, file in files.items()}
    return make_corpus(name or corpus_name(path), lines, source, pieces)


def text_lines(path: PathLike) -> Iterator[str]:
    """Yield the lines of a text file that have words.

    Blank lines, whose `<eos>` would lower the perplexity, are kept only in WikiText's files
    (`.tokens`): its published numbers include them.
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


def _numbered(texts: Mapping[str, Iterable[str]]) -> tuple[list[str], dict[str, Ids], int]:
    """Return each text's tokens as numbers (int32), and the number of lines with an `<eos>`.

    Numbers are in the order of first occurrence, and there is one `<eos>`, 0, after each line.
    """
    numbers = {EOS: 0}
    ids = {}
    own_ends = 0
    for split, lines in texts.items():
        found = array.array("i")
        for line in lines:
            words = line.split()
            # Some corpora have written it; it is not counted twice.
            if words[-1:] == [EOS]:
                own_ends += 1
                words.pop()
            found.extend([numbers.setdefault(word, len(numbers)) for word in words])
            found.append(0)
        ids[split] = np.array(found, np.int32)
    return list(numbers), ids, own_ends


def _cut(name: str, ids: Ids) -> dict[str, Ids]:
    """Cut a text into train, dev and test at line ends; each of them gets at least one line."""
    ends = np.flatnonzero(ids == 0) + 1
    if len(ends) < len(SPLITS):
        problem = f"has {len(ends)} lines of text, too few to cut it into {', '.join(SPLITS)}"
        raise bad_file(name, problem)
    # At the line end after each share of the tokens; dev and test keep a line each.
    first = int(np.clip(np.searchsorted(ends, _CUTS[0] * ids.size), 0, len(ends) - 3))
    second = int(np.clip(np.searchsorted(ends, _CUTS[1] * ids.size), first + 1, len(ends) - 2))
    return dict(zip(SPLITS, np.split(ids, [ends[first], ends[second]]), strict=True))


def _with_vocabulary(
    tokens: Sequence[str], ids: Mapping[str, Ids]
) -> tuple[Vocabulary, dict[str, Ids], int]:
    """Return train's vocabulary, all splits' ids, and the count from which tokens are kept."""
    counted = np.bincount(ids["train"], minlength=len(tokens))
    counts = {tokens[i]: int(counted[i]) for i in np.flatnonzero(counted)}
    is_complete = UNK in counts or all(counted[ids[split]].all() for split in ("dev", "test"))
    # Without `<unk>` in train, its rarest tokens teach what an unknown word is.
    rarest = min((count for token, count in counts.items() if token != EOS), default=0)
    min_count = 1 if is_complete else 1 + rarest
    vocabulary = vocabulary_of_counts(counts, min_count)
    unknown = vocabulary.index.get(UNK, -1)
    renumbered = np.array([vocabulary.index.get(token, unknown) for token in tokens], np.int32)
    return vocabulary, {split: renumbered[of_split] for split, of_split in ids.items()}, min_count


def _in_pieces(
    name: str, words: Sequence[str], ids: Mapping[str, Ids], pieces: Pieces
) -> tuple[dict[str, Ids], Vocabulary, dict[str, TextSize]]:
    """Return the ids of each split's pieces, their vocabulary, and the lengths of the text.

    A space belongs to the word after it. So each distinct word has two forms, with and without a
    leading space, and each form is split only once; form 2 i is word i, and form 2 i + 1 has a
    space before it.
    """
    forms = []
    for word in words:
        forms += (word, word) if word == EOS else (word, f" {word}")
    form_ids = {split: 2 * of_split for split, of_split in ids.items()}
    for split, of_split in ids.items():
        # A space stands before each word that does not follow an `<eos>`.
        form_ids[split][1:] += of_split[:-1] != 0
    if pieces.kind == "bpe":
        if (longest := max(map(len, words))) > _LONGEST_WORD:
            problem = f"byte pairs read words of at most {_LONGEST_WORD:,} characters"
            found = f"{name} has a word of {longest:,} characters"
            raise UserError(f"{found}, and {problem}: add spaces")
        # Pieces are learned from train only.
        counts = np.bincount(form_ids["train"], minlength=len(forms))
        counted = {forms[i]: int(counts[i]) for i in np.flatnonzero(counts) if forms[i] != EOS}
        vocabulary: Vocabulary = learn_byte_pairs(counted, pieces.size)
        split_forms = vocabulary.split_all(forms)
    else:
        split_forms = [[form] if form == EOS else list(form) for form in forms]
        vocabulary = Vocabulary(tuple(dict.fromkeys(itertools.chain(*split_forms))))
    tables = [[vocabulary.index[piece] for piece in form] for form in split_forms]
    lengths = np.array([1 if form == EOS else len(form) for form in forms])
    sizes = {split: TextSize(own.size, int(lengths[own].sum())) for split, own in form_ids.items()}
    in_pieces = {
        split: np.fromiter(itertools.chain.from_iterable(map(tables.__getitem__, own)), np.int32)
        for split, own in form_ids.items()
    }
    return in_pieces, vocabulary, sizes
