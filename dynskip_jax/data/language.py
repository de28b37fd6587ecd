"""Read the text of a language model as token ids.

A text consists of words with one space between them, and one `<eos>` after each line.
"""

import array
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.batches import fingerprint
from dynskip_jax.data.files import SPLITS, PathLike, find_splits, iter_lines
from dynskip_jax.data.vocabularies import (
    EOS,
    UNK,
    Vocabulary,
    vocabulary_of_counts,
)
from dynskip_jax.terminal.messages import bad_file, printable, shares

Ids = Int[np.ndarray, " tokens"]


@dataclasses.dataclass(frozen=True)
class LanguageCorpus:
    """A corpus for language modelling: token ids (int32), with one `<eos>` after each line.

    Attributes:
        min_count: Tokens that occur less often in the training text are `<unk>`; 1 keeps all.
    """

    name: str
    train: Ids
    dev: Ids
    test: Ids
    vocabulary: Vocabulary
    source: str
    min_count: int = 1

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
    def about(self) -> str:
        """Line for messages: the share of unknown tokens."""
        rare = f", seen fewer than {self.min_count} times in train" * (self.min_count > 1)
        return f"{UNK}{rare}: {shares(self.unknown)}"

    @property
    def fingerprint(self) -> str:
        """Hash of the vocabulary and of the token ids of all splits."""
        return fingerprint(*self.vocabulary.tokens, *self.splits.values())


def make_corpus(name: str, lines: Mapping[str, Iterable[str]], source: str) -> LanguageCorpus:
    """Build a corpus from the lines of train, dev and test.

    Words that train lacks become `<unk>` in dev and test, and count as tokens: without them the
    perplexity would be too low. If dev or test need an `<unk>` that train lacks, the rarest words
    of train become `<unk>`, so that its probability is learned; their share estimates that of
    unseen words (Good 1953). `source` says in messages where the text was found.
    """
    vocabulary, ids, min_count = _with_vocabulary(*_numbered(lines))
    return LanguageCorpus(name, **ids, vocabulary=vocabulary, source=source, min_count=min_count)


def corpus_name(path: Path) -> str:
    """Return the name of the corpus in a folder."""
    return printable(path.resolve().name)


def read_corpus(path: PathLike, *, name: str | None = None) -> LanguageCorpus:
    """Read a folder with a text file for each of train, dev and test.

    Files are streamed: memory contains a few bytes for each token, and each distinct token once.
    """
    files = find_splits(path, ["txt", "tokens"])
    lines = {split: text_lines(file) for split, file in files.items()}
    return make_corpus(name or corpus_name(Path(path)), lines, f"the folder {path}")


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


def _numbered(texts: Mapping[str, Iterable[str]]) -> tuple[list[str], dict[str, Ids]]:
    """Return the distinct tokens, and each text's tokens as numbers (int32).

    Numbers are in the order of first occurrence, and there is one `<eos>`, 0, after each line.
    """
    numbers = {EOS: 0}
    ids = {}
    for split, lines in texts.items():
        found = array.array("i")
        for line in lines:
            words = line.split()
            # Some corpora have written it; it is not counted twice.
            if words[-1:] == [EOS]:
                words.pop()
            found.extend([numbers.setdefault(word, len(numbers)) for word in words])
            found.append(0)
        ids[split] = np.array(found, np.int32)
    return list(numbers), ids


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
