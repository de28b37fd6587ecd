"""Parse files with one word per line into rows of columns, and add tags to such lines.

Columns are separated by tabs in a line that has a tab, and by spaces in any other line. An empty line ends a
sentence. CoNLL-U has ten columns separated by tabs. In addition to the lines of words, it has lines for
ranges (`2-3`) and empty nodes (`8.1`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from dynskip_jax.data.messages import bad_line, quoted

Format = Literal["columns", "conllu"]

DOCUMENT_START = "-DOCSTART-"
CONLLU_COLUMNS = {"upos": 3, "xpos": 4, "misc": 9}
CONLLU_WIDTH = 10
CONLLU_FORM = 1
UNSPECIFIED = "_"
_ENTITY = "NER="  # beginning of the entry of MISC that has the tag of an entity
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_EMPTY_NODE = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")
# Matches `# text = …` and `# newdoc` of CoNLL-U, and `# id …` of MultiCoNER.
_KEYED_COMMENT = re.compile(r"#\s*(?:[\w.:-]+\s*=(?:\s|$)|(?:newdoc|newpar)(?:\s|$)|id\s)")


class Row(NamedTuple):
    """A line of a file of columns.

    Attributes:
        number: Line number, counted from 1.
        line: Text of the line, without its line end.
        fields: Contents of the columns; None if the line does not contain a word.
        ends_sentence: Whether the line ends the current sentence.
    """

    number: int
    line: str
    fields: list[str] | None = None
    ends_sentence: bool = False


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


def split_columns(line: str) -> list[str]:
    """Return the columns of a line: split at tabs if the line has one, otherwise at spaces."""
    if "\t" in line:
        return [field.strip(" ") for field in line.split("\t")]
    # Not split(): some words of corpora contain a no-break space.
    return re.split(" +", line.strip(" "))


def column_rows(lines: Iterable[str]) -> Iterator[Row]:
    """Yield a row for each line of a file of columns.

    Empty lines, lines that begin with `-DOCSTART-`, and comments do not contain a word. Lines that begin with
    `#` are comments only before the first word of a sentence, and only if one of these conditions holds:

    * the line looks like `# key = value`, `# newdoc`, `# newpar` or `# id …`;
    * its number of columns differs from that of the file's words;
    * it has a tab, and its first column begins with `# `.

    Any other line that begins with `#` contains a word.
    """
    width, waiting, before = None, [], True
    for number, line in enumerate(lines, 1):
        waiting.append((number, line))
        # The first word that does not begin with `#` determines the number of columns.
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
    """Yield a row for each line of a CoNLL-U file; comments, ranges and empty nodes are not words.

    Args:
        lines: Lines of the file.
        where: Name of the file, for error messages.

    Raises:
        UserError: A line does not have ten columns, has an empty form, or has an id that does not follow the
            previous one; or a sentence ends within a range.
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
    """Yield the sentences of a file together with all its lines, so that `tagged_lines` can add tags.

    The words are those that `read_columns` and `read_conllu` read. The lines of all blocks together are the
    lines of the file.

    Args:
        lines: Lines of the file, with or without line ends; they are read lazily.
        format: Format of the lines.
        word: Column of the words, counted from 0; ignored for CoNLL-U, whose column of words is fixed.
        beside: Other columns to read, such as that of the part-of-speech tags.
        where: Name of the file, for error messages.

    Raises:
        UserError: A line lacks a requested column, has an empty word, or is not valid CoNLL-U.
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
    """Return all lines of a block, with tags added to the lines of words.

    Args:
        block: A block of `lines_to_tag`.
        tags: One tag for each word.
        format: `columns` adds a column to the line of each word; `conllu` replaces the contents of a column.
        column: Column to replace for `conllu`, counted from 0. In the column MISC (9) only the entry `NER=…`
            is replaced or added.
    """
    lines = list(block.lines)
    for place, tag in zip(block.places, tags, strict=True):
        line = lines[place]
        if format == "conllu":
            fields = line.split("\t")
            fields[column] = _with_entity(fields[column], tag) if column == CONLLU_COLUMNS["misc"] else tag
            lines[place] = "\t".join(fields)
        else:
            lines[place] = f"{line}\t{tag}" if "\t" in line else f"{line.rstrip(' ')} {tag}"
    return lines


def entity_of_misc(misc: str) -> str:
    """Return the tag in the entry `NER=…` of CoNLL-U's column MISC; `_` if there is none."""
    tags = [entry.removeprefix(_ENTITY) for entry in misc.split("|") if entry.startswith(_ENTITY)]
    return tags[0] if tags else UNSPECIFIED


def _with_entity(misc: str, tag: str) -> str:
    """Return the contents of CoNLL-U's column MISC with the entry `NER=tag` in place of an earlier one."""
    others = [entry for entry in misc.split("|") if entry != UNSPECIFIED and not entry.startswith(_ENTITY)]
    return "|".join([*others, f"{_ENTITY}{tag}"])


def pick_columns(row: Row, columns: Sequence[int], where: str) -> list[str]:
    """Return the fields of `row` in these columns.

    Raises:
        UserError: The row lacks one of the columns; the message contains the line number.
    """
    width = len(row.fields)
    for column in columns:
        if not -width <= column < width:
            raise bad_line(where, row.number, f"no column {column} among {width}, counted from 0")
    return [row.fields[column] for column in columns]


def check_word(row: Row, word: str, column: int, where: str) -> None:
    """Raise a `UserError` if a word is empty, for example between two adjacent tabs."""
    if not word:
        problem = f"the word in column {column} is empty: columns are separated by single tabs"
        raise bad_line(where, row.number, problem)


def check_tag(number: int, tag: str, word: str, where: str) -> None:
    """Raise a `UserError` if a tag is empty or not printable: tags are printed to terminals and tables."""
    if not tag.strip():
        raise bad_line(where, number, f"the tag of the word {quoted(word)} is empty")
    if not tag.isprintable():
        raise bad_line(where, number, f"the tag {quoted(tag)} has characters that do not print: replace them")


def _column_row(number: int, line: str, width: int, before: bool) -> Row:
    """Return the row of a line; `before` is True if no word of the line's sentence precedes it."""
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
