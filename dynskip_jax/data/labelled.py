"""Read labelled texts of any classes from TSV, CSV, JSON lines, or one folder per class, and split them."""

import collections
import csv
import dataclasses
import functools
import hashlib
import itertools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.files import (
    MAX_LINE,
    SPLIT_WORDS,
    SPLITS,
    PathLike,
    find_splits,
    iter_lines,
    parse_json,
    read_text,
)
from dynskip_jax.data.messages import bad_file, bad_line, printable, quoted, shown
from dynskip_jax.data.sentences import Labelled
from dynskip_jax.errors import UserError

Column = str | int
_Record = tuple[int, str, str]  # line, text and label

_JSON_ENDINGS = ("jsonl", "ndjson", "json")
_ENDINGS = ("tsv", "csv", *_JSON_ENDINGS)
# A column of labels has few different values: if more than this fraction differ, it is the wrong column.
# Files with at most `_FEW_EXAMPLES` texts are not checked.
_MOST_CLASSES, _FEW_EXAMPLES = 0.5, 20
_SEPARATORS = (",", ";", "\t")  # of CSV; the first one that fits best is used
_SNIFFED_LINES = 20
_COLUMN_NUMBER = re.compile(r"-?[0-9]{1,6}")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_NO_TEXTS = ("thumbs.db", "desktop.ini")  # files that systems put into folders, besides hidden ones


class LabelledText(NamedTuple):
    """A text and the name of its class, with its file and line (from 1) for error messages."""

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
        notes: Lines for messages: which splits were drawn from train, and what looks wrong.
    """

    name: str
    source: str
    classes: tuple[str, ...]
    splits: Mapping[str, Sequence[LabelledText]]
    notes: Sequence[str] = ()

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
        """Return iterators over the words and class indices of each split, for `labelled_corpus`."""
        number = {name: i for i, name in enumerate(self.classes)}
        return {split: labelled_words(texts, words, number) for split, texts in self.splits.items()}


def labelled_words(
    texts: Sequence[LabelledText], words: Callable[[str], Sequence[str]], number: Mapping[str, int]
) -> Iterator[Labelled]:
    """Yield the words of each text and the number of its class."""
    for example in texts:
        found = words(example.text)
        if not found:
            raise bad_line(example.file, example.line, "the text has no words")
        yield Labelled(found, number[example.label])


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

    A folder holds files for train, dev and test (TSV, CSV or JSON lines), or folders for train, dev and test
    with a folder per class that contains one file per text, or a folder per class, or one file. If dev or
    test is missing, it is drawn from train (`stratified_split`).

    Args:
        data: The folder or file.
        split_seed: Random seed for drawing missing splits.
        text: Column or JSON key of the texts. A column is a name or a number counted from 0.
        label: Column or JSON key of the classes.
        header: Whether the first line of TSV and CSV contains the names of the columns. None: it does if
            `text` or `label` is a name.
        dev_share: Fraction of the texts that becomes dev if dev is missing.
        test_share: Fraction of the texts that becomes test if test is missing.
    """
    path = Path(data).expanduser()
    found = _read_splits(path, functools.partial(read_labelled_file, text=text, label=label, header=header))
    train, notes = found["train"], []
    counts = collections.Counter(example.label for example in train)
    if len(train) > _FEW_EXAMPLES and len(counts) > _MOST_CLASSES * len(train):
        problem = f"has {len(counts):,} different labels in {len(train):,} texts of train"
        raise bad_file(path, f"{problem}: is the column of labels the right one?")
    if _begins_with_header(train, counts):
        notes.append(
            f"the first line of {train[0].file} looks like a header, and is read as a text with the label "
            f"{quoted(train[0].label)}: --header yes leaves it out"
        )
    shares = {"dev": dev_share, "test": test_share}
    missing = {split: share for split, share in shares.items() if split not in found}
    if missing:
        drawn = stratified_split([example.label for example in train], missing, split_seed)
        found |= {split: [train[i] for i in places] for split, places in drawn.items()}
        sizes = " and ".join(f"{len(found[split]):,} as {split}" for split in missing)
        notes.append(f"drawn from train with the seed {split_seed}, the same share of each class: {sizes}")
    splits = {split: found[split] for split in SPLITS}
    for split, texts in splits.items():
        if not texts:
            raise bad_file(path, f"has too few texts to draw {split} from train: give a file for it")
    name = printable(path.resolve().name.removesuffix(".gz"))
    classes = _classes(path, splits)
    return LabelledTextCorpus(name, f"{'the folder ' * path.is_dir()}{path}", classes, splits, notes)


def read_labelled_file(
    path: PathLike, *, text: Column = "text", label: Column = "label", header: bool | None = None
) -> list[LabelledText]:
    """Read a file of labelled texts: CSV, JSON lines (`.jsonl`, `.ndjson`, `.json`), or else TSV.

    The separator of CSV is the comma, semicolon or tab for which the first row has both columns and most rows
    are equally long. In TSV, quotes are part of the text.
    """
    ending = _ending(path)
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
    """Split examples at random, with about the same fraction of each class in each part.

    Each part gets its share of all examples, at least one. Every class that has at least two examples per
    part gives one to each; fractions of an example go to classes drawn at random, so that many small classes
    are represented, too. Every class keeps an example in train.
    """
    if min(shares.values(), default=0) < 0 or sum(shares.values()) >= 1:
        given = ", ".join(f"{share:g} for {part}" for part, share in shares.items())
        raise UserError(f"shares must not be negative and must leave something for train, got {given}")
    rng = np.random.default_rng(seed)
    members: dict[Any, list[int]] = {}
    for place, label in enumerate(labels):
        members.setdefault(label, []).append(place)
    names = sorted(members)
    rest = {name: rng.permutation(members[name]).tolist() for name in names}
    parts: dict[str, Int[np.ndarray, _]] = {}
    for part, share in shares.items():
        if not share:
            parts[part] = np.zeros(0, int)
            continue
        exact = np.array([share * len(members[name]) for name in names])
        least = np.array([len(members[name]) >= 2 * (len(shares) + 1) for name in names])
        room = np.array([len(rest[name]) - 1 for name in names])
        counts = np.minimum(np.maximum(np.floor(exact + 1e-9), least), room).astype(int)
        missing = max(1, round(share * len(labels))) - counts.sum()
        order = np.lexsort((rng.random(len(names)), counts - exact))  # largest remainders first
        for at in [at for at in order if counts[at] < room[at]][: max(0, missing)]:
            counts[at] += 1
        parts[part] = np.array(
            sorted(place for name, count in zip(names, counts, strict=True) for place in rest[name][:count]),
            int,
        )
        rest = {name: rest[name][count:] for name, count in zip(names, counts, strict=True)}
    return parts | {"train": np.array(sorted(itertools.chain(*rest.values())), int)}


def _begins_with_header(train: Sequence[LabelledText], counts: Mapping[str, int]) -> bool:
    """Return whether the first line is probably no text: its label occurs nowhere else, or it has numbers."""
    first = train[0]
    if first.line > 1 or train[-1].line == 1 or _ending(first.file) in _JSON_ENDINGS:
        return False  # a header was read, or there is a file for each text
    return counts[first.label] == 1 or bool(_NUMBER.fullmatch(first.text.strip()))


def _read_splits(path: Path, read: Callable[[Path], list[LabelledText]]) -> dict[str, list[LabelledText]]:
    """Return the texts of the splits found at `path`; without separate splits, all texts are `train`."""
    if not path.is_dir():
        return {"train": read(path)}
    files = find_splits(path, (*_ENDINGS, "txt"), needed=())
    folders: dict[str, Path] = {}
    for folder in _visible(path, Path.is_dir):
        for split in SPLITS:
            if folder.name.lower() in SPLIT_WORDS[split]:
                if split in folders:
                    both = f"{shown(folders[split].name)} and {shown(folder.name)}"
                    raise bad_file(path, f"has two folders for {split}, {both}: keep one")
                folders[split] = folder
    if files and folders:
        both = " and ".join(shown(next(iter(found.values())).name) for found in (files, folders))
        raise bad_file(path, f"has files and folders for its splits, {both}: keep one kind")
    if found := files or folders:
        if "train" not in found:
            raise bad_file(path, "has no file for the train split: put one there, such as train.tsv")
        return {split: (read if files else _read_class_folders)(own) for split, own in found.items()}
    single = [own for own in _visible(path, Path.is_file) if _ending(own) in _ENDINGS]
    if classes := _visible(path, Path.is_dir):
        if len(single) == 1:
            both = f"the file {shown(single[0].name)} and the folder {shown(classes[0].name)}"
            raise bad_file(path, f"has {both}: name the file itself with --data, or move one of them away")
        return {"train": _read_class_folders(path)}
    if len(single) == 1:
        return {"train": read(single[0])}
    problem = f"has {len(single) or 'no'} files of labelled texts, and none for train: name one train.tsv, "
    raise bad_file(path, f"{problem}train.csv or train.jsonl, or make a folder of texts for each class")


def _read_class_folders(path: Path) -> list[LabelledText]:
    """Return the texts of a folder that has one folder per class; sub-folders belong to their class."""
    texts, folders = [], [(folder, folder.name) for folder in reversed(_visible(path, Path.is_dir))]
    while folders:
        folder, label = folders.pop()
        texts += [_example(file, 1, read_text(file), label) for file in _visible(folder, Path.is_file)]
        folders += [(inner, label) for inner in reversed(_visible(folder, Path.is_dir))]
    if not texts:
        raise bad_file(path, "has no texts: it needs a folder for each class, with a text in each file")
    return texts


def _visible(path: Path, kind: Callable[[Path], bool]) -> list[Path]:
    """Return the files (`Path.is_file`) or folders in `path`, sorted by name, without hidden ones."""
    try:
        own = sorted(path.iterdir())
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error}): check its permissions"
        raise bad_file(path, problem) from None
    return [
        item
        for item in own
        if kind(item) and not item.name.startswith(".") and item.name.lower() not in _NO_TEXTS
    ]


def _ending(path: PathLike) -> str:
    return os.path.basename(path).lower().removesuffix(".gz").rpartition(".")[2]


def _json_records(path: PathLike, text: Column, label: Column) -> Iterator[_Record]:
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
        value = found[label]
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            value = str(int(value)) if value == int(value) else repr(value)
        for key, given, kind in ((text, found[text], "text"), (label, value, "text or a finite number")):
            if not isinstance(given, str):
                raise bad_line(path, number, f"expected {kind} under {quoted(key)}, got {quoted(found[key])}")
        yield number, found[text], value


def _tab_rows(path: PathLike) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(iter_lines(path), 1):
        if line.strip():
            yield number, line.split("\t")


def _csv_rows(path: PathLike, columns: Sequence[Column]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file, each with the number of its first line."""
    lines = (f"{line}\n" for line in iter_lines(path))  # with line ends, which quoted fields include
    head = list(itertools.islice(lines, _SNIFFED_LINES))
    before = csv.field_size_limit(min(MAX_LINE, 2**31 - 1))
    try:
        separator = max(_SEPARATORS, key=lambda separator: _fit(head, separator, columns))
        rows = csv.reader(
            itertools.chain(head, lines), delimiter=separator, strict=True, skipinitialspace=True
        )
        while True:
            number = rows.line_num + 1
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                problem = f"no CSV ({error}): a field with quotes stands in quotes, its own are doubled"
                raise bad_line(path, number, problem) from None
            if not _is_blank(row):
                yield number, row
    finally:
        csv.field_size_limit(before)


def _fit(head: Sequence[str], separator: str, columns: Sequence[Column]) -> float:
    """Return the fraction of rows that are as long as the first; 0 if that lacks one of the columns."""
    rows = csv.reader(head, delimiter=separator, skipinitialspace=True)
    rows = [row for row in rows if not _is_blank(row)]
    places = [place for column in columns for place in _places(rows[0], column)[:1]] if rows else []
    if len(set(places)) < len(columns):
        return 0.0
    return sum(len(row) == len(rows[0]) for row in rows) / len(rows)


def _is_blank(row: Sequence[str]) -> bool:
    return len(row) <= 1 and not "".join(row).strip()


def _column_records(
    path: PathLike, rows: Iterator[tuple[int, list[str]]], text: Column, label: Column, header: bool | None
) -> Iterator[_Record]:
    first = next(rows, None)
    if first is None:
        return
    number, names = first
    chosen = []
    for column in (text, label):
        places = _places(names, column)
        if not places:
            have = ", ".join(shown(name.strip(), 15) for name in names[:5])
            problem = f"no column {quoted(column)} among {have}: give its name, or its number counted from 0"
            raise bad_line(path, number, problem)
        if len(places) > 1:
            problem = f"two columns are called {quoted(column)}: rename one, or give a number counted from 0"
            raise bad_line(path, number, problem)
        chosen += places
    if header is None:
        header = not all(_COLUMN_NUMBER.fullmatch(str(column)) for column in (text, label))
    for number, fields in rows if header else itertools.chain([first], rows):
        if len(fields) != len(names):
            problem = f"{len(fields)} columns, but the first line has {len(names)}"
            raise bad_line(path, number, problem)
        yield number, fields[chosen[0]], fields[chosen[1]]


def _places(names: Sequence[str], column: Column) -> list[int]:
    """Return the indices of the columns of this name, or of the one with this number, also from the end."""
    if not _COLUMN_NUMBER.fullmatch(str(column)):
        return [place for place, name in enumerate(names) if name.strip() == column]
    number = int(column)
    return [number % len(names)] if -len(names) <= number < len(names) else []


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
