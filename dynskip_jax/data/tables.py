"""Read columns of TSV and CSV files.

Python's `csv` reads them and not pandas, which knows no line numbers, and fills short rows.
"""

import csv
import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from dynskip_jax.data.files import MAX_LINE, PathLike, iter_lines
from dynskip_jax.terminal.messages import bad_line, normalized, quoted, shown

Column = str | int
Delimiter = Literal["auto", "comma", "semicolon", "tab", "bar"]

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
_EXCEL = re.compile(r"sep=([,;\t|])")  # a first line that names the delimiter
_LISTED = 6  # columns in a message

csv.field_size_limit(MAX_LINE)


class Row(NamedTuple):
    """Some fields of a row, with the number of its first line, counted from 1."""

    line: int
    fields: list[str]


def read_table(
    path: PathLike,
    columns: Sequence[Column],
    *,
    flags: Sequence[str] = (),
    delimiter: Delimiter = "tab",
    has_quotes: bool = False,
    header: bool | None = None,
) -> Iterator[Row]:
    """Yield the fields of each row in some columns; all rows must have as many as the first one.

    Args:
        columns: Names, or numbers counted from 0. With a header, a name comes before a number.
        flags: Flags that set `columns`, for messages.
        delimiter: What separates fields; `auto` is the one for which the first row has the columns.
        has_quotes: Whether fields may stand in quotes, as in CSV; without, quotes are part of a
            field.
        header: Whether the first row names the columns. None: it does if a column is no number.
    """
    if header is None:
        header = not all(str(column).isdecimal() for column in columns)
    if delimiter == "auto":
        delimiter = _detected(path, columns, header)
    width = 0
    for number, fields in _rows(path, DELIMITERS[delimiter], has_quotes):
        if not width:
            width = len(fields)
            if problem := _problem(fields, columns, header, flags, delimiter):
                raise bad_line(path, number, problem)
            places = [_places(fields, column, header)[0] for column in columns]
            if header:
                continue
        if len(fields) != width:
            problem = f"{len(fields)} columns, but the first line has {width}"
            raise bad_line(path, number, f"{problem} (separated by {delimiter})")
        yield Row(number, [fields[place] for place in places])


def _rows(path: PathLike, mark: str, has_quotes: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line and all fields of each row that is not blank."""
    rows = csv.reader(
        iter_lines(path, keeps_ends=True),
        delimiter=mark,
        quoting=csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE,
        skipinitialspace=has_quotes,
        strict=True,
    )
    number = 1
    try:
        for fields in rows:
            is_blank = not "".join(fields).strip()
            is_of_excel = number == 1 and _EXCEL.fullmatch(mark.join(fields))
            if not is_blank and not is_of_excel:
                yield number, fields
            number = rows.line_num + 1  # a field in quotes may have many lines
    except csv.Error as error:
        problem = f"no CSV ({error}): a field with quotes stands in quotes, its own are doubled"
        raise bad_line(path, number, problem) from None


def _detected(path: PathLike, columns: Sequence[Column], header: bool) -> str:
    """Return the only delimiter with which the first row has the columns, or else the comma."""
    first = next((line for line in iter_lines(path) if line.strip()), "")
    if found := _EXCEL.fullmatch(first):
        return next(name for name, mark in DELIMITERS.items() if mark == found[1])
    fitting = []
    for name, mark in DELIMITERS.items():
        fields = next(csv.reader([first], delimiter=mark, skipinitialspace=True), [])
        if all(_places(fields, column, header) for column in columns):
            fitting.append(name)
    if len(fitting) > 1:
        problem = f"the columns are found with more than one delimiter ({' and '.join(fitting)})"
        raise bad_line(path, 1, f"{problem}: give one of them as --delimiter")
    return fitting[0] if fitting else "comma"


def _places(names: Sequence[str], column: Column, header: bool) -> list[int]:
    """Return where a column is: a place for each column of that name, or else its number."""
    wanted = normalized(str(column))
    if header and isinstance(column, str):
        named = [place for place, name in enumerate(names) if normalized(name) == wanted]
        if named:
            return named
    return [place for place in range(len(names)) if str(place) == wanted]


def _problem(
    names: Sequence[str],
    columns: Sequence[Column],
    header: bool,
    flags: Sequence[str],
    delimiter: str,
) -> str | None:
    """Return why a column is not found exactly once, and what to do."""
    for place, column in enumerate(columns):
        found = _places(names, column, header)
        if len(found) > 1:
            return f"two columns are called {quoted(column)}: rename one"
        if not found:
            remedy = f": set {flags[place]}, or --delimiter" if flags else ""
            given = f"separated by {delimiter}"
            return f"no column {quoted(column)} among {_listed(names, column)} ({given}){remedy}"
    return None


def _listed(names: Sequence[str], column: Column) -> str:
    """Return the columns' names, or those most like the wanted one if there are many."""
    names = [shown(name.strip(), 24) for name in names]
    if len(names) > _LISTED:
        names = [*difflib.get_close_matches(str(column), names, _LISTED, cutoff=0), "…"]
    return ", ".join(names)
