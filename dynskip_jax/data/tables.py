"""Read rows of TSV, CSV and JSON lines by the names of their columns.

Python's `csv` reads tables and not pandas, which knows no line numbers, and fills short rows.
"""

import csv
import json
import os
from collections.abc import Iterator, Sequence

from dynskip_jax.data.files import PathLike, iter_lines
from dynskip_jax.terminal.messages import bad_line, normalized, quoted

_JSON_ENDINGS = ("jsonl", "ndjson", "json")
ENDINGS = ("tsv", "csv", *_JSON_ENDINGS, "txt")

csv.field_size_limit(100_000_000)


def read_rows(path: PathLike, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the line, from 1, and the fields of each row in some columns.

    The ending of the name says how a file is read. JSON has an object on each line. The first line
    of a table names its columns: fields of CSV are separated by commas, and may stand in quotes; in
    any other file they are separated by tabs.
    """
    ending = os.path.basename(path).lower().removesuffix(".gz").rpartition(".")[2]
    rows = _objects(path) if ending in _JSON_ENDINGS else _table(path, is_csv=ending == "csv")
    for number, row in rows:
        named = {normalized(name): value for name, value in row.items()}
        values = [named.get(normalized(column)) for column in columns]
        for column, value in zip(columns, values, strict=True):
            if not isinstance(value, str | int | float):
                listed = ", ".join(named)
                problem = f"expected text or a number under {quoted(column)} among {listed}"
                raise bad_line(path, number, problem)
        yield number, [value if isinstance(value, str) else json.dumps(value) for value in values]


def _table(path: PathLike, *, is_csv: bool) -> Iterator[tuple[int, dict[str, str]]]:
    rows = csv.reader(
        iter_lines(path, keeps_ends=True),
        delimiter="," if is_csv else "\t",
        quoting=csv.QUOTE_MINIMAL if is_csv else csv.QUOTE_NONE,
        skipinitialspace=is_csv,
        strict=True,
    )
    names: list[str] = []
    number = 1
    try:
        for fields in rows:
            is_blank = not "".join(fields).strip()
            if not names:
                names = fields
            elif not is_blank and len(fields) != len(names):
                problem = f"{len(fields)} columns, but the first line has {len(names)}"
                raise bad_line(path, number, problem)
            elif not is_blank:
                yield number, dict(zip(names, fields, strict=True))
            number = rows.line_num + 1  # a field in quotes may have many lines
    except csv.Error as error:
        problem = f"no CSV ({error}): a field with quotes stands in quotes, its own are doubled"
        raise bad_line(path, number, problem) from None


def _objects(path: PathLike) -> Iterator[tuple[int, dict]]:
    for number, line in enumerate(iter_lines(path), 1):
        if not line.strip():
            continue
        try:
            found = dict(json.loads(line))
        except (TypeError, ValueError, RecursionError) as error:
            raise bad_line(path, number, f"expected a JSON object on each line ({error})") from None
        yield number, found
