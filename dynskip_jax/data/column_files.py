"""Files with a word on each line: which lines are words, what stands in their columns, and how to add tags.

Columns are separated by tabs in a line that has a tab, else by spaces. An empty line ends a sentence. CoNLL-U
has ten columns separated by tabs, and lines for ranges (`2-3`) and empty nodes (`8.1`) beside those of words.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from dynskip_jax.data.messages import bad_line, quoted

Format = Literal["columns", "conllu"]

DOCUMENT_START = "-DOCSTART-"
CONLLU_COLUMNS = {"upos": 3, "xpos": 4}
CONLLU_WIDTH = 10
CONLLU_FORM = 1
UNSPECIFIED = "_"
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_EMPTY_NODE = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")
# `# text = …` and `# newdoc` of CoNLL-U, `# id …` of MultiCoNER.
_KEYED_COMMENT = re.compile(r"#\s*(?:[\w.:-]+\s*=(?:\s|$)|(?:newdoc|newpar)(?:\s|$)|id\s)")


class Row(NamedTuple):
    """A line of a file of columns.

    Attributes:
        number: counted from 1.
        line: as the file has it, without its end.
        fields: what stands in its columns; None for a line that is no word.
        ends_sentence: whether no sentence goes on past this line.
    """

    number: int
    line: str
    fields: list[str] | None = None
    ends_sentence: bool = False


class LinesToTag(NamedTuple):
    """Consecutive lines of a file, with the words of one sentence at most.

    Attributes:
        lines: all lines, as they were read, with comments and the empty line that ends the sentence.
        words: the words to tag.
        places: the line of each word, an index of `lines`.
        columns: what stands beside each word in the other columns that were asked for.
    """

    lines: list[str]
    words: list[str]
    places: list[int]
    columns: list[tuple[str, ...]]


def split_columns(line: str) -> list[str]:
    """Return the columns of a line, separated by tabs where it has one, else by spaces."""
    if "\t" in line:
        return [field.strip(" ") for field in line.split("\t")]
    # Not split() of all whitespace: some words of corpora hold a no-break space.
    return re.split(" +", line.strip(" "))


def column_rows(lines: Iterable[str]) -> Iterator[Row]:
    """Yield a row for each line of a file of columns.

    Empty lines, lines that begin with `-DOCSTART-`, and comments before a sentence are no words. A line that
    begins with `#` may also be a word. It is a comment where it looks like `# key = value` or `# newdoc`, has
    another number of columns than the file's words, or has a tab and a first column such as `# id 7`.
    """
    width, waiting, before = None, [], True
    for number, line in enumerate(lines, 1):
        waiting.append((number, line))
        # The first word that is no `#` tells how many columns words have.
        if width is None and line.strip(" \t") and not line.startswith(("#", DOCUMENT_START)):
            width = len(split_columns(line))
        if width is not None:
            for row in (_column_row(*each, width, before) for each in waiting):
                yield row
                before = row.fields is None
            waiting = []
    for number, line in waiting:
        row = _column_row(number, line, len(split_columns(line)), before)
        yield row
        before = row.fields is None


def conllu_rows(lines: Iterable[str], where: str) -> Iterator[Row]:
    """Yield a row for each line of a CoNLL-U file; comments, ranges and empty nodes are no words.

    Args:
        lines: of the file.
        where: the file, for errors.

    Raises:
        UserError: a line has not ten columns, an empty form, or an id that does not follow the one before.
    """
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
        if len(fields) != CONLLU_WIDTH:
            problem = f"{len(fields)} columns separated by tabs, but CoNLL-U has {CONLLU_WIDTH}"
            raise bad_line(where, number, problem)
        name = fields[0]
        if not fields[CONLLU_FORM].strip():
            raise bad_line(
                where, number, f"the form of the id {quoted(name)}, column {CONLLU_FORM}, is empty"
            )
        if _EMPTY_NODE.fullmatch(name):
            yield Row(number, line)
        elif found := _RANGE.fullmatch(name):
            start, end = map(int, found.groups())
            if not max(words, end_of_range) < start < end or start != words + 1:
                problem = f"the range {name} cannot stand before word {words + 1}: expected {words + 1}-N"
                raise bad_line(where, number, f"{problem} with N above {words + 1}")
            end_of_range = end
            yield Row(number, line)
        elif name == str(words + 1):
            words += 1
            yield Row(number, line, fields)
        else:
            raise bad_line(where, number, f"word {words + 1} has the id {quoted(name)}")
    _check_range(end_of_range, words, where, number)


def lines_to_tag(
    lines: Iterable[str],
    format: Format = "columns",
    *,
    word: int = 0,
    beside: Sequence[int] = (),
    where: str = "standard input",
) -> Iterator[LinesToTag]:
    """Yield the sentences of a file together with all its lines, so that tags can be added to them.

    Words are those that `read_columns` and `read_conllu` read. The lines of all answers together are the
    lines of the file: see `tagged_lines`.

    Args:
        lines: of the file, with or without their ends; read as they come.
        format: what they hold.
        word: the column of words, counted from 0; CoNLL-U has its own.
        beside: other columns that are read, such as that of parts of speech.
        where: the file, for errors.

    Raises:
        UserError: a line lacks a column that is read, has an empty word, or breaks the rules of CoNLL-U.
    """
    lines = (line.rstrip("\r\n") for line in lines)
    if format == "conllu":
        rows, word = conllu_rows(lines, where), CONLLU_FORM
    else:
        rows = column_rows(lines)
    block = LinesToTag([], [], [], [])
    for row in rows:
        block.lines.append(row.line)
        if row.fields is not None:
            text, *others = pick_columns(row, (word, *beside), where)
            check_word(row, text, word, where)
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
    """Return the lines of a block with the tags of its words, as many lines as were read.

    Args:
        block: see `lines_to_tag`.
        tags: one for each word.
        format: `columns` adds a column to each line of a word; `conllu` replaces what a column holds.
        column: the column that is replaced, counted from 0.
    """
    lines = list(block.lines)
    for place, tag in zip(block.places, tags, strict=True):
        line = lines[place]
        if format == "conllu":
            fields = line.split("\t")
            fields[column] = tag
            lines[place] = "\t".join(fields)
        else:
            lines[place] = f"{line}\t{tag}" if "\t" in line else f"{line.rstrip(' ')} {tag}"
    return lines


def pick_columns(row: Row, columns: Sequence[int], where: str) -> list[str]:
    """Return the fields in these columns.

    Raises:
        UserError: the row has no such column; the message names the line.
    """
    width = len(row.fields)
    for column in columns:
        if not -width <= column < width:
            raise bad_line(where, row.number, f"no column {column} among {width}, counted from 0")
    return [row.fields[column] for column in columns]


def check_word(row: Row, word: str, column: int, where: str) -> None:
    """Raise a `UserError` if a word is empty, which happens where two tabs stand side by side."""
    if not word:
        problem = f"the word in column {column} is empty: columns are separated by single tabs"
        raise bad_line(where, row.number, problem)


def check_tag(number: int, tag: str, word: str, where: str) -> None:
    """Raise a `UserError` if a tag is empty or would not print: tags are written to terminals and tables."""
    if not tag.strip():
        raise bad_line(where, number, f"the tag of the word {quoted(word)} is empty")
    if not tag.isprintable():
        raise bad_line(where, number, f"the tag {quoted(tag)} has characters that do not print: replace them")


def _column_row(number: int, line: str, width: int, before: bool) -> Row:
    """The row of a line; `before` says whether no word of its sentence came before it."""
    if not line.strip(" \t"):
        return Row(number, line, ends_sentence=True)
    fields = split_columns(line)
    if fields[0].partition(" ")[0] == DOCUMENT_START:
        return Row(number, line, ends_sentence=True)
    if before and line.startswith("#"):
        has_text_beside = len(fields[0]) > 1 and fields[0][1] == " "
        if len(fields) != width or has_text_beside or _KEYED_COMMENT.match(line):
            return Row(number, line)
    return Row(number, line, fields)


def _check_range(end: int, words: int, where: str, number: int) -> None:
    if end > words:
        raise bad_line(where, number, f"the sentence ends after word {words}, within a range up to {end}")
