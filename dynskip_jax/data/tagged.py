"""Find and read tagged corpora, make their missing splits, and turn them into examples of ids."""

import dataclasses
import functools
import itertools
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int

from dynskip_jax.data.batches import Batch, Examples, fingerprint, pad_sequences
from dynskip_jax.data.files import (
    SPLITS,
    PathLike,
    corpus_files,
    data_folder,
    find_splits,
    stream_lines,
)
from dynskip_jax.data.tag_schemes import Scheme, convert_tags, first_problem, tag_of
from dynskip_jax.data.tagged_files import CONLLU_COLUMNS, TaggedSentence, read_columns
from dynskip_jax.data.vocabularies import TaggerVocabulary, TokenIds
from dynskip_jax.errors import UserError
from dynskip_jax.terminal.messages import bad_file, bad_line, printable, shown

Sentences = Sequence[TaggedSentence]

_ENDINGS = ("txt", "conll", "tsv", "iob", "iob2", "bio", "bio2", "bioes", "stagged", "")
_CONLL2003 = {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"}
_MOST_DRAWN = 1000  # sentences of a dev that is drawn from train; at most a tenth of them


@dataclasses.dataclass(frozen=True)
class TaggedCorpus:
    """Sentences with a tag for each word, in three splits."""

    name: str
    source: str  # phrase for messages that describes where the corpus was found
    splits: Mapping[str, Sentences]
    # Of the tags in the files; None if unknown, or if they do not mark entities.
    scheme: Scheme | None = None
    notes: Sequence[str] = ()  # lines for messages

    @property
    def sizes(self) -> dict[str, int]:
        """Number of sentences of each split."""
        return {split: len(self.splits[split]) for split in SPLITS}

    @property
    def fingerprint(self) -> str:
        """Hash of all splits' words, tags and other columns, and of whether tags mark entities."""
        lines = [str(self.scheme is not None)]
        for split in SPLITS:
            for words, tags, _, columns, _ in self.splits[split]:
                lines.append("\t".join([split, *words, *tags, *itertools.chain(*columns)]))
        return fingerprint(*lines)

    @property
    def train_tags(self) -> tuple[str, ...]:
        """Tags that occur in train, in sorted order."""
        return tuple(sorted({tag for sentence in self.splits["train"] for tag in sentence.tags}))

    @property
    def entity_tags(self) -> tuple[str, ...]:
        """`O` and, for each type of entity in train, its tags with all letters of BIOES."""
        kinds = sorted({tag.partition("-")[2] for tag in self.train_tags if tag != "O"})
        return ("O", *(tag_of(letter, kind) for kind in kinds for letter in "BIES"))


def find_tagged_corpus(
    dataset: Literal["conll2003", "conll2000", "ud", "columns"],
    data: PathLike | None = None,
    *,
    tag: Literal["upos", "xpos"] = "upos",
    tag_column: int = -1,
    beside: Sequence[int] = (),
) -> TaggedCorpus:
    """Load a corpus with a tag per word: entities, chunks, parts of speech or CCG categories.

    Args:
        dataset: `conll2003` has named entities, and `conll2000` chunks; its dev is drawn from
            train: a tenth, at most 1,000 sentences. `ud` is a folder of CoNLL-U files, by default
            the English EWT. `columns` is a folder of files with a word on each line, and its tag in
            another column.
        data: Folder, or NLTK's archive; None searches `$DYNSKIP_DATA_DIR`, except for `columns`.
        tag: Universal tags, or those of the treebank, for `ud`.
        tag_column: Column of tags, except for `ud`, counted from 0, or from the end if negative.
        beside: Other columns of the CoNLL files or `columns` to read, counted likewise.
    """
    read = functools.partial(read_columns, beside=beside, tag=tag_column)
    if dataset == "conll2000":
        archive = ("nltk", "NLTK's archive", ["conll2000.zip"])
        path = data_folder(None, *archive) if data is None else Path(data)
        if not path.is_file():
            path /= "conll2000.zip"
        parts = [read(f"{path} ({name})", lines) for name, lines in _archived(path)]
        return _with_drawn_dev(path, *parts)
    if dataset == "conll2003":
        folder, files = corpus_files(data, "conll2003", "CoNLL-2003", _CONLL2003)
        splits = {split: read(path) for split, path in files.items()}
        return TaggedCorpus("conll2003", f"the folder {folder}", splits, "IOB1")
    if dataset == "ud":
        folder = data_folder(
            data, "ud_ewt", "the treebank", ["files such as en_ewt-ud-train.conllu"]
        )
        read = functools.partial(read_columns, format="conllu", tag=CONLLU_COLUMNS[tag])
        endings = ["conllu"]
    elif data is None:
        raise UserError(
            "--dataset columns reads train, dev and test from files: give their folder as --data"
        )
    else:
        folder = Path(data)
        endings = _ENDINGS
    splits = {split: read(path) for split, path in find_splits(folder, endings).items()}
    name = printable(folder.resolve().name) + f", {tag.upper()}" * (dataset == "ud")
    return TaggedCorpus(name, f"the folder {folder}", splits)


def _archived(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the names and the lines of train and test in NLTK's archive of CoNLL-2000."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in ("conll2000/train.txt", "conll2000/test.txt"):
                with archive.open(name) as file:
                    yield name, [*stream_lines(file, str(path))]
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise bad_file(path, f"is not NLTK's archive of CoNLL-2000 ({error})") from error


def with_entities(corpus: TaggedCorpus, scheme: Scheme | None = None) -> TaggedCorpus:
    """Return a corpus of entities with tags of BIOES, from its own scheme, or else BIO2."""
    scheme = scheme or corpus.scheme or "BIO2"
    splits = {}
    for split, sentences in corpus.splits.items():
        splits[split] = []
        for sentence in sentences:
            if problem := first_problem(sentence.tags, scheme):
                remedy = f"{problem[1]}: give another --scheme, or --tag-column"
                raise bad_line(sentence.file, sentence.lines[problem[0]], remedy)
            splits[split].append(sentence._replace(tags=convert_tags(sentence.tags, "BIOES")))
    found = dataclasses.replace(corpus, splits=splits, scheme=scheme)
    known = {*found.entity_tags}
    for sentence in (*splits["dev"], *splits["test"]):
        for tag, line in zip(sentence.tags, sentence.lines, strict=True):
            if tag not in known:
                problem = f"{shown(tag)} is not in train, nor is another tag of its type"
                raise bad_line(sentence.file, line, problem)
    return found


def _with_drawn_dev(path: Path, train: Sentences, test: Sentences) -> TaggedCorpus:
    """Return CoNLL-2000 with a dev that is drawn from train, both in the order of the file."""
    size = min(_MOST_DRAWN, len(train) // 10)
    if not size:
        raise bad_file(path, f"has only {len(train)} sentences: name NLTK's archive with --data")
    order = np.random.default_rng(0).permutation(len(train))
    # CoNLL-2000 has no dev.
    dev, rest = ([train[i] for i in np.sort(part)] for part in np.split(order, [size]))
    splits = {"train": rest, "dev": dev, "test": test}
    lines = [f"dev: {size:,} sentences of train, drawn at random"]
    return TaggedCorpus("conll2000", str(path), splits, "BIO2", lines)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggedExamples(Examples):
    """Sentences as ids; the characters of words are looked up for each batch, to save memory.

    `spellings` has the characters of each distinct word, and `inputs.characters` each word's row in
    it.
    """

    spellings: Int[np.ndarray, "forms length"]

    def batch(
        self,
        index: Int[np.ndarray, "*lead rows"],
        mask: Bool[np.ndarray, "*lead rows"] | None,
        bucket: int,
    ) -> Batch:
        """Return a batch; `inputs.characters` is (*lead, rows, time, length)."""
        batch = super().batch(index, mask, bucket)
        characters = self.spellings[batch.inputs.characters]
        return batch._replace(inputs=batch.inputs._replace(characters=characters))


def tagged_examples(
    sentences: Sentences, tags: Sequence[Sequence[int]], vocabulary: TaggerVocabulary
) -> TaggedExamples:
    """Return the examples of a split; `tags` are the ids of its sentences' tags."""
    forms = {
        word: i
        for i, word in enumerate(dict.fromkeys(word for own in sentences for word in own.words))
    }
    # Each distinct word is encoded once.
    known = vocabulary.encode(list(forms), [("",) * len(vocabulary.columns)] * len(forms))
    rows = [np.array([forms[word] for word in own.words], np.int32) for own in sentences]
    padded, lengths = pad_sequences(rows)
    inside = np.arange(padded.shape[1]) < lengths[:, None]
    beside = np.zeros((*padded.shape, len(vocabulary.columns)), np.int32)
    for row, sentence, length in zip(beside, sentences, lengths, strict=True):
        row[:length] = vocabulary.encode_columns(sentence.columns or [()] * length)
    ids = (known.words[padded], padded, known.capitals[padded])
    inputs = TokenIds(*(np.where(inside, of, 0) for of in ids), beside)
    targets, _ = pad_sequences([np.array(row, np.int32) for row in tags])
    return TaggedExamples(inputs, targets, lengths, spellings=known.characters)
