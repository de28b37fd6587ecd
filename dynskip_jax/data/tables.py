"""Read tables of text, TSV and CSV, and find columns by name or by number."""

import contextlib
import csv
import difflib
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from dynskip_jax.data.files import MAX_LINE, PathLike, iter_lines
from dynskip_jax.data.messages import bad_line, quoted, room_in_line, shown
from dynskip_jax.data.notes import COMMENT, EMPTY, DataNotes
from dynskip_jax.errors import UserError

Column = str | int
Delimiter = Literal["auto", "comma", "semicolon", "tab", "bar"]

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
_NUMBER = re.compile(r"[0-9]{1,6}")
_LOOKED_AT = 1000  # rows that are examined for delimiters and comments


class Row(NamedTuple):
    """A row of a table, with the number of its first line, counted from 1."""

    line: int
    fields: list[str]


class _NoCSV(UserError):
    """A row is no CSV with this delimiter."""


def read_table(
    path: PathLike,
    columns: Sequence[Column],
    flags: Sequence[str],
    *,
    delimiter: Delimiter = "tab",
    has_quotes: bool = False,
    header: bool | None = None,
    notes: DataNotes,
) -> Iterator[Row]:
    """Yield the fields of each row in some columns, after checking that all rows are equally long.

    A row that begins with `#` is a comment if it has one field, or stands before all others and has
    another number of fields than the first of these. Blank lines are no rows, and rows of blank
    fields are left out.

    Args:
        columns: Names, or numbers counted from 0. With a header, a column of that name comes before
            a number.
        flags: Flags that set `columns`, for messages.
        delimiter: What separates fields; `auto` is the one for which the first row has the columns.
        has_quotes: Whether fields may stand in quotes, as in CSV; without, quotes are part of a
            field.
        header: Whether the first row names the columns. None: it does if a column cannot be a
            number.
    """
    if delimiter == "auto":
        delimiter = _detected(path, columns, header, notes)
    places: list[int] = []
    width = 0
    for row in _rows(path, delimiter, has_quotes=has_quotes, notes=notes):
        if not places:  # the first row
            width = len(row.fields)
            found, has_header = _find(row.fields, columns, header)
            room = room_in_line(path, row.line)
            if problem := _problem(row.fields, found, columns, flags, delimiter, room):
                raise bad_line(path, row.line, problem)
            places = [place for (place,) in found]
            if has_header:
                continue
        if len(row.fields) != width:
            problem = f"{len(row.fields)} columns, but the first line has {width}"
            raise bad_line(path, row.line, f"{problem} (separated by {delimiter})")
        yield Row(row.line, [row.fields[place] for place in places])


# --- Columns ---


def _find(
    first: Sequence[str], columns: Sequence[Column], header: bool | None
) -> tuple[list[list[int]], bool]:
    """Return the places that each column may have, and whether the first row is a header."""
    names = [unicodedata.normalize("NFC", name.strip()) for name in first]
    named = []
    numbered = []
    for column in columns:
        wanted = unicodedata.normalize("NFC", str(column))
        is_name = isinstance(column, str)
        named.append([place for place, name in enumerate(names) if is_name and name == wanted])
        is_number = _NUMBER.fullmatch(wanted) and int(wanted) < len(names)
        numbered.append([int(wanted)] if is_number else [])
    if header is None:
        header = not all(numbered)
        if not header and all(named) and named != numbered:
            # A header of numbers, or a text that is a number: only the user knows.
            both = [sorted({*one, *other}) for one, other in zip(named, numbered, strict=True)]
            return both, False
    if not header:
        return numbered, False
    return [by_name or by_number for by_name, by_number in zip(named, numbered, strict=True)], True


def _problem(
    first: Sequence[str],
    found: Sequence[Sequence[int]],
    columns: Sequence[Column],
    flags: Sequence[str],
    delimiter: str,
    room: int,
) -> str | None:
    """Return in `room` characters why a column is not found exactly once, and what to do."""
    for column, places, flag in zip(columns, found, flags, strict=True):
        if len(places) > 1 and len({first[place].strip() for place in places}) > 1:
            problem = f"{quoted(column)} is the name of one column and the number of another"
            return f"{problem}: give --header yes or --header no"
        if len(places) > 1:
            problem = f"two columns are called {quoted(column)}: rename one"
            return f"{problem}, or set {flag} to a number from 0" if flag else problem
        if not places:
            problem = f"no column {quoted(column)} among "
            remedy = ""
            if flag:
                remedy = f" (separated by {delimiter}): set {flag}, or --delimiter"
            listed = _listed(first, str(column), room - len(problem) - len(remedy))
            return f"{problem}{listed}{remedy}"
    return None


def _listed(names: Sequence[str], wanted: str, room: int) -> str:
    """Return all names, or those around the one most like `wanted`, in `room` characters."""
    words = []
    for name in names[:_LOOKED_AT]:
        word = shown(name.strip(), 24)
        has_mark = re.search(r"[,;|]", word)
        words.append(repr(word) if has_mark else word)
    best = difflib.get_close_matches(wanted, words, n=1, cutoff=0)
    start = words.index(best[0]) if best else 0
    end = start + 1

    def text() -> str:
        before = "…, " if start else ""
        after = ", …" if end < len(names) else ""
        return before + ", ".join(words[start:end]) + after

    listed = text()
    while start > 0 or end < len(words):
        # Grow to both sides; at one end of the list, to the other side.
        if end < len(words):
            end += 1
        if start > 0:
            start -= 1
        if len(text()) > room:
            break
        listed = text()
    return shown(listed, room)


# --- Rows ---


def _detected(
    path: PathLike, columns: Sequence[Column], header: bool | None, notes: DataNotes
) -> str:
    """Return the only delimiter with which the first row has the columns.

    A delimiter that less than half of the rows agree with is one of texts, and not of the table.
    """
    # Of each such delimiter, the fraction of rows with as many fields as the first one.
    fitting: dict[str, float] = {}
    widest = "comma"
    most = 0
    line = 1
    for name in DELIMITERS:
        first, widths = _first_rows(path, name)
        if first is None:
            continue
        line = first.line
        width = widths[0]
        if all(_find(first.fields, columns, header)[0]):
            fitting[name] = widths.count(width) / len(widths)
        if width > most:
            most = width
            widest = name
    if not fitting:
        return widest
    if len(fitting) == 1:
        return next(iter(fitting))
    regular = [name for name, share in fitting.items() if share >= 0.5]
    if len(regular) != 1:
        both = " and ".join(fitting)
        problem = f"the columns are found with more than one delimiter ({both})"
        raise bad_line(path, line, f"{problem}: give one of them as --delimiter")
    others = ", ".join(name for name in fitting if name != regular[0])
    problem = f"is separated by {regular[0]}, but its first line could also be by {others}"
    notes.add(f"{shown(path, 75)} {problem}: --delimiter decides")
    return regular[0]


def _first_rows(path: PathLike, delimiter: str) -> tuple[Row | None, list[int]]:
    """Return the first row and the number of fields of each row, up to one that is no CSV."""
    first = None
    widths = []
    # Not strict: a row with wrong quotes may have the right delimiter; reading it refuses it.
    rows = _rows(path, delimiter, has_quotes=True, is_strict=False, notes=DataNotes())
    with contextlib.suppress(_NoCSV):
        for row in itertools.islice(rows, _LOOKED_AT):
            first = first or row
            widths.append(len(row.fields))
    return first, widths


def _rows(
    path: PathLike, delimiter: str, *, has_quotes: bool, is_strict: bool = True, notes: DataNotes
) -> Iterator[Row]:
    """Yield the rows that are neither blank nor comments; blank lines need no note."""
    rows = _csv_rows(path, DELIMITERS[delimiter], has_quotes=has_quotes, is_strict=is_strict)
    head: list[Row] = []  # the first rows, as long as they begin with #
    width = 0
    for row in rows:
        if not "".join(row.fields).strip():
            if len(row.fields) > 1:
                notes.leave_out(EMPTY, path, row.line)
            continue
        is_marked = row.fields[0].startswith("#")
        if not width and is_marked and len(head) < _LOOKED_AT:
            head.append(row)
            continue
        if not width:
            # The first row without a mark tells which of those before it are comments.
            width = len(row.fields)
            for first in head:
                if len(first.fields) == width:
                    yield first
                else:
                    notes.leave_out(COMMENT, path, first.line)
        if is_marked and len(row.fields) == 1 < width:
            notes.leave_out(COMMENT, path, row.line)
        else:
            yield row
    if not width:  # all rows begin with #
        yield from head


def _csv_rows(path: PathLike, mark: str, *, has_quotes: bool, is_strict: bool) -> Iterator[Row]:
    """Yield the rows that Python's `csv` reads; a blank line is a row without fields."""
    # With line ends, which quoted fields include.
    lines = (f"{line}\n" for line in iter_lines(path))
    limit = csv.field_size_limit(MAX_LINE)
    number = 1
    try:
        rows = csv.reader(
            lines,
            delimiter=mark,
            quoting=csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE,
            skipinitialspace=has_quotes,
            strict=is_strict,
        )
        for fields in rows:
            yield Row(number, fields)
            number = rows.line_num + 1
    except csv.Error as error:
        problem = f"no CSV ({error}): a field with quotes stands in quotes, its own are doubled"
        raise _NoCSV(str(bad_line(path, number, problem))) from None
    finally:
        csv.field_size_limit(limit)
