"""Read labelled texts of any classes from TSV, CSV, JSON lines, or one folder per class, and split them."""

import collections
import csv
import dataclasses
import functools
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.files import MAX_LINE, SPLITS, PathLike, find_splits, folder_entries, iter_lines
from dynskip_jax.data.messages import bad_file, bad_line, check_label, printable, quoted, shown
from dynskip_jax.data.sentences import Labelled

Column = str | int
Rows = Iterator[tuple[int, list[str]]]  # number of the first line, and fields

_JSON_ENDINGS = ("jsonl", "ndjson", "json")
_ENDINGS = ("tsv", "csv", *_JSON_ENDINGS)
_COLUMN_NUMBER = re.compile(r"[0-9]{1,6}")
_LISTED = 12  # number of classes that are listed in a message
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


class LabelledText(NamedTuple):
    """A text and the name of its class, with its file and line (from 1) for error messages."""

    text: str
    label: str
    file: str
    line: int


@dataclasses.dataclass(frozen=True)
class LabelledTextCorpus:
    """Texts of any number of classes in three splits."""

    name: str
    source: str
    classes: tuple[str, ...]  # of train, sorted by name, or by value if all are numbers
    splits: Mapping[str, Sequence[LabelledText]]
    notes: Sequence[str]  # lines for messages: which splits were drawn from train, and what looks wrong

    @property
    def about(self) -> str:
        """Readable line with the number of texts of each class, and the accuracy of the majority baseline."""
        labels = {split: [text.label for text in texts] for split, texts in self.splits.items()}
        counts = collections.Counter(labels["train"])
        majority = max(self.classes, key=counts.__getitem__)
        sizes = ", ".join(f"{len(own):,} of {split}" for split, own in labels.items())
        classes = ", ".join(f"{shown(name)} {counts[name]:,}" for name in self.classes[:_LISTED])
        more = ", …" if len(self.classes) > _LISTED else ""
        shares = (f"{100 * own.count(majority) / len(own):.1f} % of {split}" for split, own in labels.items())
        baseline = f"always predicting {quoted(majority)} is right for {', '.join(shares)}"
        return f"texts: {sizes}; {len(self.classes)} classes, in train {classes}{more}; {baseline}"

    def labelled(self, words: Callable[[str], Sequence[str]]) -> dict[str, Iterator[Labelled]]:
        """Return the words and class indices of each split, for `sentence_corpus`."""
        return {split: labelled_words(texts, words, self.classes) for split, texts in self.splits.items()}


def labelled_words(
    texts: Sequence[LabelledText], words: Callable[[str], Sequence[str]], classes: Sequence[str]
) -> Iterator[Labelled]:
    """Yield the words of each text and the index of its class."""
    number = {name: i for i, name in enumerate(classes)}
    for example in texts:
        found = words(example.text)
        if not found:
            raise bad_line(example.file, example.line, "the text has no words")
        if example.label not in number:
            problem = f"the class {quoted(example.label)} is not among those of train: {', '.join(classes)}"
            raise bad_line(example.file, example.line, problem)
        yield Labelled(found, number[example.label])


def find_labelled_text(
    data: PathLike,
    *,
    text: Column = "text",
    label: Column = "label",
    header: bool | None = None,
    share: float = 0.1,
) -> LabelledTextCorpus:
    """Read labelled texts from a file or a folder.

    A folder holds files for train, dev and test (TSV, CSV or JSON lines), or folders for train, dev and test
    with a folder per class that contains one file per text, or a folder per class.

    Args:
        text: Column or JSON key of the text. A column is a name or a number counted from 0.
        label: Column or JSON key of the class.
        header: Whether the first line names the columns. None: it does if `text` or `label` is a name.
        share: Fraction of the texts that is drawn from train for a missing split (`stratified_split`).
    """
    path = Path(data).expanduser()
    found = _read_splits(path, functools.partial(read_labelled_file, text=text, label=label, header=header))
    train, notes = found["train"], []
    counts = collections.Counter(example.label for example in train)
    first = train[0]
    if len(counts) < 2:
        raise bad_file(path, f"has only the class {quoted(first.label)} in train: two are needed")
    # No header was read, and there is no file for each text.
    may_be_header = first.line == 1 < train[-1].line and _ending(first.file) not in _JSON_ENDINGS
    # The label of the first line occurs nowhere else, or its text is a number.
    if may_be_header and (counts[first.label] == 1 or _NUMBER.fullmatch(first.text.strip())):
        problem = f"looks like a header, and is read as a text with the label {quoted(first.label)}"
        notes.append(f"the first line of {first.file} {problem}: --header yes leaves it out")
    if missing := [split for split in ("dev", "test") if split not in found]:
        drawn = stratified_split([example.label for example in train], missing, share, seed=0)
        found |= {split: [train[i] for i in places] for split, places in drawn.items()}
        sizes = " and ".join(f"{len(found[split]):,} as {split}" for split in missing)
        notes.append(f"drawn from train, the same share of each class: {sizes}")
    splits = {split: found[split] for split in SPLITS}
    if not all(splits.values()):
        raise bad_file(path, "has too few texts to draw dev and test from train: give files for them")
    are_numbers = all(map(_NUMBER.fullmatch, counts))
    classes = tuple(sorted(counts, key=(lambda name: (float(name), name)) if are_numbers else None))
    name = printable(path.resolve().name.removesuffix(".gz"))
    return LabelledTextCorpus(name, f"{'the folder ' * path.is_dir()}{path}", classes, splits, notes)


def read_labelled_file(
    path: PathLike, *, text: Column = "text", label: Column = "label", header: bool | None = None
) -> list[LabelledText]:
    """Read a file of labelled texts: CSV, JSON lines (`.jsonl`, `.ndjson`, `.json`), or else TSV.

    The separator of CSV is the comma, semicolon or tab for which the first row has both columns. In TSV,
    quotes are part of the text.
    """
    ending = _ending(path)
    if ending in _JSON_ENDINGS:
        records = _json_records(path, text, label)
    else:
        rows = _csv_rows(path, (text, label)) if ending == "csv" else tab_rows(path)
        if header is None:
            header = not all(_COLUMN_NUMBER.fullmatch(str(column)) for column in (text, label))
        records = chosen_columns(path, rows, (text, label), header=header)
    texts = [_example(path, number, *fields) for number, fields in records]
    if not texts:
        raise bad_file(path, "holds no labelled text: is it the right file?")
    return texts


def stratified_split(
    labels: Sequence[Any], parts: Sequence[str], share: float, seed: int
) -> dict[str, Int[np.ndarray, "_"]]:
    """Split examples at random into parts and train, with about the same fraction of each class in each one.

    Each part gets its share of all examples, at least one, and every class keeps an example in train.
    """
    rng = np.random.default_rng(seed)
    # Not `np.unique` of the labels, whose array has room for the longest one at each example.
    index = {label: i for i, label in enumerate(sorted({*labels}))}
    numbers = np.array([index[label] for label in labels])
    sizes = np.bincount(numbers)
    # Each class is spread evenly over [0, 1), from which each part takes the next examples.
    place = np.ones(len(labels))
    for members in np.split(np.argsort(numbers, kind="stable"), np.cumsum(sizes)[:-1]):
        free = rng.permutation(members)[1:]
        place[free] = (np.arange(len(free)) + rng.random()) / len(members)
    size, room = max(1, round(share * len(labels))), len(labels) - len(sizes)
    ends = np.minimum(size * np.arange(1, len(parts) + 1), room)
    split = np.split(np.argsort(place, kind="stable"), ends)
    return {part: np.sort(members) for part, members in zip((*parts, "train"), split, strict=True)}


def _read_splits(path: Path, read: Callable[[Path], list[LabelledText]]) -> dict[str, list[LabelledText]]:
    """Return the texts of the splits found at `path`; without separate splits, all texts are `train`."""
    if not path.is_dir():
        return {"train": read(path)}
    found = find_splits(path, (*_ENDINGS, "txt"), folders=True)
    if not found:
        return {"train": _read_classes(path)}
    if "train" not in found:
        raise bad_file(path, "has no file for the train split: put one there, such as train.tsv")
    return {split: (_read_classes if own.is_dir() else read)(own) for split, own in found.items()}


def _read_classes(path: Path) -> list[LabelledText]:
    """Return the texts of a folder that has one folder per class; sub-folders belong to their class.

    Run folders hold no texts: they may lie in the folder in which the user works.
    """
    texts, folders = [], [(own, own.name) for own in reversed(folder_entries(path)) if own.is_dir()]
    while folders:
        folder, label = folders.pop()
        entries = folder_entries(folder)
        if {"config.json", "checkpoints"} <= {entry.name for entry in entries}:
            continue
        texts += [_example(file, 1, "\n".join(iter_lines(file)), label) for file in entries if file.is_file()]
        folders += [(own, label) for own in reversed(entries) if own.is_dir()]
    if not texts:
        problem = "has no texts: it needs train.tsv, train.csv or train.jsonl, or a folder for each class"
        raise bad_file(path, f"{problem} with a text in each file")
    return texts


def _ending(path: PathLike) -> str:
    return os.path.basename(path).lower().removesuffix(".gz").rpartition(".")[2]


def _json_records(path: PathLike, text: Column, label: Column) -> Rows:
    for number, line in enumerate(iter_lines(path), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line, object_pairs_hook=_without_repeats)
            if not isinstance(found, dict):
                raise ValueError(f"got {quoted(found)}")
        except (ValueError, RecursionError) as error:
            raise bad_line(path, number, f"expected a JSON object on each line ({error})") from None
        for key, kinds, kind in ((text, str, "text"), (label, (str, int, float), "text or a number")):
            if not isinstance(found.get(key), kinds) or found[key] != found[key]:  # NaN
                raise bad_line(path, number, f"expected {kind} under {quoted(key)} in {quoted(found)}")
        value = found[label]
        # Half a surrogate pair becomes "?".
        words = found[text].encode(errors="replace").decode()
        yield number, [words, value if isinstance(value, str) else json.dumps(value)]


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {quoted(next(n for n in names if names.count(n) > 1))} occurs twice")
    return found


def tab_rows(path: PathLike) -> Rows:
    """Yield the fields of each line that is not blank, separated by tabs; quotes are part of a field."""
    for number, line in enumerate(iter_lines(path), 1):
        if line.strip():
            yield number, line.split("\t")


def _csv_rows(path: PathLike, columns: Sequence[Column]) -> Rows:
    """Yield the rows of a CSV file, each with the number of its first line."""
    lines = (f"{line}\n" for line in iter_lines(path))  # with line ends, which quoted fields include
    limit, number = csv.field_size_limit(MAX_LINE), 1
    try:
        head, mark = next(lines, ""), ","
        for candidate in "\t;,":
            first = next(csv.reader([head], delimiter=candidate, skipinitialspace=True), [])
            mark = candidate if all(_places(first, column) for column in columns) else mark
        how = dict(delimiter=mark, strict=True, skipinitialspace=True)
        rows = csv.reader(itertools.chain([head], lines), **how)
        for row in rows:
            if len(row) > 1 or "".join(row).strip():
                yield number, row
            number = rows.line_num + 1
    except csv.Error as error:
        problem = f"no CSV ({error}): a field with quotes stands in quotes, its own are doubled"
        raise bad_line(path, number, problem) from None
    finally:
        csv.field_size_limit(limit)


def chosen_columns(path: PathLike, rows: Rows, columns: Sequence[Column], *, header: bool) -> Rows:
    """Yield the fields of each row in these columns, after checking that all rows are equally long."""
    width, chosen = 0, []
    for number, fields in rows:
        if not chosen:
            width = len(fields)
            for column in columns:
                places = _places(fields, column)
                if not places:
                    have = ", ".join(shown(name.strip(), 15) for name in fields[:5])
                    problem = f"no column {quoted(column)} among {have}"
                    raise bad_line(path, number, f"{problem}: give its name, or its number counted from 0")
                if len(places) > 1:
                    problem = f"two columns are called {quoted(column)}: rename one, or give a number"
                    raise bad_line(path, number, f"{problem} counted from 0")
                chosen += places
            if header:
                continue
        if len(fields) != width:
            raise bad_line(path, number, f"{len(fields)} columns, but the first line has {width}")
        yield number, [fields[place] for place in chosen]


def _places(names: Sequence[str], column: Column) -> list[int]:
    """Return the indices of the columns of this name, or of the one with this number."""
    if not _COLUMN_NUMBER.fullmatch(str(column)):
        return [place for place, name in enumerate(names) if name.strip() == column]
    return [int(column)] if int(column) < len(names) else []


def _example(path: PathLike, number: int, text: str, label: str) -> LabelledText:
    check_label(label, "label", path, number)
    return LabelledText(text, label.strip(), os.fspath(path), number)
