"""Read tagged sentences from files: columns (CoNLL-2000, CoNLL-2003), CoNLL-U, word/tag text, parses."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from dynskip_jax.data.brackets import tree_pieces
from dynskip_jax.data.column_files import (
    CONLLU_COLUMNS,
    CONLLU_FORM,
    DOCUMENT_START,
    UNSPECIFIED,
    Row,
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
        words: Words as the file spells them.
        tags: Tag of each word; empty if the file was read without tags.
        lines: Line number of each word in its file, counted from 1.
        columns: Values of other columns for each word; empty if no other columns were requested.
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

    A line with a tab is split at tabs only, so that words may contain spaces. Two kinds of lines are skipped:
    comments before a sentence, which begin with `#`, and lines that begin with `-DOCSTART-`, which CoNLL-2003
    has at the start of documents. See `column_files.column_rows`.

    Args:
        path: Text file, plain or .gz, or a zip archive.
        member: File within the zip archive.
        word: Column of words, counted from 0, or from the end if negative.
        tag: Column of tags, counted likewise; None reads no tags.
        beside: Other columns to read, such as that of parts of speech.

    Raises:
        UserError: If the file cannot be read or contains no sentence, or `beside` has the column of the words
            or of the tags. Also if a line does not have as many columns as the first one, lacks a requested
            column, or has an empty word or an empty or unprintable tag.
    """
    where, columns = place(path, member), (word, *(() if tag is None else (tag,)), *beside)
    width = None
    builder = _Sentences(with_tags=tag is not None)
    for row in column_rows(iter_lines(path, member)):
        if row.ends_sentence:
            builder.end()
        if row.fields is None:
            continue
        if width is None:
            width = len(row.fields)
            _check_beside(row, beside, {"words": word} | ({} if tag is None else {"tags": tag}), where)
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


def _check_beside(row: Row, beside: Sequence[int], used: Mapping[str, int], where: str) -> None:
    """Check that the other columns to read are neither that of the words nor that of the tags.

    Args:
        row: First row of the file.
        beside: Other columns to read.
        used: Columns of the words and the tags, by what they contain.
        where: Name of the file.

    Raises:
        UserError: If they are, or the row lacks one of the columns.
    """
    pick_columns(row, (*used.values(), *beside), where)
    width = len(row.fields)
    for content, column in used.items():
        if any(other % width == column % width for other in beside):
            problem = f"column {column % width} has the {content}, and cannot be read as another column"
            raise bad_line(where, row.number, f"{problem}: leave it out of --columns")


def read_conllu(
    path: PathLike, *, member: str | None = None, tag: Literal["upos", "xpos"] = "upos"
) -> list[TaggedSentence]:
    """Read the syntactic words of a CoNLL-U file of Universal Dependencies, with their part-of-speech tags.

    UD tags syntactic words, which have the ids 1, 2, 3 and so on. So the lines of multiword tokens (`2-3
    didn't`, before `2 did` and `3 n't`) and of empty nodes (`8.1`) are left out, and so are comments (#).

    Args:
        path: Text file, plain or .gz, or a zip archive.
        member: File within the zip archive.
        tag: `upos` for the universal tag (column 3, counted from 0), or `xpos` for the tag of the treebank's
            tag set (column 4).

    Raises:
        UserError: If the file cannot be read or contains no sentence. Also if a line does not have ten
            columns, its id is not the next one, its form is empty, or its tag is missing or unprintable.
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
    r"""Read text of whitespace-separated `word/tag` pairs, as in the Brown corpus and the tagged WSJ files.

    The tag follows the last slash; `\/` and `\*` in a word stand for / and *. Brackets around noun phrases ([
    and ]) and rulers (=====), which the tagged WSJ files contain, are left out.

    Args:
        path: Text file, plain or .gz, or a zip archive.
        member: File within the zip archive.
        sentences: `lines` if each line is a sentence, as in Brown. `blocks` if each block of lines between
            empty lines or rulers is one, as in the WSJ files. Some blocks of the WSJ are only a part of a
            sentence; `read_parses` returns whole sentences.

    Raises:
        UserError: If the file cannot be read or contains no sentence, or an item is not a pair or has an
            unprintable tag.
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

    Each outermost bracket is a sentence, and each `(TAG word)` is a word. Traces (`-NONE-`) are left out.
    `\/` and `\*` in words stand for / and *. Brackets in the text stay as the file has them: `-LRB-` and
    `-RRB-`, or `(` and `)` if they are not escaped.

    Args:
        path: Text file, plain or .gz, or a zip archive.
        member: File within the zip archive.

    Raises:
        UserError: If the file cannot be read or contains no sentence, its brackets do not match, a word is
            not in a bracket with only its tag, or a tag is empty or unprintable.
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

    Entities and chunks are in the scheme IOB1, as in the shared task; for others see `convert_sentences`.

    Args:
        folder: Folder with eng.train, eng.testa and eng.testb.
        tag: Kind of tags to read: entities, chunks or parts of speech.
        beside: Other columns to read; column 1 has parts of speech, column 2 has chunks.

    Raises:
        UserError: If a file is missing or invalid.
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
        tag: Kind of tags to read: chunks or parts of speech.
        beside: Other columns to read; column 1 has parts of speech.

    Raises:
        UserError: If a file is missing or invalid.
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
        folder: Folder with one file for each split, named like en_ewt-ud-train.conllu, -ud-dev and -ud-test;
            each may also be .gz.
        tag: See `read_conllu`.

    Raises:
        UserError: If a file is missing, ambiguous or invalid.
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
    """Read all sentences of the WSJ sample of the Penn Treebank that NLTK distributes, file by file.

    Line numbers are counted within each file.

    Args:
        path: NLTK's archive treebank.zip, or a folder with .mrg files.

    Raises:
        UserError: If there are no parses, or a file is invalid.
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
    """Return the sentences with the tags of their entities in another scheme, or in the same one.

    Args:
        sentences: Sentences of one file.
        source: Scheme of their tags.
        target: Scheme of the returned tags.
        path: Name of the file, for error messages.
        repair: Whether to read tags that break the rules as `conlleval` does; see `tag_schemes.convert_tags`.

    Raises:
        UserError: If tags do not follow `source` and `repair` is False; the message names the file and line.
    """
    converted = []
    for sentence in sentences:
        problem = None if repair else first_problem(sentence.tags, source)
        if problem is not None:
            raise bad_line(path, sentence.lines[problem[0]], problem[1])
        # Without `repair`, the check above has already raised the error, which names the line.
        tags = convert_tags(sentence.tags, source, target, repair=True)
        converted.append(sentence._replace(tags=tags))
    return converted


class _Sentences:
    """A collector of sentences while a file is read: `add` appends a word, `end` closes the sentence."""

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
