"""Read files of tagged sentences, columns and CoNLL-U, and add tags to lines.

Columns are separated by tabs in a line that has a tab, and by spaces in any other line. An empty
line ends a sentence. CoNLL-U has besides words also comments, and lines for ranges (`2-3`) and
empty nodes (`8.1`).
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from dynskip_jax.data.files import PathLike, iter_lines
from dynskip_jax.terminal.messages import bad_file, bad_line, checked_label, normalized, quoted

Format = Literal["columns", "conllu"]

CONLLU_COLUMNS = {"upos": 3, "xpos": 4}
_UNSPECIFIED = "_"
_WORD_COLUMN = {"columns": 0, "conllu": 1}
_END = re.compile(r"[ \t]*|-DOCSTART-(?:[ \t].*)?")
_NO_WORD = re.compile(r"#|[0-9]+[-.][0-9]+\t")  # of CoNLL-U


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

    `beside` are the other columns to read; their values are in NFC.
    """
    columns = (_WORD_COLUMN[format], *beside)
    block = LinesToTag([], [], [], [])
    width = 0
    for number, line in enumerate(lines, 1):
        # A sentence ends at a blank line, or at the mark between documents.
        is_end = _END.fullmatch(line) is not None
        if not is_end and not (format == "conllu" and _NO_WORD.match(line)):
            # Not split(), for words with a no-break space.
            fields = re.split(" *\t *" if "\t" in line else " +", line.strip(" "))
            # The first word's line tells how many columns all have.
            width = width or len(fields)
            if len(fields) != width or width < len(columns):
                problem = f"{len(fields)} columns, not {max(width, len(columns))}"
                raise bad_line(where, number, problem)
            if not all(-width <= column < width for column in columns):
                problem = f"no column {max(columns, key=abs)} among {width}, counted from 0"
                raise bad_line(where, number, problem)
            word, *others = (fields[column] for column in columns)
            if not word:
                raise bad_line(where, number, f"the word in column {columns[0]} is empty")
            block.words.append(word)
            block.places.append(len(block.lines))
            block.columns.append(tuple(map(normalized, others)))
        block.lines.append(line)
        if is_end:
            yield block
            block = LinesToTag([], [], [], [], number + 1)
    if block.lines:
        yield block


def tagged_lines(block: LinesToTag, tags: Sequence[str]) -> list[str]:
    """Return all lines of a block, with a column for the tag added to the line of each word."""
    lines = list(block.lines)
    for at, tag in zip(block.places, tags, strict=True):
        line = lines[at]
        lines[at] = f"{line}\t{tag}" if "\t" in line else f"{line.rstrip(' ')} {tag}"
    return lines


def read_columns(
    path: PathLike,
    lines: Iterable[str] | None = None,
    *,
    format: Format = "columns",
    tag: int = -1,
    beside: Sequence[int] = (),
) -> list[TaggedSentence]:
    """Read a file with a word per line and its tag in a column; `beside` are other columns.

    Columns are counted from 0, or from the end if negative. `lines` are those of the file, if they
    are not read here.
    """
    where = os.fspath(path)
    sentences = []
    given = lines or iter_lines(path)
    for block in lines_to_tag(given, format, beside=(tag, *beside), where=where):
        if not block.words:
            continue
        numbers = [block.start + at for at in block.places]
        tags = [first for first, *_ in block.columns]
        for word, tag_of_word, number in zip(block.words, tags, numbers, strict=True):
            if format == "conllu" and tag_of_word == _UNSPECIFIED:
                raise bad_line(where, number, f"the word {quoted(word)} has no tag in column {tag}")
            checked_label(tag_of_word, "tag", where, number)
        others = [tuple(rest) for _, *rest in block.columns] if beside else ()
        sentences.append(TaggedSentence(block.words, tags, numbers, others, where))
    if not sentences:
        raise bad_file(where, "holds no sentence: is it the right file?")
    return sentences
