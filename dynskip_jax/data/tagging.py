"""Tagged sentences from files: columns (CoNLL-2000, CoNLL-2003), CoNLL-U, word/tag text, bracketed parses."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from dynskip_jax.data.brackets import tree_pieces
from dynskip_jax.data.column_files import (
    CONLLU_COLUMNS,
    CONLLU_FORM,
    DOCUMENT_START,
    UNSPECIFIED,
    check_tag,
    check_word,
    column_rows,
    conllu_rows,
    pick_columns,
)
from dynskip_jax.data.messages import bad_file, bad_line, quoted, shown
from dynskip_jax.data.splits import SPLITS
from dynskip_jax.data.tag_schemes import Scheme, convert_tags, first_problem
from dynskip_jax.data.text_files import PathLike, iter_lines, open_archive, place

__all__ = [
    "CONLL2000_FILES",
    "CONLL2003_FILES",
    "CONLLU_COLUMNS",
    "DOCUMENT_START",
    "PathLike",
    "TaggedSentence",
    "convert_sentences",
    "read_columns",
    "read_conll2000",
    "read_conll2003",
    "read_conllu",
    "read_parses",
    "read_ud",
    "read_word_tag",
    "read_wsj_sample",
]

CONLL2003_FILES = {"train": "eng.train", "valid": "eng.testa", "test": "eng.testb"}
CONLL2003_COLUMNS = {"pos": 1, "chunk": 2, "ner": 3}
CONLL2000_FILES = {"train": "train.txt", "test": "test.txt"}
CONLL2000_COLUMNS = {"pos": 1, "chunk": 2}


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
    """Read a file with one word per line, its columns separated by tabs or spaces, sentences by empty lines.

    A line with a tab is split at tabs only, so that words may hold spaces. Comments before a sentence, which
    begin with `#`, and lines that begin with `-DOCSTART-`, which CoNLL-2003 has where documents start, are no
    words; see `column_files.column_rows`.

    Args:
        path: a text file, plain or .gz, or a zip archive.
        member: the file within the zip archive.
        word: the column of words, counted from 0, or from the end when negative.
        tag: that of tags; None reads words alone.
        beside: other columns to be read, such as that of parts of speech.

    Raises:
        UserError: the file cannot be read or holds no sentence; or a line has not as many columns as the
            first one, too few for those that are read, or an empty word or tag.
    """
    where, columns = place(path, member), (word, *(() if tag is None else (tag,)), *beside)
    width = None
    builder = _Sentences(with_tags=tag is not None)
    for row in column_rows(iter_lines(path, member)):
        if row.ends_sentence:
            builder.end()
        if row.fields is None:
            continue
        width = len(row.fields) if width is None else width
        if len(row.fields) != width:
            problem = f"{len(row.fields)} columns, but the first line has {width}"
            raise bad_line(where, row.number, problem)
        text, *others = pick_columns(row, columns, where)
        check_word(row, text, word, where)
        chosen = None if tag is None else others.pop(0)
        if chosen is not None:
            check_tag(row.number, chosen, text, where)
        builder.add(text, chosen, row.number, tuple(others))
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
        tag: `upos`, the universal tag (column 3, counted from 0), or `xpos`, that of the treebank's own set
            (column 4).

    Raises:
        UserError: the file cannot be read or holds no sentence; or a line has not ten columns, an id that is
            not the next one, an empty form, or no tag.
    """
    where = place(path, member)
    builder = _Sentences()
    for row in conllu_rows(iter_lines(path, member), where):
        if row.ends_sentence:
            builder.end()
        if row.fields is None:
            continue
        word, chosen = row.fields[CONLLU_FORM], row.fields[CONLLU_COLUMNS[tag]]
        if chosen == UNSPECIFIED:
            raise bad_line(where, row.number, f"the word {quoted(word)} has no {tag.upper()}")
        check_tag(row.number, chosen, word, where)
        builder.add(word, chosen, row.number)
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
    where = place(path, member)
    builder = _Sentences()
    for number, line in enumerate(iter_lines(path, member), 1):
        pairs = [pair for pair in line.split() if pair not in ("[", "]")]
        ruler = bool(pairs) and not pairs[0].strip("=")
        if not pairs or ruler:
            builder.end()
            continue
        for pair in pairs:
            word, _, tag = pair.rpartition("/")
            if not word or not tag:
                raise bad_line(where, number, f"{quoted(pair)} is no word/tag pair")
            check_tag(number, tag, word, where)
            builder.add(_unescaped(word), tag, number)
        if sentences == "lines":
            builder.end()
    return builder.finished(where)


def read_parses(path: PathLike, *, member: str | None = None) -> list[TaggedSentence]:
    r"""Read the words and part-of-speech tags of bracketed parses, as in the Penn Treebank's .mrg files.

    Each outermost bracket is a sentence, each `(TAG word)` a word; traces (`-NONE-`) are left out. `\/` and
    `\*` in words stand for / and *; brackets in the text stay `-LRB-` and `-RRB-`, or are `(` and `)` where
    the file does not escape them.

    Args:
        path: a text file, plain or .gz, or a zip archive.
        member: the file within the zip archive.

    Raises:
        UserError: the file cannot be read or holds no sentence, its brackets do not match, or a word is not
            alone with its tag in a bracket.
    """
    where = place(path, member)
    builder, depth = _Sentences(), 0
    lines = enumerate(iter_lines(path, member), 1)
    for piece in tree_pieces(lines, lambda number, problem: bad_line(where, number, problem)):
        depth += {"open": 1, "close": -1, "leaf": 0}[piece.kind]
        if piece.kind == "leaf" and piece.label != "-NONE-":
            check_tag(piece.line, piece.label, piece.word, where)
            builder.add(_unescaped(piece.word), piece.label, piece.line)
        if not depth:
            builder.end()
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
            names = ", ".join(shown(path.name) for path in found[:3]) or "none"
            raise bad_file(folder, f"needs one file named {pattern} (or .gz) for {split}, and has {names}")
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
        with open_archive(path) as archive:
            places = [(path, name) for name in sorted(archive.namelist()) if name.endswith(".mrg")]
    if not places:
        raise bad_file(path, "has no .mrg files: name NLTK's treebank.zip, or a folder with such files")
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
            raise bad_line(path, sentence.lines[problem[0]], problem[1])
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
            raise bad_file(where, "holds no sentence: is it the right file?")
        return self.closed


def _unescaped(word: str) -> str:
    return word.replace("\\/", "/").replace("\\*", "*")
