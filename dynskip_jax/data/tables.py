"""Read rows of TSV, CSV and JSON lines by the names of their columns.

Python's `csv` reads tables and not pandas, which knows no line numbers, and fills short rows.
"""

import csv
import json
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dynskip_jax.data.files import MAX_LINE, PathLike, iter_lines
from dynskip_jax.terminal.messages import bad_line, normalized, quoted, shown

_JSON_ENDINGS = ("jsonl", "ndjson", "json")
ENDINGS = ("tsv", "csv", *_JSON_ENDINGS, "txt")
_LISTED = 6  # columns in a message

csv.field_size_limit(MAX_LINE)


class Row(NamedTuple):
    """Some fields of a row, with the number of its first line, counted from 1."""

    line: int
    fields: list[str]


def read_rows(path: PathLike, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the fields of each row in some columns; the ending of the name says how it is read.

    JSON has an object on each line. The first line of a table names its columns: fields of CSV are
    separated by commas, and may stand in quotes; in any other file they are separated by tabs.
    """
    ending = os.path.basename(path).lower().removesuffix(".gz").rpartition(".")[2]
    if ending in _JSON_ENDINGS:
        return _objects(path, columns)
    return _table(path, columns, is_csv=ending == "csv")


def _table(path: PathLike, columns: Sequence[str], *, is_csv: bool) -> Iterator[Row]:
    rows = csv.reader(
        iter_lines(path, keeps_ends=True),
        delimiter="," if is_csv else "\t",
        quoting=csv.QUOTE_MINIMAL if is_csv else csv.QUOTE_NONE,
        skipinitialspace=is_csv,
        strict=True,
    )
    width = 0
    places: list[int] = []
    number = 1
    try:
        for fields in rows:
            is_blank = not "".join(fields).strip()
            if not is_blank and not width:
                width = len(fields)
                places = [_place(path, number, fields, column) for column in columns]
            elif not is_blank and len(fields) != width:
                problem = f"{len(fields)} columns, but the first line has {width}"
                raise bad_line(path, number, problem)
            elif not is_blank:
                yield Row(number, [fields[place] for place in places])
            number = rows.line_num + 1  # a field in quotes may have many lines
    except csv.Error as error:
        problem = f"no CSV ({error}): a field with quotes stands in quotes, its own are doubled"
        raise bad_line(path, number, problem) from None


def _place(path: PathLike, number: int, names: Sequence[str], column: str) -> int:
    """Return the index of the only column of a name."""
    known = [normalized(name) for name in names]
    found = [place for place, name in enumerate(known) if name == normalized(column)]
    if len(found) != 1:
        listed = ", ".join(shown(name, 24) for name in known[:_LISTED])
        problem = f"expected one column {quoted(column)}, found {len(found)} among {listed}"
        raise bad_line(path, number, f"{problem}: name another, or change this line")
    return found[0]


def _objects(path: PathLike, columns: Sequence[str]) -> Iterator[Row]:
    for number, line in enumerate(iter_lines(path), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            if not isinstance(found, dict):
                raise ValueError(f"got {quoted(found)}")
        except (ValueError, RecursionError) as error:
            raise bad_line(path, number, f"expected a JSON object on each line ({error})") from None
        found = {normalized(key): value for key, value in found.items()}
        fields = []
        for column in columns:
            value = found.get(normalized(column))
            is_nan = value != value
            if not isinstance(value, str | int | float) or is_nan:
                problem = f"expected text or a number under {quoted(column)} in {quoted(found)}"
                raise bad_line(path, number, problem)
            text = value if isinstance(value, str) else json.dumps(value)
            fields.append(text.encode(errors="replace").decode())  # half a surrogate pair is "?"
        yield Row(number, fields)
