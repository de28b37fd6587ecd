"""Tagged sentences from files: columns (CoNLL-2000, CoNLL-2003), CoNLL-U, word/tag text, bracketed parses."""

import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from dynskip_jax.data.tag_schemes import Scheme, convert_tags, first_problem
from dynskip_jax.data.text import SPLITS, read_lines
from dynskip_jax.errors import UserError

PathLike = str | os.PathLike[str]

DOCUMENT_START = "-DOCSTART-"
CONLL2003_FILES = {"train": "eng.train", "valid": "eng.testa", "test": "eng.testb"}
CONLL2003_COLUMNS = {"pos": 1, "chunk": 2, "ner": 3}
CONLL2000_FILES = {"train": "train.txt", "test": "test.txt"}
CONLL2000_COLUMNS = {"pos": 1, "chunk": 2}
CONLLU_COLUMNS = {"upos": 3, "xpos": 4}
_CONLLU_WIDTH = 10
_UNSPECIFIED = "_"


class TaggedSentence(NamedTuple):
    """A sentence with a tag for each word.

    Attributes:
        words: as the file spells them.
        tags: one for each word; none at all where the file was read without tags.
        lines: on which line of its file each word stands, counted from 1.
        columns: what else was read beside each word; nothing where nothing was asked for.
    """

    words: list[str]
    tags: list[str]
    lines: list[int]
    columns: Sequence[tuple[str, ...]] = ()


def read_columns(
    path: PathLike,
    *,
    member: str | None = None,
    word: int = 0,
    tag: int | None = -1,
    beside: Sequence[int] = (),
) -> list[TaggedSentence]:
    """Read a file with one word per line, its columns apart by blanks or tabs, sentences by empty lines.

    Lines that begin with `-DOCSTART-`, which CoNLL-2003 has where documents start, are no sentences, however
    many columns they have.

    Args:
        path: a text file, plain or .gz, or a zip archive.
        member: the file within the zip archive.
        word: the column of words, counted from 0, or from the end when negative.
        tag: that of tags; None reads words alone.
        beside: other columns to be read, such as that of parts of speech.

    Raises:
        UserError: the file cannot be read or holds no sentence, or a line has not as many columns as the
            first one, or too few for those that are read.
    """
    where, columns = _named(path, member), (word, *(() if tag is None else (tag,)), *beside)
    width = None
    builder = _Sentences(with_tags=tag is not None)
    for number, line in enumerate(_lines(path, member), 1):
        # Not split() of all white space: some words of corpora hold a no-break space.
        fields = re.split(r"[ \t]+", line.strip(" \t"))
        if fields[0] in ("", DOCUMENT_START):
            builder.end()
            continue
        width = len(fields) if width is None else width
        if len(fields) != width:
            raise _bad_line(where, number, f"{len(fields)} columns, but the first line has {width}")
        for column in columns:
            if not -width <= column < width:
                raise _bad_line(where, number, f"no column {column} among {width}, counted from 0")
        others = tuple(fields[column] for column in beside)
        builder.add(fields[word], None if tag is None else fields[tag], number, others)
    return builder.finished(where)


def read_conllu(
    path: PathLike, *, member: str | None = None, tag: Literal["upos", "xpos"] = "upos"
) -> list[TaggedSentence]:
    """Read a CoNLL-U file of Universal Dependencies: its syntactic words and their part-of-speech tags.

    UD tags syntactic words, which have the ids 1, 2, 3 and so on. So the lines of multiword tokens (`2-3
    didn't`, before `2 did` and `3 n't`) and of empty nodes (`8.1`) are left out, and so are comments (#).

    Args:
        path: a text file, plain or .gz, or a zip archive.
        member: the file within the zip archive.
        tag: `upos`, the universal tag (column 4), or `xpos`, that of the treebank's own set (column 5).

    Raises:
        UserError: the file cannot be read or holds no sentence; or a line has not ten columns, an id that is
            not the next one, or no tag.
    """
    where = _named(path, member)
    builder = _Sentences()
    for number, line in enumerate(_lines(path, member), 1):
        if not line.strip():
            builder.end()
            continue
        if line.startswith("#"):
            continue
        fields = line.split("\t")
        if len(fields) != _CONLLU_WIDTH:
            problem = f"{len(fields)} columns apart by tabs, but CoNLL-U has {_CONLLU_WIDTH}"
            raise _bad_line(where, number, problem)
        if re.fullmatch(r"\d+[-.]\d+", fields[0]):
            continue
        if fields[0] != str(len(builder.open.words) + 1):
            raise _bad_line(where, number, f"word {len(builder.open.words) + 1} has the id {fields[0]!r}")
        chosen = fields[CONLLU_COLUMNS[tag]]
        if chosen == _UNSPECIFIED:
            raise _bad_line(where, number, f"the word {fields[1]!r} has no {tag.upper()}")
        builder.add(fields[1], chosen, number)
    return builder.finished(where)


def read_word_tag(
    path: PathLike, *, member: str | None = None, sentences: Literal["lines", "blocks"] = "lines"
) -> list[TaggedSentence]:
    r"""Read text of `word/tag` pairs apart by blanks, as the Brown corpus and the tagged WSJ have it.

    The tag follows the last slash; `\/` in a word stands for a slash. Brackets around noun phrases ([ and ])
    and rulers (=====), which the tagged WSJ files have, are left out.

    Args:
        path: a text file, plain or .gz, or a zip archive.
        member: the file within the zip archive.
        sentences: whether each line is one, as in Brown, or each block of lines between empty ones or rulers,
            as in the WSJ files (where some blocks are only part of a sentence: `read_parses` has the whole).

    Raises:
        UserError: the file cannot be read or holds no sentence, or something is no pair.
    """
    where = _named(path, member)
    builder = _Sentences()
    for number, line in enumerate(_lines(path, member), 1):
        pairs = [pair for pair in line.split() if pair not in ("[", "]")]
        ruler = bool(pairs) and not pairs[0].strip("=")
        if not pairs or ruler:
            builder.end()
            continue
        for pair in pairs:
            word, _, tag = pair.rpartition("/")
            if not word or not tag:
                raise _bad_line(where, number, f"{pair!r} is no word/tag pair")
            builder.add(_unescaped(word), tag, number)
        if sentences == "lines":
            builder.end()
    return builder.finished(where)


def read_parses(path: PathLike, *, member: str | None = None) -> list[TaggedSentence]:
    r"""Read the words and part-of-speech tags of bracketed parses, as in the Penn Treebank's .mrg files.

    Each outermost bracket is a sentence, each `(TAG word)` a word; traces (`-NONE-`) are left out. `\/` and
    `\*` in words stand for / and *; brackets in the text stay `-LRB-` and `-RRB-`.

    Args:
        path: a text file, plain or .gz, or a zip archive.
        member: the file within the zip archive.

    Raises:
        UserError: the file cannot be read or holds no sentence, or its brackets do not match.
    """
    where = _named(path, member)
    builder, depth, opened = _Sentences(), 0, 0
    for number, line in enumerate(_lines(path, member), 1):
        for found in re.finditer(r"\(\s*([^\s()]+)\s+([^\s()]+)\s*\)|[()]", line):
            tag, word = found.groups()
            if word and tag != "-NONE-":
                builder.add(_unescaped(word), tag, number)
            elif found[0] == "(":
                opened = opened if depth else number
                depth += 1
            elif found[0] == ")":
                depth -= 1
            if depth < 0:
                raise _bad_line(where, number, "a bracket closes that none has opened")
            if not depth:
                builder.end()
    if depth:
        raise _bad_line(where, opened, "the bracket that opens here is not closed")
    return builder.finished(where)


def read_conll2003(
    folder: PathLike, tag: Literal["ner", "chunk", "pos"] = "ner", beside: Sequence[int] = ()
) -> dict[str, list[TaggedSentence]]:
    """Read English CoNLL-2003: `train`, `valid` (eng.testa) and `test` (eng.testb).

    Entities and chunks are in the scheme IOB1, as the shared task has them: see `convert_sentences`.

    Args:
        folder: holds eng.train, eng.testa and eng.testb.
        tag: which column.
        beside: see `read_columns`; parts of speech are 1, chunks 2.

    Raises:
        UserError: a file is missing or not as it should be.
    """
    column = CONLL2003_COLUMNS[tag]
    folder = Path(folder)
    return {
        split: read_columns(folder / name, tag=column, beside=beside)
        for split, name in CONLL2003_FILES.items()
    }


def read_conll2000(
    path: PathLike, tag: Literal["chunk", "pos"] = "chunk", beside: Sequence[int] = ()
) -> dict[str, list[TaggedSentence]]:
    """Read CoNLL-2000: `train` and `test`; the shared task has no validation part.

    Chunks are in the scheme BIO2.

    Args:
        path: NLTK's archive conll2000.zip, or a folder with train.txt and test.txt.
        tag: which column.
        beside: see `read_columns`; parts of speech are 1.

    Raises:
        UserError: a file is missing or not as it should be.
    """
    column = CONLL2000_COLUMNS[tag]
    path = Path(path)
    if path.is_dir():
        return {
            split: read_columns(path / name, tag=column, beside=beside)
            for split, name in CONLL2000_FILES.items()
        }
    return {
        split: read_columns(path, member=f"conll2000/{name}", tag=column, beside=beside)
        for split, name in CONLL2000_FILES.items()
    }


def read_ud(folder: PathLike, tag: Literal["upos", "xpos"] = "upos") -> dict[str, list[TaggedSentence]]:
    """Read a treebank of Universal Dependencies: `train`, `valid` (dev) and `test`.

    Args:
        folder: holds one file each named like en_ewt-ud-train.conllu, -ud-dev and -ud-test, or the same .gz.
        tag: see `read_conllu`.

    Raises:
        UserError: a file is missing, ambiguous or not as it should be.
    """
    corpus = {}
    for split in SPLITS:
        pattern = f"*-ud-{'dev' if split == 'valid' else split}.conllu"
        found = [path for ending in ("", ".gz") for path in sorted(Path(folder).glob(pattern + ending))]
        if len(found) != 1:
            names = ", ".join(path.name for path in found) or "none"
            raise UserError(f"{folder} needs one file named {pattern} (or .gz) for {split}, and has {names}")
        corpus[split] = read_conllu(found[0], tag=tag)
    return corpus


def read_wsj_sample(path: PathLike) -> list[TaggedSentence]:
    """Read the sample of the Penn Treebank's WSJ that NLTK distributes: all its sentences, file by file.

    Lines are counted within each file.

    Args:
        path: NLTK's archive treebank.zip, or a folder with .mrg files.

    Raises:
        UserError: there are no parses, or a file is not as it should be.
    """
    path = Path(path)
    if path.is_dir():
        places = [(file, None) for file in sorted(path.glob("*.mrg"))]
    else:
        places = [
            (path, name)
            for name in sorted(_archived(path, zipfile.ZipFile.namelist))
            if name.endswith(".mrg")
        ]
    if not places:
        raise UserError(f"{path} has no .mrg files: name NLTK's treebank.zip, or a folder with such files")
    return [sentence for file, member in places for sentence in read_parses(file, member=member)]


def convert_sentences(
    sentences: Iterable[TaggedSentence],
    source: Scheme,
    target: Scheme,
    path: PathLike,
    *,
    repair: bool = False,
) -> list[TaggedSentence]:
    """The same sentences with their entities in another scheme, or in the same one.

    Args:
        sentences: of one file.
        source: the scheme of their tags.
        target: that of the answer.
        path: the file, for errors.
        repair: read tags that break the rules as `conlleval` does; see `tag_schemes.convert_tags`.

    Raises:
        UserError: tags do not follow `source`, and are not to be repaired; the message names file and line.
    """
    converted = []
    for sentence in sentences:
        problem = None if repair else first_problem(sentence.tags, source)
        if problem is not None:
            raise _bad_line(str(path), sentence.lines[problem[0]], problem[1])
        # Checked above, where a problem is named with its line.
        tags = convert_tags(sentence.tags, source, target, repair=True)
        converted.append(sentence._replace(tags=tags))
    return converted


class _Sentences:
    """Sentences as they are read: words are added to the open one."""

    def __init__(self, with_tags: bool = True):
        self.with_tags = with_tags
        self.closed: list[TaggedSentence] = []
        self.open = TaggedSentence([], [], [])

    def add(self, word: str, tag: str | None, line: int, columns: tuple[str, ...] = ()) -> None:
        self.open.words.append(word)
        self.open.lines.append(line)
        if columns:
            self.open = self.open._replace(columns=[*self.open.columns, columns])
        if self.with_tags:
            self.open.tags.append(tag)

    def end(self) -> None:
        if self.open.words:
            self.closed.append(self.open)
            self.open = TaggedSentence([], [], [])

    def finished(self, where: str) -> list[TaggedSentence]:
        self.end()
        if not self.closed:
            raise UserError(f"{where} holds no sentence: is it the right file?")
        return self.closed


def _lines(path: PathLike, member: str | None) -> list[str]:
    """The lines of a text file, or of one in a zip archive, without their ends."""
    if member is None:
        lines = read_lines(path, blank_lines=True)
    else:
        data = _archived(path, lambda archive: archive.read(member))
        try:
            lines = data.decode("utf-8").removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            where = _named(path, member)
            raise UserError(f"{where} is not UTF-8 text (byte offset {error.start}): convert it") from error
    return [line.removesuffix("\r") for line in lines]


def _archived(path: PathLike, read: Callable[[zipfile.ZipFile], Sequence]) -> Sequence:
    """What `read` takes from a zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return read(archive)
    except KeyError as error:
        raise UserError(f"{path}: {error.args[0]}; is it the right archive?") from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path} is no zip archive, or a damaged one ({error}): fetch it again") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): check its name") from error


def _named(path: PathLike, member: str | None) -> str:
    return str(path) if member is None else f"{path} ({member})"


def _unescaped(word: str) -> str:
    return word.replace("\\/", "/").replace("\\*", "*")


def _bad_line(where: str, number: int, problem: str) -> UserError:
    return UserError(f"{where}, line {number}: {problem}")
