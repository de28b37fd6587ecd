"""Find and read a tagged corpus: where each is looked for, its splits, and what they must have in common."""

import dataclasses
import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from dynskip_jax.data.column_files import column_rows
from dynskip_jax.data.data_folder import DATA_VARIABLE, named_folder
from dynskip_jax.data.messages import bad_file, bad_line, shown
from dynskip_jax.data.splits import COLUMN_ENDINGS, find_splits
from dynskip_jax.data.tag_schemes import Scheme, detect_scheme, tag_of
from dynskip_jax.data.tagging import (
    CONLL2000_FILES,
    CONLL2003_FILES,
    TaggedSentence,
    convert_sentences,
    read_columns,
    read_conll2000,
    read_conll2003,
    read_conllu,
    read_ud,
    read_word_tag,
    read_wsj_sample,
)
from dynskip_jax.data.text_files import iter_lines
from dynskip_jax.errors import UserError

PathLike = str | os.PathLike[str]
Sentences = Sequence[TaggedSentence]

EntityDataset = Literal["conll2003", "conll2000", "columns"]
PartOfSpeechDataset = Literal["ud", "wsj", "conllu", "word_tag", "columns"]
SPLIT_NAMES = ("train", "dev", "test")
_DEV_SENTENCES = 1000  # of CoNLL-2000, at most a tenth of train
# Words of a text differ in more than this share of its places, tags in fewer; told from this many words on.
_MOST_TAGS, _MANY_WORDS = 0.35, 200
_DEV_WORD = {"train": "train", "dev": "valid", "test": "test"}  # what other modules call the splits


@dataclasses.dataclass(frozen=True)
class TaggedCorpus:
    """Sentences with a tag for each word, in three splits.

    Attributes:
        name: what results call it.
        source: a phrase for people: where it was found.
        splits: the sentences of `train`, `dev` and `test`.
        files: where those of each split stand, for messages.
        scheme: that of the tags; None where they spell out no entities.
        note: what else is to be said of it, or nothing.
        file_scheme: the scheme in which the files have the tags; None where they spell out no entities.
    """

    name: str
    source: str
    splits: Mapping[str, Sentences]
    files: Mapping[str, str]
    scheme: Scheme | None = None
    note: str = ""
    file_scheme: Scheme | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Sentences of each split."""
        return {split: len(self.splits[split]) for split in SPLIT_NAMES}

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the words and tags of all splits."""
        digest = hashlib.sha256(str(self.scheme).encode())
        for split in SPLIT_NAMES:
            for sentence in self.splits[split]:
                columns = [value for values in sentence.columns for value in values]
                line = [split, *sentence.words, *sentence.tags, *columns, "\n"]
                digest.update("\t".join(line).encode())
        return digest.hexdigest()

    @property
    def train_tags(self) -> tuple[str, ...]:
        """The tags that occur in train, in sorted order."""
        return tuple(sorted({tag for sentence in self.splits["train"] for tag in sentence.tags}))

    def check_tags(self, known: Iterable[str], remedy: str) -> None:
        """Raises a `UserError` for the first tag of dev or test that is not known; it names file and line."""
        known = set(known)
        for split in ("dev", "test"):
            for sentence in self.splits[split]:
                for tag, line in zip(sentence.tags, sentence.lines, strict=True):
                    if tag not in known:
                        problem = f"the tag {shown(tag)} is not in train{remedy}"
                        raise bad_line(self.files[split], line, problem)


def entity_tags(corpus: TaggedCorpus) -> tuple[str, ...]:
    """Return `O`, and every letter of BIOES with every type that train has: what a type needs may be rare."""
    kinds = sorted({tag.partition("-")[2] for tag in corpus.train_tags if tag != "O"})
    return ("O", *(tag_of(letter, kind) for kind in kinds for letter in "BIES"))


def find_entity_corpus(
    dataset: EntityDataset,
    data: PathLike | None = None,
    *,
    scheme: Scheme | None = None,
    beside: Sequence[int] = (),
    word: int = 0,
    tag: int = -1,
    seed: int = 0,
    environ: Mapping[str, str] = os.environ,
) -> TaggedCorpus:
    """Load named entities or chunks, their tags turned into BIOES.

    Args:
        dataset: `conll2003` (entities), `conll2000` (chunks; a tenth of train, at most 1,000 sentences drawn
            at random, is its dev), or `columns`: any folder with files for train, dev (or valid) and test
            that have one word on each line, and its tag in another column.
        data: the folder, of `conll2000` also NLTK's archive; by default looked for below
            `$DYNSKIP_DATA_DIR`.
        scheme: that of the files' tags; by default IOB1 for `conll2003`, BIO2 for `conll2000`, and what the
            tags of train look like for `columns`, which the corpus's note says.
        beside: other columns that are read, counted from 0.
        word: of `columns` the column of words, counted from 0, or from the end when negative.
        tag: of `columns` the column of tags.
        seed: with which sentences of dev are drawn.
        environ: the environment variables.

    Raises:
        UserError: it is not found, or not as it should be; or the tags of `columns` are of no scheme.
    """
    if dataset == "columns":
        corpus = _columns(data, word, tag, beside)
        if scheme is None:
            scheme, says = _detected(corpus, word, tag)
            corpus = dataclasses.replace(corpus, note=f"tags of train: {says}")
    else:
        reader = {"conll2003": _conll2003, "conll2000": _conll2000}[dataset]
        corpus = reader(data, environ, beside)
        scheme = scheme or ("IOB1" if dataset == "conll2003" else "BIO2")
    if dataset == "conll2000":
        corpus = _with_dev(corpus, seed)
    splits = {
        split: convert_sentences(sentences, scheme, "BIOES", corpus.files[split])
        for split, sentences in corpus.splits.items()
    }
    corpus = dataclasses.replace(corpus, splits=splits, scheme="BIOES", file_scheme=scheme)
    corpus.check_tags(entity_tags(corpus), ", nor is another of its type")
    return corpus


def find_part_of_speech_corpus(
    dataset: PartOfSpeechDataset,
    data: PathLike | None = None,
    *,
    tag: Literal["upos", "xpos"] = "upos",
    word_column: int = 0,
    tag_column: int = -1,
    seed: int = 0,
    environ: Mapping[str, str] = os.environ,
) -> TaggedCorpus:
    """Load words with a tag each: parts of speech, or CCG categories.

    Args:
        dataset: `ud` (a treebank of Universal Dependencies, by default the English EWT); `wsj` (the Penn
            Treebank sample of NLTK: a tenth of it, drawn at random, is dev, and another one test); or any
            folder with files for train, dev (or valid) and test: `conllu`, `word_tag` (word/tag pairs, a
            sentence on each line) or `columns` (a word on each line, its tag in another column).
        data: the folder, of `wsj` also NLTK's archive; by default looked for below `$DYNSKIP_DATA_DIR`.
        tag: of `ud` and `conllu`: universal tags, or those of the treebank.
        word_column: of `columns` the column of words, counted from 0, or from the end when negative.
        tag_column: of `columns` the column of tags.
        seed: with which sentences of `wsj` are drawn.
        environ: the environment variables.

    Raises:
        UserError: it is not found, or not as it should be; or the tags of `columns` are as many as words.
    """
    if dataset == "ud":
        return _ud(data, tag, environ)
    if dataset == "wsj":
        return _wsj(data, seed, environ)
    if dataset == "conllu":
        return _own(data, "conllu", ("conllu",), lambda path: read_conllu(path, tag=tag))
    if dataset == "word_tag":
        return _own(data, "word_tag", ("txt", "pos", "tagged"), read_word_tag)
    corpus = _columns(data, word_column, tag_column, ())
    _check_few_tags(corpus, tag_column)
    return corpus


def cut(sentences: Sentences, sizes: Sequence[int], seed: int) -> list[list[TaggedSentence]]:
    """So many sentences, drawn at random, and so many others; then the rest; each in their own order."""
    order = np.random.default_rng(seed).permutation(len(sentences))
    bounds = np.cumsum([0, *sizes, len(sentences) - sum(sizes)])
    parts = [np.sort(order[start:stop]) for start, stop in itertools.pairwise(bounds)]
    return [[sentences[i] for i in part] for part in parts]


def _conll2003(data: PathLike | None, environ: Mapping[str, str], beside: Sequence[int]) -> TaggedCorpus:
    names = ", ".join(CONLL2003_FILES.values())
    folder = _folder(data, "conll2003", names, "CoNLL-2003", environ)
    _check_files(folder, CONLL2003_FILES.values())
    read = read_conll2003(folder, beside=beside)
    files = {split: str(folder / CONLL2003_FILES[_DEV_WORD[split]]) for split in SPLIT_NAMES}
    splits = {split: read[_DEV_WORD[split]] for split in SPLIT_NAMES}
    return TaggedCorpus("conll2003", f"the folder {folder}", splits, files)


def _conll2000(data: PathLike | None, environ: Mapping[str, str], beside: Sequence[int]) -> TaggedCorpus:
    names = ", ".join(CONLL2000_FILES.values())
    path = _archive(data, "conll2000", "conll2000.zip", names, "CoNLL-2000", environ)
    if path.is_dir():
        _check_files(path, CONLL2000_FILES.values())
    files = {
        split: str(path / name) if path.is_dir() else f"{path} (conll2000/{name})"
        for split, name in CONLL2000_FILES.items()
    }
    return TaggedCorpus("conll2000", str(path), read_conll2000(path, beside=beside), files)


def _with_dev(corpus: TaggedCorpus, seed: int) -> TaggedCorpus:
    """The corpus with a dev split, which is taken from train."""
    size = min(_DEV_SENTENCES, len(corpus.splits["train"]) // 10)
    if not size:
        raise UserError(f"{corpus.files['train']} has too few sentences to take a tenth of them for dev")
    dev, train = cut(corpus.splits["train"], [size], seed)
    return dataclasses.replace(
        corpus,
        splits={"train": train, "dev": dev, "test": corpus.splits["test"]},
        files={**corpus.files, "dev": corpus.files["train"]},
        note=f"dev: {size:,} sentences of train, drawn with the seed {seed}",
    )


def _columns(data: PathLike | None, word: int, tag: int, beside: Sequence[int]) -> TaggedCorpus:
    read = functools.partial(read_columns, word=word, tag=tag, beside=beside)
    return _own(data, "columns", COLUMN_ENDINGS, read)


def _detected(corpus: TaggedCorpus, word: int, tag: int) -> tuple[Scheme, str]:
    """The scheme of train's tags, and a line that says it.

    Raises:
        UserError: the tags are of no scheme, or the words look like tags.
    """
    path, train = corpus.files["train"], corpus.splits["train"]
    words = detect_scheme([sentence.words for sentence in train])
    if words.scheme is not None:
        problem = f"has tags of {words.scheme} as words, in column {word}: choose another column of words"
        raise bad_file(path, problem)
    found = detect_scheme([sentence.tags for sentence in train])
    if found.scheme is None:
        like_tags = ", ".join(map(str, _columns_of_tags(path))) or "none"
        problem = (
            f"has no tags of entities in column {tag} ({found.says}); columns with such tags: {like_tags}"
        )
        raise bad_file(path, problem)
    return found.scheme, found.says


def _check_few_tags(corpus: TaggedCorpus, tag: int) -> None:
    """Raise a `UserError` if train has so many different tags that they must be words."""
    words, tags = sum(map(len, (s.words for s in corpus.splits["train"]))), len(corpus.train_tags)
    if words >= _MANY_WORDS and tags > _MOST_TAGS * words:
        problem = (
            f"has {tags:,} different tags for {words:,} words in column {tag}: is it the column of tags?"
        )
        raise bad_file(corpus.files["train"], problem)


def _columns_of_tags(path: str) -> list[int]:
    """The columns of a file whose values are tags of a scheme."""
    rows = [row.fields for row in column_rows(iter_lines(path)) if row.fields is not None]
    values = zip(*rows, strict=True)  # all rows have as many columns: they were read before
    return [column for column, own in enumerate(values) if detect_scheme([own]).scheme is not None]


def _own(
    data: PathLike | None,
    dataset: str,
    endings: Sequence[str],
    read: Callable[[Path], list[TaggedSentence]],
) -> TaggedCorpus:
    """A folder of the user's own, with a file for each split."""
    if data is None:
        raise UserError(
            f"--dataset {dataset} reads a folder of your own, with files for train, dev and test: name it "
            "with --data DIR"
        )
    folder = Path(data).expanduser()
    found = find_splits(folder, endings)
    files = {split: found[_DEV_WORD[split]] for split in SPLIT_NAMES}
    splits = {split: read(path) for split, path in files.items()}
    return TaggedCorpus(
        folder.resolve().name, f"the folder {folder}", splits, {k: str(path) for k, path in files.items()}
    )


def _ud(data: PathLike | None, tag: str, environ: Mapping[str, str]) -> TaggedCorpus:
    names = "the files *-ud-train.conllu, *-ud-dev.conllu and *-ud-test.conllu"
    folder = _folder(data, "ud_ewt", names, "the treebank", environ)
    read = read_ud(folder, tag)
    files = {split: f"{folder} (*-ud-{split}.conllu)" for split in SPLIT_NAMES}
    splits = {split: read[_DEV_WORD[split]] for split in SPLIT_NAMES}
    name = f"{folder.resolve().name}, {tag.upper()}"
    return TaggedCorpus(name, f"the folder {folder}", splits, files)


def _wsj(data: PathLike | None, seed: int, environ: Mapping[str, str]) -> TaggedCorpus:
    path = _archive(data, "wsj", "treebank.zip", "the .mrg files", "the sample of the WSJ", environ)
    sentences = read_wsj_sample(path)
    size = len(sentences) // 10
    if not size:
        raise bad_file(path, "has too few sentences to take a tenth of them for dev and another for test")
    dev, test, train = cut(sentences, [size, size], seed)
    note = f"dev and test: {size:,} sentences each, drawn with the seed {seed}; no published split"
    splits = {"train": train, "dev": dev, "test": test}
    return TaggedCorpus("wsj_sample", str(path), splits, dict.fromkeys(SPLIT_NAMES, str(path)), note=note)


def _folder(data: PathLike | None, name: str, files: str, title: str, environ: Mapping[str, str]) -> Path:
    """The folder named, or the one found."""
    if data is not None:
        folder = Path(data).expanduser()
        if not folder.is_dir():
            raise bad_file(folder, f"is no folder: name the one that holds {files}")
        return folder
    found = named_folder(name, environ)
    if found is None:
        raise UserError(
            f"{title} is not at hand: put {files} into a folder and name it with --data DIR, or into "
            f"${DATA_VARIABLE}/{name}"
        )
    return found


def _archive(
    data: PathLike | None, name: str, archive: str, files: str, title: str, environ: Mapping[str, str]
) -> Path:
    """The folder or zip archive named, or the one found, by itself or among NLTK's."""
    if data is not None:
        path = Path(data).expanduser()
        path = path / archive if (path / archive).is_file() else path
        if not path.exists():
            raise bad_file(path, f"does not exist: name {archive}, or a folder with {files}")
        return path
    if folder := named_folder(name, environ):
        return folder / archive if (folder / archive).is_file() else folder
    nltk = named_folder("nltk", environ)
    if nltk is not None and (nltk / archive).is_file():
        return nltk / archive
    raise UserError(
        f"{title} is not at hand: name NLTK's {archive}, or a folder with {files}, with --data, or put it "
        f"into ${DATA_VARIABLE}/{name}"
    )


def _check_files(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        if not (folder / name).is_file():
            raise bad_file(folder, f"has no {name}: put it there, or name another folder with --data DIR")
