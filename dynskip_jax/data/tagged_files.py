"""Read files of tagged sentences: columns, CoNLL-U, word/tag pairs and bracketed trees; add tags to lines.

Columns are separated by tabs in a line that has a tab, and by spaces in any other line. An empty line ends a
sentence. CoNLL-U has ten columns separated by tabs, and besides words also lines for ranges (`2-3`) and empty
nodes (`8.1`).
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from dynskip_jax.data.files import PathLike, iter_lines, place
from dynskip_jax.data.messages import bad_file, bad_line, quoted

Format = Literal["columns", "conllu"]

CONLLU_COLUMNS = {"upos": 3, "xpos": 4, "misc": 9}
UNSPECIFIED = "_"
_CONLLU_WIDTH, _CONLLU_FORM = 10, 1
_DOCUMENT_START = "-DOCSTART-"
_ENTITY = "NER="  # beginning of the entry of MISC that has the tag of an entity
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_EMPTY_NODE = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")
# Matches `# text = …` and `# newdoc` of CoNLL-U, and `# id …` of MultiCoNER.
_KEYED_COMMENT = re.compile(r"#\s*(?:[\w.:-]+\s*=(?:\s|$)|(?:newdoc|newpar)(?:\s|$)|id\s)")
_BLANKS = " \t\n\r\f\v"  # not \s: some words of treebanks contain a no-break space
_TREE_TOKEN = re.compile(rf"[()]|[^{_BLANKS}()]+")


class TaggedSentence(NamedTuple):
    """A sentence with a tag for each word.

    Attributes:
        words: Words as the file spells them.
        tags: Tag of each word.
        lines: Line number of each word in its file, counted from 1.
        columns: Values of other columns for each word; empty if no other columns were requested.
    """

    words: list[str]
    tags: list[str]
    lines: list[int]
    columns: Sequence[tuple[str, ...]] = ()


class LinesToTag(NamedTuple):
    """Consecutive lines of a file, with the words of at most one sentence.

    Attributes:
        lines: All lines, without their line ends, including comments and the empty line after the sentence.
        words: Words to tag.
        places: Index in `lines` of each word's line.
        columns: For each word, the contents of the other requested columns.
    """

    lines: list[str]
    words: list[str]
    places: list[int]
    columns: list[tuple[str, ...]]


class Row(NamedTuple):
    """A line of a file: its number from 1, its text, and its columns if it contains a word."""

    number: int
    line: str
    fields: list[str] | None = None
    ends_sentence: bool = False


class TreePiece(NamedTuple):
    """A piece of a tree: the start or end of a bracket with children, or a leaf."""

    kind: Literal["open", "close", "leaf"]
    line: int
    label: str = ""
    word: str = ""


def column_rows(lines: Iterable[str]) -> Iterator[Row]:
    """Yield a row for each line of a file of columns.

    A line that begins with `#` is a comment only before the first word of a sentence, and only if it looks
    like `# key = value` or `# id …`, if its first column begins with `# `, or by its number of columns.
    """
    numbered, width, head = enumerate(lines, 1), None, []
    for number, line in numbered:
        head.append((number, line))
        if line.strip(" \t") and not line.startswith(("#", _DOCUMENT_START)):
            width = len(_columns(line))
            break
    is_start = True  # no word of the sentence was read
    for number, line in itertools.chain(head, numbered):
        fields = _columns(line)
        if not line.strip(" \t") or fields[0].partition(" ")[0] == _DOCUMENT_START:
            yield Row(number, line, ends_sentence=True)
            is_start = True
            continue
        has_text_beside = fields[0][1:2] == " "
        if (
            is_start
            and line.startswith("#")
            and (len(fields) != (width or len(fields)) or has_text_beside or _KEYED_COMMENT.match(line))
        ):
            yield Row(number, line)
            continue
        yield Row(number, line, fields)
        is_start = False


def conllu_rows(lines: Iterable[str], where: str) -> Iterator[Row]:
    """Yield a row for each line of a CoNLL-U file; comments, ranges and empty nodes are not words."""
    words, end_of_range, number = 0, 0, 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            _check_range(end_of_range, words, where, number)
            words, end_of_range = 0, 0
            yield Row(number, line, ends_sentence=True)
            continue
        if line.startswith("#"):
            yield Row(number, line)
            continue
        fields = line.split("\t")
        if len(fields) != _CONLLU_WIDTH:
            problem = f"{len(fields)} columns separated by tabs, but CoNLL-U has {_CONLLU_WIDTH}"
            raise bad_line(where, number, problem)
        name = fields[0]
        if not fields[_CONLLU_FORM].strip():
            raise bad_line(where, number, f"the form of the id {quoted(name)}, column 1, is empty")
        if found := _RANGE.fullmatch(name):
            start, end = map(int, found.groups())
            if not max(words, end_of_range) < start < end or start != words + 1:
                problem = f"the range {name} cannot stand before word {words + 1}: expected {words + 1}-N"
                raise bad_line(where, number, f"{problem} with N above {words + 1}")
            end_of_range = end
            yield Row(number, line)
        elif _EMPTY_NODE.fullmatch(name):
            yield Row(number, line)
        elif name == str(words + 1):
            words += 1
            yield Row(number, line, fields)
        else:
            raise bad_line(where, number, f"word {words + 1} has the id {quoted(name)}")
    _check_range(end_of_range, words, where, number)


def rows_of(lines: Iterable[str], format: Format, where: str) -> Iterator[Row]:
    """Return an iterator over the rows of a file in either format."""
    return conllu_rows(lines, where) if format == "conllu" else column_rows(lines)


def lines_to_tag(
    lines: Iterable[str],
    format: Format = "columns",
    *,
    word: int = 0,
    beside: Sequence[int] = (),
    where: str = "standard input",
) -> Iterator[LinesToTag]:
    """Yield the sentences of a file with all its lines, so that `tagged_lines` can add tags."""
    word = _CONLLU_FORM if format == "conllu" else word
    block = LinesToTag([], [], [], [])
    for row in rows_of((line.rstrip("\r\n") for line in lines), format, where):
        block.lines.append(row.line)
        if row.fields is not None:
            text, *others = _pick(row, (word, *beside), where)
            block.words.append(text)
            block.places.append(len(block.lines) - 1)
            block.columns.append(tuple(others))
        elif row.ends_sentence:
            yield block
            block = LinesToTag([], [], [], [])
    if block.lines:
        yield block


def tagged_lines(
    block: LinesToTag,
    tags: Sequence[str],
    format: Format = "columns",
    *,
    column: int = CONLLU_COLUMNS["upos"],
) -> list[str]:
    """Return all lines of a block, with a tag added to the line of each word.

    `columns` adds a column. `conllu` replaces the contents of `column`; in MISC (9), only the entry `NER=…`.
    """
    lines = list(block.lines)
    for at, tag in zip(block.places, tags, strict=True):
        line = lines[at]
        if format == "columns":
            lines[at] = f"{line}\t{tag}" if "\t" in line else f"{line.rstrip(' ')} {tag}"
            continue
        fields = line.split("\t")
        if column == CONLLU_COLUMNS["misc"]:
            entries = [e for e in fields[column].split("|") if e != UNSPECIFIED and not e.startswith(_ENTITY)]
            tag = "|".join([*entries, f"{_ENTITY}{tag}"])
        fields[column] = tag
        lines[at] = "\t".join(fields)
    return lines


def entity_of_misc(misc: str) -> str:
    """Return the tag in the entry `NER=…` of CoNLL-U's column MISC; `_` if there is none."""
    tags = [entry.removeprefix(_ENTITY) for entry in misc.split("|") if entry.startswith(_ENTITY)]
    return tags[0] if tags else UNSPECIFIED


def read_columns(
    path: PathLike,
    *,
    member: str | None = None,
    format: Format = "columns",
    word: int = 0,
    tag: int = -1,
    beside: Sequence[int] = (),
) -> list[TaggedSentence]:
    """Read a file with one word per line and its tag in another column; `beside` are other columns to read.

    Columns are counted from 0, or from the end if negative. `member` is a file within a zip archive.
    """
    where, width = place(path, member), None
    builder = _Sentences(where)
    for row in rows_of(iter_lines(path, member), format, where):
        if row.ends_sentence:
            builder.end()
        if row.fields is None:
            continue
        text, chosen, *others = _pick(row, (word, tag, *beside), where)
        if width is None:
            width = len(row.fields)
            for content, column in (("words", word % width), ("tags", tag % width)):
                if any(other % width == column for other in beside):
                    problem = f"column {column} has the {content}, and cannot be read as another column"
                    raise bad_line(where, row.number, f"{problem}: leave it out of --columns")
        if len(row.fields) != width:
            problem = f"{len(row.fields)} columns, but the first line has {width}"
            raise bad_line(where, row.number, problem)
        if format == "conllu" and chosen == UNSPECIFIED:
            raise bad_line(where, row.number, f"the word {quoted(text)} has no tag in column {tag}")
        builder.add(text, chosen, row.number, tuple(others))
    return builder.finished()


def read_conllu(
    path: PathLike, *, member: str | None = None, tag: Literal["upos", "xpos"] = "upos"
) -> list[TaggedSentence]:
    """Read the syntactic words of a CoNLL-U file, with their universal tags or those of the treebank."""
    column = CONLLU_COLUMNS[tag]
    return read_columns(path, member=member, format="conllu", word=_CONLLU_FORM, tag=column)


def read_word_tag(path: PathLike, *, member: str | None = None) -> list[TaggedSentence]:
    r"""Read `word/tag` pairs, one sentence per line, as in the Brown corpus; `\/` and `\*` stand for / and *.

    Brackets around noun phrases ([ and ]) and rulers (=====) of the tagged WSJ files are left out.
    """
    where = place(path, member)
    builder = _Sentences(where)
    for number, line in enumerate(iter_lines(path, member), 1):
        for pair in line.split():
            if pair in ("[", "]") or not pair.strip("="):
                continue
            word, _, tag = pair.rpartition("/")
            if not word or not tag:
                raise bad_line(where, number, f"{quoted(pair)} is no word/tag pair")
            builder.add(unescaped(word), tag, number)
        builder.end()
    return builder.finished()


def read_parses(path: PathLike, *, member: str | None = None) -> list[TaggedSentence]:
    r"""Read bracketed parses, as in the Penn Treebank's .mrg files; traces (`-NONE-`) are left out."""
    where = place(path, member)
    builder, depth = _Sentences(where), 0
    for piece in tree_pieces(enumerate(iter_lines(path, member), 1), where):
        depth += {"open": 1, "close": -1, "leaf": 0}[piece.kind]
        if piece.kind == "leaf" and piece.label != "-NONE-":
            builder.add(unescaped(piece.word), piece.label, piece.line)
        if not depth:
            builder.end()
    return builder.finished()


def tree_pieces(lines: Iterable[tuple[int, str]], where: PathLike) -> Iterator[TreePiece]:
    """Yield the pieces of trees such as `(S (NN yes))` in order, from numbered lines.

    The word of a leaf may be a bracket itself, as in `(-LRB- ()`, if whitespace follows the label.
    """
    tokens = (
        (number, found[0], found.start() == 0 or line[found.start() - 1] in _BLANKS)
        for number, line in lines
        for found in _TREE_TOKEN.finditer(line)
    )
    ahead: list[tuple[int, str, bool]] = []  # line, text, and whether whitespace or a line start precedes it
    opened: list[int] = []

    while True:
        ahead.extend(itertools.islice(tokens, 4 - len(ahead)))
        kinds = "".join(text if text in "()" else "w" for _, text, _ in ahead)
        if not kinds:
            break
        number, text, _ = ahead[0]
        if kinds[0] == ")":
            if not opened:
                raise bad_line(where, number, "a bracket closes that none has opened")
            opened.pop()
            yield TreePiece("close", number)
            del ahead[:1]
        elif kinds[0] == "w":
            inside = "a bracket holds a label and one word, or other brackets"
            outside = "every word stands in brackets"
            raise bad_line(where, number, f"unexpected {quoted(text)}: {inside if opened else outside}")
        elif kinds == "(ww)" or (kinds in ("(w()", "(w))") and ahead[2][2]):
            yield TreePiece("leaf", number, ahead[1][1], ahead[2][1])
            del ahead[:4]
        elif kinds[1:2] == ")":
            raise bad_line(
                where, number, "an empty bracket: a bracket holds a label and a word, or other brackets"
            )
        elif kinds.startswith("(w)"):
            raise bad_line(
                where, number, f"{quoted(ahead[1][1])} has no words: it is a label or a word alone"
            )
        else:
            has_label = kinds[1:2] == "w"
            opened.append(number)
            yield TreePiece("open", number, ahead[1][1] if has_label else "")
            del ahead[: 1 + has_label]
    if opened:
        raise bad_line(where, opened[0], "the bracket that opens here is not closed")


def unescaped(word: str) -> str:
    r"""Return a word of a treebank with `\/` and `\*` replaced by / and *."""
    return word.replace("\\/", "/").replace("\\*", "*")


class _Sentences:
    """A collector of sentences while a file is read: `add` appends a word, `end` closes the sentence."""

    def __init__(self, where: str):
        self.where = where
        self.closed: list[TaggedSentence] = []
        self.open = TaggedSentence([], [], [], [])

    def add(self, word: str, tag: str, line: int, columns: tuple[str, ...] = ()) -> None:
        """Append a word; its tag must be printable, because tags are printed to terminals and tables."""
        if not tag.strip():
            raise bad_line(self.where, line, f"the tag of the word {quoted(word)} is empty")
        if not tag.isprintable():
            problem = f"the tag {quoted(tag)} has characters that do not print: replace them"
            raise bad_line(self.where, line, problem)
        for values, value in zip(self.open[:3], (word, tag, line), strict=True):
            values.append(value)
        if columns:
            self.open.columns.append(columns)

    def end(self) -> None:
        if self.open.words:
            self.closed.append(self.open)
            self.open = TaggedSentence([], [], [], [])

    def finished(self) -> list[TaggedSentence]:
        self.end()
        if not self.closed:
            raise bad_file(self.where, "holds no sentence: is it the right file?")
        return self.closed


def _columns(line: str) -> list[str]:
    """Return the columns of a line: split at tabs if the line has one, otherwise at spaces."""
    if "\t" in line:
        return [field.strip(" ") for field in line.split("\t")]
    return re.split(" +", line.strip(" "))  # not split(), for words with a no-break space


def _pick(row: Row, columns: Sequence[int], where: str) -> list[str]:
    """Return the fields of `row` in these columns; the first one is a word."""
    width = len(row.fields)
    for column in columns:
        if not -width <= column < width:
            raise bad_line(where, row.number, f"no column {column} among {width}, counted from 0")
    if not row.fields[columns[0]]:
        problem = f"the word in column {columns[0]} is empty: columns are separated by single tabs"
        raise bad_line(where, row.number, problem)
    return [row.fields[column] for column in columns]


def _check_range(end: int, words: int, where: str, number: int) -> None:
    if end > words:
        raise bad_line(where, number, f"the sentence ends after word {words}, within a range up to {end}")
