"""Read labelled texts of any classes from TSV, CSV, JSON lines, or one folder per class, and split them."""

import collections
import contextlib
import csv
import dataclasses
import functools
import hashlib
import itertools
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.messages import bad_file, bad_line, quoted, shown
from dynskip_jax.data.sentences import Labelled
from dynskip_jax.data.splits import LABELLED_ENDINGS, SPLIT_WORDS, SPLITS, find_splits
from dynskip_jax.data.text_files import PathLike, iter_lines, parse_json, read_text
from dynskip_jax.errors import UserError

SPLIT_NAMES = ("train", "dev", "test")
_FILE_WORD = {"train": "train", "dev": "valid", "test": "test"}  # their names in `find_splits`
_JSON_ENDINGS = ("jsonl", "ndjson", "json")
# A column of labels has few different values. If more than this fraction of the values differ, it is probably
# another column. Files with at most `_FEW_EXAMPLES` texts are not checked.
_MOST_CLASSES = 0.5
_FEW_EXAMPLES = 20
_SEPARATORS = (",", ";", "\t")  # of CSV; the first one that fits best is used
_SNIFFED_LINES = 20
_COLUMN_NUMBER = re.compile(r"-?[0-9]{1,6}")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")

Column = str | int


class LabelledText(NamedTuple):
    """A text and its class.

    Attributes:
        text: The text, unchanged.
        label: Name of its class.
        file: Path of its file, for error messages.
        line: Number of its line, counted from 1. A text in CSV over several lines has the number of the last
            one; a text that is a whole file has 1.
    """

    text: str
    label: str
    file: str
    line: int


@dataclasses.dataclass(frozen=True)
class LabelledTextCorpus:
    """Texts of any number of classes in three splits.

    Attributes:
        name: Name of its folder or file.
        source: Readable phrase for where it was found.
        classes: Classes of train, sorted by name, or by value if all are numbers.
        splits: Texts of `train`, `dev` and `test`.
        note: Readable phrase for which splits were drawn from train, and with which seed; empty if the files
            have all three splits.
    """

    name: str
    source: str
    classes: tuple[str, ...]
    splits: Mapping[str, Sequence[LabelledText]]
    note: str = ""

    @functools.cached_property
    def class_counts(self) -> dict[str, dict[str, int]]:
        """Number of texts of each class in each split."""
        counts = {}
        for split, texts in self.splits.items():
            found = collections.Counter(text.label for text in texts)
            counts[split] = {name: found[name] for name in self.classes}
        return counts

    @property
    def majority_class(self) -> str:
        """Most frequent class of train; ties go to the first class."""
        return max(self.classes, key=self.class_counts["train"].__getitem__)

    @property
    def majority_accuracy(self) -> dict[str, float]:
        """Accuracy in each split, from 0 to 1, of always predicting the most frequent class of train."""
        counts = self.class_counts
        return {split: counts[split][self.majority_class] / len(self.splits[split]) for split in self.splits}

    @property
    def about(self) -> str:
        """Readable line with the number of texts and classes, and the accuracy of the majority baseline."""
        sizes = ", ".join(f"{len(texts):,} of {split}" for split, texts in self.splits.items())
        accuracies = ", ".join(f"{100 * x:.1f} % of {split}" for split, x in self.majority_accuracy.items())
        majority = f"always predicting {self.majority_class!r} is right for {accuracies}"
        return f"texts: {sizes}; {len(self.classes)} classes; {majority}"

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the texts and classes of all splits."""
        digest = hashlib.sha256()
        for split, texts in self.splits.items():
            digest.update(f"{split} {len(texts)}\n".encode())
            for text in texts:
                digest.update(f"{len(text.label)} {len(text.text)} {text.label} {text.text}\n".encode())
        return digest.hexdigest()

    def labelled(self, words: Callable[[str], Sequence[str]]) -> dict[str, Iterator[Labelled]]:
        """Return iterators over the words and class indices of each split, for `labelled_corpus`.

        Args:
            words: Function that splits a text into words, such as `review_words`.

        Raises:
            UserError: A text has no words; raised while the iterators are read.
        """
        number = {name: i for i, name in enumerate(self.classes)}
        return {split: _labelled(texts, words, number) for split, texts in self.splits.items()}


def find_labelled_text(
    data: PathLike,
    *,
    split_seed: int,
    text: Column = "text",
    label: Column = "label",
    header: bool | None = None,
    dev_share: float = 0.1,
    test_share: float = 0.1,
) -> LabelledTextCorpus:
    """Read labelled texts from a file or a folder.

    A folder holds one of these:

    * files for train, dev and test with the usual names (`splits.find_splits`): TSV (also `.txt`), CSV or
      JSON lines;
    * folders for train, dev and test, each with a folder per class that contains one file per text;
    * a folder per class, or one file with all texts.

    If dev or test is missing, it is drawn from train, with the same fraction of each class
    (`stratified_split`).

    Args:
        data: The folder or file.
        split_seed: Random seed for drawing missing splits.
        text: Column or JSON key of the texts. A column is a name or a number counted from 0.
        label: Column or JSON key of the classes.
        header: Whether the first line of TSV and CSV contains the names of the columns. None: it does if
            `text` or `label` is a name.
        dev_share: Fraction of the texts of train that become dev if dev is missing.
        test_share: Fraction of the texts of train that become test if test is missing.

    Raises:
        UserError: Nothing is found; a file is invalid; there are fewer than two classes; or dev or test has a
            class that train lacks.
    """
    path = Path(data).expanduser()
    read = functools.partial(read_labelled_file, text=text, label=label, header=header)
    found = _read_splits(path, read)
    _check_labels(path, found["train"])
    shares = {"dev": dev_share, "test": test_share}
    missing = {split: share for split, share in shares.items() if split not in found}
    note = ""
    if missing:
        train = found.pop("train")
        drawn = stratified_split([example.label for example in train], missing, split_seed)
        found |= {split: [train[i] for i in places] for split, places in drawn.items()}
        sizes = " and ".join(f"{len(found[split]):,} as {split}" for split in missing)
        note = f"drawn from train with the seed {split_seed}, the same share of each class: {sizes}"
    splits = {split: found[split] for split in SPLIT_NAMES}
    for split, texts in splits.items():
        if not texts:
            raise bad_file(path, f"has too few texts to draw {split} from train: give a file for it")
    classes = _classes(path, splits)
    name = path.resolve().name.removesuffix(".gz")
    return LabelledTextCorpus(name, f"{'the folder ' * path.is_dir()}{path}", classes, splits, note)


def read_labelled_file(
    path: PathLike, *, text: Column = "text", label: Column = "label", header: bool | None = None
) -> list[LabelledText]:
    """Read a file of labelled texts; the format depends on the ending of its name.

    `.csv` is CSV, and `.jsonl`, `.ndjson` and `.json` are JSON lines. Any other file has columns separated by
    tabs (TSV). CSV may have quoted fields, which may extend over several lines. Its separator is the
    comma, semicolon or tab for which the first row has both columns; if this is true of several, the one for
    which most of the first rows have the same length. In TSV, quotes are part of the text.

    Args:
        path: The file, plain or .gz.
        text: See `find_labelled_text`.
        label: See `find_labelled_text`.
        header: See `find_labelled_text`.

    Raises:
        UserError: The file cannot be read or contains no text, or a line is invalid; the message contains the
            number of this line.
    """
    name = os.fspath(path).lower().removesuffix(".gz")
    ending = name.rpartition(".")[2]
    if ending in _JSON_ENDINGS:
        records = _json_records(path, text, label)
    else:
        rows = _csv_rows(path, (text, label)) if ending == "csv" else _tab_rows(path)
        records = _column_records(path, rows, text, label, header)
    texts = [_example(path, *record) for record in records]
    if not texts:
        raise bad_file(path, "holds no labelled text: is it the right file?")
    return texts


def stratified_split(
    labels: Sequence[Any], shares: Mapping[str, float], seed: int
) -> dict[str, Int[np.ndarray, "_"]]:
    """Split examples at random, with the same fraction of each class in each part; the rest is `train`.

    Each part in `shares` gets at least one example of every class that has at least two examples per part,
    where `train` counts as a part. Parts with the fraction 0 stay empty.

    Args:
        labels: Class of each example.
        shares: For each part, such as `dev`, its fraction of all examples, from 0 to 1.
        seed: Random seed.

    Returns:
        The indices of the examples of each part and of `train`, in ascending order.

    Raises:
        UserError: A fraction is negative, or they leave nothing for train.
    """
    if min(shares.values(), default=0) < 0 or sum(shares.values()) >= 1:
        given = ", ".join(f"{share:g} for {part}" for part, share in shares.items())
        raise UserError(f"shares must not be negative and must leave something for train, got {given}")
    rng = np.random.default_rng(seed)
    members: dict[Any, list[int]] = {}
    for place, label in enumerate(labels):
        members.setdefault(label, []).append(place)
    parts: dict[str, list[int]] = {part: [] for part in (*shares, "train")}
    for label in sorted(members):
        order = rng.permutation(members[label]).tolist()
        least = int(len(order) >= 2 * len(parts))
        for part, share in shares.items():
            count = max(least, round(share * len(members[label]))) if share else 0
            count = min(count, len(order) - 1)  # train has every class
            parts[part] += order[:count]
            order = order[count:]
        parts["train"] += order
    return {part: np.array(sorted(places), int) for part, places in parts.items()}


def _read_splits(path: Path, read: Callable[[Path], list[LabelledText]]) -> dict[str, list[LabelledText]]:
    """Return the texts of the splits found at `path`; without separate splits, all texts are `train`."""
    if not path.is_dir():
        return {"train": read(path)}
    files = find_splits(path, (*LABELLED_ENDINGS, "txt"), needed=())
    folders = _split_folders(path)
    if files and folders:
        both = " and ".join(shown(next(iter(found.values())).name) for found in (files, folders))
        raise bad_file(path, f"has files and folders for its splits, {both}: keep one kind")
    if found := files or folders:
        if "train" not in found:
            raise bad_file(path, "has no file for the train split: put one there, such as train.tsv")
        reader = read if files else _read_class_folders
        return {split: reader(found[word]) for split, word in _FILE_WORD.items() if word in found}
    single = [own for own in _visible(path, Path.is_file) if _ending(own) in LABELLED_ENDINGS]
    if classes := _visible(path, Path.is_dir):
        if len(single) == 1:
            both = f"the file {shown(single[0].name)} and the folder {shown(classes[0].name)}"
            raise bad_file(path, f"has {both}: name the file itself with --data, or move one of them away")
        return {"train": _read_class_folders(path)}
    if len(single) == 1:
        return {"train": read(single[0])}
    problem = f"has {len(single) or 'no'} files of labelled texts, and none for train: name one train.tsv, "
    raise bad_file(path, f"{problem}train.csv or train.jsonl, or make a folder of texts for each class")


def _split_folders(path: Path) -> dict[str, Path]:
    found = {}
    for split in SPLITS:
        own = [folder for folder in _visible(path, Path.is_dir) if folder.name.lower() in SPLIT_WORDS[split]]
        if len(own) > 1:
            raise bad_file(path, f"has two folders for {split}, {own[0].name} and {own[1].name}: keep one")
        if own:
            found[split] = own[0]
    return found


def _read_class_folders(path: Path) -> list[LabelledText]:
    """Return the texts of a folder that has one folder per class, sorted by the names of class and file."""
    texts = []
    for folder in _visible(path, Path.is_dir):
        for file in _visible(folder, Path.is_file):
            texts.append(_example(file, 1, read_text(file), folder.name))
    if not texts:
        raise bad_file(path, "has no texts: it needs a folder for each class, with a text in each file")
    return texts


def _visible(path: Path, kind: Callable[[Path], bool]) -> list[Path]:
    """Return the files or folders in `path` whose names do not begin with a dot, sorted by name.

    Args:
        path: The folder.
        kind: `Path.is_file` or `Path.is_dir`.
    """
    try:
        return sorted(own for own in path.iterdir() if not own.name.startswith(".") and kind(own))
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error}): check its permissions"
        raise bad_file(path, problem) from None


def _ending(path: Path) -> str:
    return path.name.lower().removesuffix(".gz").rpartition(".")[2]


def _json_records(path: PathLike, text: Column, label: Column) -> Iterator[tuple[int, Any, Any]]:
    for number, line in enumerate(iter_lines(path), 1):
        if not line.strip():
            continue
        try:
            found = parse_json(line)
        except ValueError as error:
            raise bad_line(path, number, f"expected a JSON object on each line ({error})") from None
        if not isinstance(found, dict):
            raise bad_line(path, number, f"expected a JSON object on each line, got {quoted(found)}")
        for key in (text, label):
            if key not in found:
                have = ", ".join(shown(name, 20) for name in list(found)[:5]) or "none"
                raise bad_line(path, number, f"no key {quoted(key)} among {have}: name the right one")
        value = _json_label(found[label])
        if not isinstance(found[text], str) or not isinstance(value, str):
            wrong = text if not isinstance(found[text], str) else label
            kind = "text" if wrong == text else "text or a finite number"
            problem = f"expected {kind} under {quoted(wrong)}, got {quoted(found[wrong])}"
            raise bad_line(path, number, problem)
        yield number, found[text], value


def _json_label(value: Any) -> Any:
    """Return the class that a JSON value names, as text; values that name no class are returned unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value) if isinstance(value, int) else value


def _tab_rows(path: PathLike) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(iter_lines(path), 1):
        if line.strip():
            yield number, line.split("\t")


def _csv_rows(path: PathLike, columns: Sequence[Column]) -> Iterator[tuple[int, list[str]]]:
    lines = (f"{line}\n" for line in iter_lines(path))  # with line ends, which quoted fields include
    head = list(itertools.islice(lines, _SNIFFED_LINES))
    with _long_fields():
        separator = max(_SEPARATORS, key=lambda separator: _fit(head, separator, columns))
        rows = csv.reader(itertools.chain(head, lines), delimiter=separator, strict=True)
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                problem = f"no CSV ({error}): a field with quotes stands in quotes, its own are doubled"
                raise bad_line(path, rows.line_num, problem) from None
            if not _is_blank(row):
                yield rows.line_num, row


def _fit(head: Sequence[str], separator: str, columns: Sequence[Column]) -> float:
    """Return how well a separator fits the first lines of a CSV file, from 0 to 1.

    It is 0 if the first row lacks one of the columns, or both are the same column. Otherwise it is the
    fraction of rows that are as long as the first one.
    """
    rows = [row for row in csv.reader(head, delimiter=separator) if not _is_blank(row)]
    places = {_index(_names(rows[0]), column) for column in columns} if rows else {None}
    if None in places or len(places) < len(columns):
        return 0.0
    return sum(len(row) == len(rows[0]) for row in rows) / len(rows)


def _is_blank(row: Sequence[str]) -> bool:
    return len(row) <= 1 and not "".join(row).strip()


@contextlib.contextmanager
def _long_fields() -> Iterator[None]:
    """Allow the csv module to read fields of any length, because texts may be long."""
    before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _column_records(
    path: PathLike, rows: Iterator[tuple[int, list[str]]], text: Column, label: Column, header: bool | None
) -> Iterator[tuple[int, str, str]]:
    first = next(rows, None)
    if first is None:
        return
    number, fields = first
    names = _names(fields)
    width = len(fields)
    places = [_place(path, number, names, column) for column in (text, label)]
    if header is None:
        header = any(_number(column) is None for column in (text, label))
    if not header:
        yield number, *(fields[place] for place in places)
    for number, fields in rows:
        if len(fields) != width:
            problem = f"{len(fields)} columns, but the first line has {width}"
            raise bad_line(path, number, problem)
        yield number, *(fields[place] for place in places)


def _number(column: Column) -> int | None:
    """Return the number of a column given by its number, as an integer or a string; None for a name."""
    if isinstance(column, str):
        return int(column) if _COLUMN_NUMBER.fullmatch(column) else None
    return column


def _names(fields: Sequence[str]) -> list[str]:
    return [name.strip() for name in fields]


def _index(names: Sequence[str], column: Column) -> int | None:
    """Return the index of a column that is given by name or number; None if there is no such column."""
    place = _number(column)
    if place is None:
        return names.index(column) if column in names else None
    return place % len(names) if -len(names) <= place < len(names) else None


def _place(path: PathLike, number: int, names: Sequence[str], column: Column) -> int:
    """Return the index of a column that is given by name or number; a negative number counts from the end.

    Raises:
        UserError: There is no such column.
    """
    place = _index(names, column)
    if place is not None:
        return place
    place = _number(column)
    if place is None:
        have = ", ".join(shown(name, 15) for name in names[:5])
        problem = f"no column {quoted(column)} among {have}: give its name, or its number counted from 0"
        raise bad_line(path, number, problem)
    raise bad_line(path, number, f"no column {place} among {len(names)}, counted from 0")


def _example(path: PathLike, number: int, text: str, label: str) -> LabelledText:
    """Return a text with its class, after checking both."""
    label = label.strip()
    if not label:
        raise bad_line(path, number, "the label is empty")
    if not label.isprintable():
        problem = f"the label {quoted(label)} has characters that do not print: replace them"
        raise bad_line(path, number, problem)
    if not text.strip():
        raise bad_line(path, number, "the text has no words")
    return LabelledText(text, label, os.fspath(path), number)


def _check_labels(path: Path, train: Sequence[LabelledText]) -> None:
    """Raise a `UserError` if there are so many different labels that the column is probably the wrong one."""
    count = len({example.label for example in train})
    if len(train) > _FEW_EXAMPLES and count > _MOST_CLASSES * len(train):
        problem = f"has {count:,} different labels in {len(train):,} texts of train"
        raise bad_file(path, f"{problem}: is the column of labels the right one?")


def _classes(path: Path, splits: Mapping[str, Sequence[LabelledText]]) -> tuple[str, ...]:
    """Return the sorted classes of train, after checking that dev and test have no other classes."""
    found = {example.label for example in splits["train"]}
    if len(found) < 2:
        raise bad_file(path, f"has only the class {quoted(next(iter(found)))} in train: two are needed")
    for split in ("dev", "test"):
        for example in splits[split]:
            if example.label not in found:
                problem = f"the class {quoted(example.label)} is not in train"
                raise bad_line(example.file, example.line, problem)
    if all(_NUMBER.fullmatch(name) for name in found):
        return tuple(sorted(found, key=lambda name: (float(name), name)))
    return tuple(sorted(found))


def _labelled(
    texts: Sequence[LabelledText], words: Callable[[str], Sequence[str]], number: Mapping[str, int]
) -> Iterator[Labelled]:
    for example in texts:
        found = words(example.text)
        if not found:
            raise bad_line(example.file, example.line, "the text has no words")
        yield Labelled(found, number[example.label])
