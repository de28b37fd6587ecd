"""Find and read a tagged corpus, make its missing splits, and check that its splits have the same tags."""

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
_DEV_SENTENCES = 1000  # Size of the dev split of CoNLL-2000; at most a tenth of train.
# If the distinct values of a tag column exceed this fraction of the number of words, the column contains
# words. The check needs at least `_MANY_WORDS` words.
_MOST_TAGS, _MANY_WORDS = 0.35, 200
_DEV_WORD = {"train": "train", "dev": "valid", "test": "test"}  # names of the splits in other modules


@dataclasses.dataclass(frozen=True)
class TaggedCorpus:
    """Sentences with a tag for each word, in three splits.

    Attributes:
        name: Name of the corpus in results.
        source: Phrase for messages that describes where the corpus was found.
        splits: Sentences of `train`, `dev` and `test`.
        files: Name of each split's file, for error messages.
        scheme: Scheme of the tags; None if the tags do not mark entities.
        note: Additional line for messages, or an empty string.
        file_scheme: Scheme of the tags in the files; None if the tags do not mark entities.
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
        """Number of sentences of each split."""
        return {split: len(self.splits[split]) for split in SPLIT_NAMES}

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the scheme and of the words, tags and other columns of all splits."""
        digest = hashlib.sha256(str(self.scheme).encode())
        for split in SPLIT_NAMES:
            for sentence in self.splits[split]:
                columns = [value for values in sentence.columns for value in values]
                line = [split, *sentence.words, *sentence.tags, *columns, "\n"]
                digest.update("\t".join(line).encode())
        return digest.hexdigest()

    @property
    def train_tags(self) -> tuple[str, ...]:
        """Tags that occur in train, in sorted order."""
        return tuple(sorted({tag for sentence in self.splits["train"] for tag in sentence.tags}))

    def check_tags(self, known: Iterable[str], remedy: str) -> None:
        """Check that all tags of dev and test are known.

        Args:
            known: Known tags.
            remedy: Text that continues the error message.

        Raises:
            UserError: If a tag is not known; the message names the file and the line of the first one.
        """
        known = set(known)
        for split in ("dev", "test"):
            for sentence in self.splits[split]:
                for tag, line in zip(sentence.tags, sentence.lines, strict=True):
                    if tag not in known:
                        problem = f"the tag {shown(tag)} is not in train{remedy}"
                        raise bad_line(self.files[split], line, problem)


def entity_tags(corpus: TaggedCorpus) -> tuple[str, ...]:
    """Return `O` and, for each type of entity in train, its tags with all letters of BIOES.

    Train may lack some of the tags of a rare type.
    """
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
    """Load a corpus of named entities or chunks, and convert its tags to BIOES.

    Args:
        dataset: `conll2003` (entities), `conll2000` (chunks) or `columns`. `conll2000` has no dev split, so a
            random tenth of train, at most 1,000 sentences, becomes dev. `columns` is any folder with files
            for train, dev (or valid) and test that have one word on each line, and its tag in another column.
        data: Folder of the corpus; for `conll2000` also NLTK's archive. None searches `$DYNSKIP_DATA_DIR`;
            `columns` requires a folder.
        scheme: Scheme of the tags in the files. None means IOB1 for `conll2003` and BIO2 for `conll2000`; for
            `columns` the scheme is detected from the tags of train, and the corpus's `note` names it.
        beside: Other columns to read, counted from 0, such as that of parts of speech.
        word: Column of words for `columns`, counted from 0, or from the end if negative.
        tag: Column of tags for `columns`, counted likewise.
        seed: Seed of the random choice of dev for `conll2000`.
        environ: Environment variables.

    Raises:
        UserError: If the corpus is not found or is invalid, if the tags of `columns` have no scheme, or if
            `beside` has the column of the words or of the tags.
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
    """Load a corpus with one tag per word, such as parts of speech or CCG categories.

    Args:
        dataset: `ud` is a treebank of Universal Dependencies, by default the English EWT. `wsj` is NLTK's
            sample of the Penn Treebank: a random tenth of it becomes dev, and another tenth test. The others
            are any folder with files for train, dev (or valid) and test: `conllu`, `word_tag` (word/tag
            pairs, one sentence per line) or `columns` (one word per line, with its tag in another column).
        data: Folder of the corpus; for `wsj` also NLTK's archive. None searches `$DYNSKIP_DATA_DIR` for `ud`
            and `wsj`; the others require a folder.
        tag: Tags to read for `ud` and `conllu`: `upos` for universal tags, `xpos` for those of the treebank.
        word_column: Column of words for `columns`, counted from 0, or from the end if negative.
        tag_column: Column of tags for `columns`, counted likewise.
        seed: Seed of the random choice of dev and test for `wsj`.
        environ: Environment variables.

    Raises:
        UserError: If the corpus is not found or is invalid, or if `tag_column` has so many distinct values
            that it must contain words.
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
    """Split sentences at random into parts of the given sizes, and a last part with the rest.

    Args:
        sentences: Sentences to split.
        sizes: Size of each part except the last one.
        seed: Seed of the random choice.

    Returns:
        The parts; each one keeps the order of `sentences`.
    """
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
    """Return the corpus with a dev split that is taken from train."""
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
    """Return the scheme of train's tags, and a line that describes it.

    Args:
        corpus: Corpus to examine.
        word: Column of words, for error messages.
        tag: Column of tags, for error messages.

    Raises:
        UserError: If the tags have no scheme, or the words look like tags.
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
    """Raise a `UserError` if train has so many distinct tags that they must be words."""
    words, tags = sum(map(len, (s.words for s in corpus.splits["train"]))), len(corpus.train_tags)
    if words >= _MANY_WORDS and tags > _MOST_TAGS * words:
        problem = (
            f"has {tags:,} different tags for {words:,} words in column {tag}: is it the column of tags?"
        )
        raise bad_file(corpus.files["train"], problem)


def _columns_of_tags(path: str) -> list[int]:
    """Return the indices of the columns of a file whose values are tags of a scheme."""
    rows = [row.fields for row in column_rows(iter_lines(path)) if row.fields is not None]
    values = zip(*rows, strict=True)  # strict: `read_columns` has checked that all rows have the same width
    return [column for column, own in enumerate(values) if detect_scheme([own]).scheme is not None]


def _own(
    data: PathLike | None,
    dataset: str,
    endings: Sequence[str],
    read: Callable[[Path], list[TaggedSentence]],
) -> TaggedCorpus:
    """Read a user's folder with one file for each split.

    Args:
        data: Folder; None raises a `UserError`.
        dataset: Value of --dataset, for the error message.
        endings: Accepted endings of file names.
        read: Function that reads one file.
    """
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
    """Return the folder `data` or, if that is None, the folder `name` in `$DYNSKIP_DATA_DIR`.

    Args:
        data: Folder given by the user.
        name: Name of the sub-folder.
        files: Description of the files in the folder, for error messages.
        title: Name of the corpus, for error messages.
        environ: Environment variables.
    """
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
    """Return the zip archive of a corpus, or the folder with its files.

    Args:
        data: Archive, or folder with the archive or the files, given by the user. None searches the folders
            `name` and `nltk` in `$DYNSKIP_DATA_DIR`.
        name: Name of the corpus's sub-folder.
        archive: File name of the archive.
        files: Description of the files in the folder, for error messages.
        title: Name of the corpus, for error messages.
        environ: Environment variables.
    """
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
