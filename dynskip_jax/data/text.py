"""Word-level text corpora: read a folder of train/valid/test files, tokenise, number the tokens."""

import collections
import dataclasses
import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.vocabulary import EOS, UNK, Vocabulary, build_vocabulary
from dynskip_jax.errors import UserError

SPLITS = ("train", "valid", "test")
SPLIT_WORDS = {
    "train": ("train",),
    "valid": ("valid", "validation", "val", "dev", "development"),
    "test": ("test",),
}
ACCEPTED_NAMES = (
    "{0}.txt, ANYTHING.{0}.txt, ANYTHING-{0}.txt, ANYTHING_{0}.txt or the same with .tokens, each also .gz"
)


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
    """

    name: str
    train: Int[np.ndarray, "train_tokens"]
    valid: Int[np.ndarray, "valid_tokens"]
    test: Int[np.ndarray, "test_tokens"]
    vocabulary: Vocabulary
    source: str
    min_count: int = 1

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
    def about_unknown(self) -> str:
        """A line for people: which words are `<unk>`, and how many tokens of each split."""
        if UNK not in self.vocabulary.index:
            return f"train has every word of valid and test: no {UNK}"
        rare = "words seen once" if self.min_count == 2 else f"words seen fewer than {self.min_count} times"
        of_train = f"{rare} in train are {UNK}" if self.min_count > 1 else f"{UNK} as in the text of train"
        shares = ", ".join(f"{100 * share:.2g} % of {split}" for split, share in self.unknown.items())
        return f"{of_train}: {shares}"

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the token ids of the splits and the vocabulary."""
        digest = hashlib.sha256("\n".join(self.vocabulary.tokens).encode())
        for split in SPLITS:
            ids = getattr(self, split)
            digest.update(f"\n{split} {ids.size}\n".encode())
            digest.update(ids.astype("<i4").tobytes())
        return digest.hexdigest()


def tokenize(lines: Sequence[str]) -> list[str]:
    """Blank-separated tokens of all lines, with one `<eos>` after each line, also after an empty one."""
    return [token for line in lines for token in (*line.split(), EOS)]


def join_tokens(tokens: Sequence[str]) -> str:
    """The text of tokens, for people: each `<eos>` ends a line, and text neither begins nor ends with one.

    For lines with words it undoes `tokenize`. The first `<eos>` of `<eos> the cat`, which tells a model that
    a line begins, is no line of its own; two of them in a row are an empty line.
    """
    lines: list[list[str]] = [[]]
    for token in tokens:
        if token == EOS:
            lines.append([])
        else:
            lines[-1].append(token)
    return "\n".join(" ".join(line) for line in lines).strip("\n")


def make_corpus(
    name: str, lines: Mapping[str, Sequence[str]], source: str, min_count: int | None = None
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
      lines: the lines of "train", "valid" and "test".
      source: where the corpus was found.
      min_count: words that the training text has fewer times become `<unk>`. None is 1, which keeps all,
        where training has an `<unk>` or nothing in valid and test needs one, and else 2: valid and test
        decide whether words are dropped, never which. Perplexities of different vocabularies cannot be
        compared.

    Returns:
      The corpus. Its `min_count` is the one that was used.

    Raises:
      UserError: when `min_count` is less than 1, or leaves training without an `<unk>` that valid or test
        need.
    """
    if min_count is not None and min_count < 1:
        raise UserError(f"min_count must be at least 1, which keeps every word of train, not {min_count}")
    tokens = {split: tokenize(lines[split]) for split in SPLITS}
    vocabulary = build_vocabulary(tokens["train"], min_count=min_count or 1)
    if min_count is None:
        if UNK not in vocabulary.index and _unseen(vocabulary, tokens):
            return make_corpus(name, lines, source, min_count=2)
        min_count = 1
    if UNK not in vocabulary.index and (unseen := _unseen(vocabulary, tokens)):
        split, word = unseen
        counts = collections.Counter(tokens["train"])
        rarest = min((n for token, n in counts.items() if token != EOS), default=1)
        raise UserError(
            f"the {split} split has a word that train lacks, {word!r}, and train has no {UNK} to read it as: "
            f"use min_count {rarest + 1}, the least that makes rare words of train {UNK}, or change the text"
        )
    ids = {split: vocabulary.encode(tokens[split]) for split in SPLITS}
    return LanguageCorpus(name=name, **ids, vocabulary=vocabulary, source=source, min_count=min_count)


def _unseen(vocabulary: Vocabulary, tokens: Mapping[str, Sequence[str]]) -> tuple[str, str] | None:
    """The first split with a token that the vocabulary lacks, and that token."""
    for split in SPLITS:
        for token in tokens[split]:
            if token not in vocabulary.index:
                return split, token
    return None


def find_split_files(folder: str | os.PathLike[str], *, prefix: str | None = None) -> dict[str, Path]:
    """The text files of the three splits in `folder`.

    Args:
      folder: where to look, sub-folders excluded.
      prefix: take only the names with exactly this before the split's word ("ptb." for `ptb.train.txt`);
        None takes any.

    Raises:
      UserError: when `folder` is not a readable folder, or a split is missing or ambiguous.
    """
    folder = Path(folder)
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise UserError(
            f"{folder} is not a readable folder ({error.strerror or error}): name a folder that holds the "
            f"text files {', '.join(f'{split}.txt' for split in SPLITS)}"
        ) from error
    return {split: folder / _choose(names, split, folder, prefix) for split in SPLITS}


def _choose(names: Sequence[str], split: str, folder: Path, prefix: str | None) -> str:
    start = r"(.+[._-])?" if prefix is None else re.escape(prefix)
    words = "|".join(SPLIT_WORDS[split])
    pattern = re.compile(rf"{start}({words})\.(txt|tokens)(\.gz)?", re.IGNORECASE)
    found = [name for name in names if pattern.fullmatch(name)]
    if len(found) > 1:
        raise UserError(
            f"{folder} has more than one file for the {split} split ({', '.join(found)}): keep one"
        )
    if not found:
        accepted = ACCEPTED_NAMES.format(split) if prefix is None else f"{prefix}{split}.txt, also .gz"
        aliases = SPLIT_WORDS[split][1:] if prefix is None else ()
        also = f" ({' or '.join(aliases)} for {split} will do)" if aliases else ""
        raise UserError(f"{folder} has no file for the {split} split: put one there named {accepted}{also}")
    return found[0]


def read_lines(path: str | os.PathLike[str], blank_lines: bool | None = None) -> list[str]:
    """Lines of a UTF-8 text file, plain or gzip, without their ends.

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
    try:
        data = path.read_bytes()
        if path.suffix.lower() == ".gz":
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is a truncated or damaged gzip file ({error}): fetch it again") from error
    except FileNotFoundError:
        raise UserError(f"{path} is not there: name a file that is") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}): check its permissions"
        ) from error
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text (byte offset {error.start}): convert it, e.g. with iconv -t UTF-8"
        ) from error
    if not text.strip():
        raise UserError(f"{path} is empty: fetch it again, each split needs some text")
    # Not splitlines(), which also splits at form feeds and other characters that corpora use as tokens.
    lines = text.removesuffix("\n").split("\n")
    if blank_lines is None:
        blank_lines = path.name.lower().removesuffix(".gz").endswith(".tokens")
    return lines if blank_lines else [line for line in lines if line.strip()]


def read_corpus(
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    prefix: str | None = None,
    source: str | None = None,
    blank_lines: bool | None = None,
    min_count: int | None = None,
) -> LanguageCorpus:
    """Read a folder with one text file for each of train, valid and test.

    Args:
      folder: the folder.
      name: the corpus' name; None takes the folder's.
      prefix: see `find_split_files`.
      source: a phrase for where it was found; None says the folder.
      blank_lines: whether each is an `<eos>`; None says yes for WikiText's file names alone (`read_lines`).
      min_count: words that train has fewer times are `<unk>`; None as `make_corpus` says.

    Raises:
      UserError: see `find_split_files`, `read_lines` and `make_corpus`.
    """
    folder = Path(folder)
    paths = find_split_files(folder, prefix=prefix)
    lines = {split: read_lines(path, blank_lines) for split, path in paths.items()}
    return make_corpus(name or folder.resolve().name, lines, source or f"the folder {folder}", min_count)
