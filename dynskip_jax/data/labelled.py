"""Read rows of TSV, CSV and JSON lines, and labelled texts, and split these.

Python's `csv` reads tables and not pandas, which knows no line numbers, and fills short rows.
"""

import csv
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.files import SPLITS, PathLike, find_splits, iter_lines
from dynskip_jax.data.sentences import Labelled, has_words
from dynskip_jax.terminal.messages import (
    bad_file,
    bad_line,
    checked_label,
    normalized,
    printable,
    quoted,
)

_DRAWN = 0.1  # fraction of the texts that is drawn from train for a missing split
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_JSON_ENDINGS = ("jsonl", "ndjson", "json")
_ENDINGS = ("tsv", "csv", *_JSON_ENDINGS, "txt")

csv.field_size_limit(100_000_000)


class LabelledText(NamedTuple):
    """A text and the name of its class, with its file and line (from 1) for error messages."""

    text: str
    label: str
    file: str
    line: int


class LabelledTextCorpus(NamedTuple):
    """Texts of any number of classes in three splits."""

    name: str
    source: str
    classes: tuple[str, ...]  # of train, sorted by name, or by value if all are numbers
    splits: dict[str, list[LabelledText]]
    about: str  # one line with the number of texts and of classes


def labelled_words(
    texts: Sequence[LabelledText], words: Callable[[str], Sequence[str]], classes: Sequence[str]
) -> Iterator[Labelled]:
    """Yield the words of each text and the index of its class."""
    # dev and test have the classes of train, which the model can predict.
    number = {name: i for i, name in enumerate(classes)}
    for example in texts:
        if example.label not in number:
            known = ", ".join(classes)
            problem = f"the class {quoted(example.label)} is not among those of train: {known}"
            raise bad_line(example.file, example.line, problem)
        yield Labelled(words(example.text), number[example.label])


def find_labelled_text(
    data: PathLike, *, text: str = "text", label: str = "label"
) -> LabelledTextCorpus:
    """Read labelled texts from a file, or from a folder of files for train, dev and test.

    `text` and `label` are columns or JSON keys.
    """
    path = Path(data)
    files = {"train": path}
    if path.is_dir():
        files = find_splits(path, _ENDINGS, needed=("train",))
    splits = {split: read_labelled_file(file, text, label) for split, file in files.items()}
    train = splits["train"]
    classes = tuple(sorted({example.label for example in train}))
    if len(classes) < 2:
        problem = f"has only the class {quoted(classes[0])} in train: two are needed"
        raise bad_file(path, problem)
    if all(map(_NUMBER.fullmatch, classes)):
        classes = tuple(sorted(classes, key=float))

    missing = [split for split in ("dev", "test") if split not in splits]
    if missing:
        drawn = stratified_split([example.label for example in train], missing, _DRAWN, seed=0)
        splits |= {split: [train[i] for i in places] for split, places in drawn.items()}
    splits = {split: splits[split] for split in SPLITS}
    if not all(splits.values()):
        problem = "has too few texts to draw dev and test from train: give files for them"
        raise bad_file(path, problem)
    name = printable(path.resolve().name.removesuffix(".gz"))
    source = f"{'the folder ' * path.is_dir()}{path}"
    sizes = ", ".join(f"{len(own):,} of {split}" for split, own in splits.items())
    drawn = f"; drawn from train: {' and '.join(missing)}" if missing else ""
    about = f"texts: {sizes}; {len(classes)} classes{drawn}"
    return LabelledTextCorpus(name, source, classes, splits, about)


def read_labelled_file(
    path: PathLike, text: str = "text", label: str = "label"
) -> list[LabelledText]:
    """Read a file of labelled texts, see `read_rows`; texts without words are left out."""
    texts = []
    for number, (words, name) in read_rows(path, (text, label)):
        if has_words(words):
            name = checked_label(name, "label", path, number)
            texts.append(LabelledText(words, name, os.fspath(path), number))
    if not texts:
        raise bad_file(path, "holds no labelled text: is it the right file?")
    return texts


def stratified_split(
    labels: Sequence[Any], parts: Sequence[str], share: float, seed: int
) -> dict[str, Int[np.ndarray, "_"]]:
    """Split examples at random, with about the same fraction of each class in each part.

    Each part gets its share of all examples, at least one, and every class keeps an example in
    train.
    """
    rng = np.random.default_rng(seed)
    # Not `np.unique` of the labels, whose array has room for the longest one at each example.
    index = {label: i for i, label in enumerate(sorted({*labels}))}
    numbers = np.array([index[label] for label in labels])
    sizes = np.bincount(numbers)
    # Each class is spread evenly over [0, 1), from which each part takes the next examples.
    place = np.ones(len(labels))
    for members in np.split(np.argsort(numbers, kind="stable"), np.cumsum(sizes)[:-1]):
        # The first of each class has place 1, which is train's.
        free = rng.permutation(members)[1:]
        place[free] = (np.arange(len(free)) + rng.random()) / len(members)
    size = max(1, round(share * len(labels)))
    room = len(labels) - len(sizes)
    ends = np.minimum(size * np.arange(1, len(parts) + 1), room)
    split = np.split(np.argsort(place, kind="stable"), ends)
    return {part: np.sort(members) for part, members in zip((*parts, "train"), split, strict=True)}


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
    how: dict[str, Any] = dict(delimiter="\t", quoting=csv.QUOTE_NONE)
    if is_csv:
        how = dict(delimiter=",", skipinitialspace=True)
    rows = csv.reader(iter_lines(path, keeps_ends=True), strict=True, **how)
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
