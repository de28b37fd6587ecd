"""Read files of tagged sentences, columns and CoNLL-U, and add tags to lines.

Columns are separated by tabs in a line that has a tab, and by spaces in any other line. An empty
line ends a sentence. CoNLL-U has ten columns separated by tabs, and besides words also lines for
ranges (`2-3`) and empty nodes (`8.1`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from dynskip_jax.data.files import PathLike, iter_lines, place
from dynskip_jax.terminal.messages import bad_file, bad_line, checked_label, normalized, quoted

Format = Literal["columns", "conllu"]

CONLLU_COLUMNS = {"upos": 3, "xpos": 4}
_UNSPECIFIED = "_"
_WORD_COLUMN = {"columns": 0, "conllu": 1}
_END = re.compile(r"[ \t]*|-DOCSTART-(?:[ \t].*)?")
_NO_WORD = re.compile(r"[0-9]{1,9}[-.][0-9]{1,9}")  # id of a range or an empty node
# Matches `# text = …` and `# newdoc` of CoNLL-U, and `# id …` of MultiCoNER.
_KEYED_COMMENT = re.compile(r"#\s*(?:[\w.:-]+\s*=(?:\s|$)|(?:newdoc|newpar)(?:\s|$)|id\s)")


class TaggedSentence(NamedTuple):
    """A sentence with a tag for each word, its line from 1, and the values of other columns."""

    words: list[str]
    tags: list[str]
    lines: list[int]
    columns: Sequence[tuple[str, ...]] = ()
    file: str = ""


class LinesToTag(NamedTuple):
    """Consecutive lines of a file, with the words of at most one sentence."""

    lines: list[str]
    words: list[str]
    places: list[int]  # of the words in `lines`
    columns: list[tuple[str, ...]]  # contents of the other requested columns
    start: int = 1  # number of the first line, counted from 1


def lines_to_tag(
    lines: Iterable[str],
    format: Format = "columns",
    *,
    beside: Sequence[int] = (),
    where: str = "standard input",
) -> Iterator[LinesToTag]:
    """Yield the sentences of a file with all its lines, so that `tagged_lines` can add tags.

    A line of columns is a comment only before the first word of a sentence, and only if it looks
    like `# key = value` or `# id …`. `beside` are the other columns to read; their values are in
    NFC.
    """
    columns = (_WORD_COLUMN[format], *beside)
    block = LinesToTag([], [], [], [])
    width = 0
    for number, line in enumerate(lines, 1):
        # A sentence ends at a blank line, or at the mark between documents.
        is_end = not line or _END.fullmatch(line) is not None
        fields = None
        if format == "conllu" and not (is_end or line.startswith("#")):
            fields = _conllu_columns(line, len(block.words) + 1, where, number)
        elif format == "columns" and not is_end and (block.words or not _KEYED_COMMENT.match(line)):
            fields = _columns(line)
        if fields is not None:
            # The first word's line tells how many columns all have.
            width = width or _checked_width(len(fields), columns, where, number)
            if len(fields) != width:
                problem = f"{len(fields)} columns, but the first line has {width}"
                raise bad_line(where, number, problem)
            word, *others = (fields[column] for column in columns)
            if not word.strip(" "):
                problem = f"the word in column {columns[0]} is empty"
                raise bad_line(where, number, f"{problem}: columns are separated by single tabs")
            block.words.append(word)
            block.places.append(len(block.lines))
            block.columns.append(tuple(map(normalized, others)))
        block.lines.append(line)
        if is_end:
            yield block
            block = LinesToTag([], [], [], [], number + 1)
    if block.lines:
        yield block


def _columns(line: str) -> list[str]:
    """Return the columns of a line: split at tabs if the line has one, otherwise at spaces."""
    if "\t" in line:
        return [field.strip(" ") for field in line.split("\t")]
    return re.split(" +", line.strip(" "))  # not split(), for words with a no-break space


def _conllu_columns(line: str, word: int, where: str, number: int) -> list[str] | None:
    """Return the columns of a line with the word of this number; None for a line of no word."""
    fields = line.split("\t")
    if len(fields) != 10:
        raise bad_line(
            where, number, f"{len(fields)} columns separated by tabs, but CoNLL-U has 10"
        )
    if _NO_WORD.fullmatch(fields[0]):
        return None
    if fields[0] != str(word):
        raise bad_line(where, number, f"word {word} has the id {quoted(fields[0])}")
    return fields


def _checked_width(width: int, columns: Sequence[int], where: str, number: int) -> int:
    """Return the number of columns of a file, which has all that are read."""
    for column in columns:
        if not -width <= column < width:
            raise bad_line(where, number, f"no column {column} among {width}, counted from 0")
    if width == 1 < len(columns):
        raise bad_line(where, number, "1 column, but words and tags need 2")
    if len({column % width for column in columns}) < len(columns):
        problem = f"columns of words and tags cannot be read twice, and the line has {width}"
        raise bad_line(where, number, f"{problem}: leave them out of --columns")
    return width


def tagged_lines(block: LinesToTag, tags: Sequence[str]) -> list[str]:
    """Return all lines of a block, with a column for the tag added to the line of each word."""
    lines = list(block.lines)
    for at, tag in zip(block.places, tags, strict=True):
        line = lines[at]
        lines[at] = f"{line}\t{tag}" if "\t" in line else f"{line.rstrip(' ')} {tag}"
    return lines


def read_columns(
    path: PathLike,
    *,
    member: str | None = None,
    format: Format = "columns",
    tag: int = -1,
    beside: Sequence[int] = (),
) -> list[TaggedSentence]:
    """Read a file with a word per line and its tag in a column; `beside` are other columns.

    Columns are counted from 0, or from the end if negative. `member` is a file within a zip
    archive.
    """
    where = place(path, member)
    sentences = []
    how = dict(beside=(tag, *beside), where=where)
    for block in lines_to_tag(iter_lines(path, member), format, **how):
        if not block.words:
            continue
        lines = [block.start + at for at in block.places]
        tags = [first for first, *_ in block.columns]
        for word, tag_of_word, line in zip(block.words, tags, lines, strict=True):
            if format == "conllu" and tag_of_word == _UNSPECIFIED:
                raise bad_line(where, line, f"the word {quoted(word)} has no tag in column {tag}")
            checked_label(tag_of_word, "tag", where, line)
        others = [tuple(rest) for _, *rest in block.columns] if beside else ()
        sentences.append(TaggedSentence(block.words, tags, lines, others, where))
    if not sentences:
        raise bad_file(where, "holds no sentence: is it the right file?")
    return sentences
