"""Read labelled texts from TSV, CSV, JSON lines or one folder per class, and split them."""

import collections
import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.files import (
    SPLITS,
    PathLike,
    files_below,
    find_splits,
    folder_entries,
    iter_lines,
)
from dynskip_jax.data.notes import NO_WORDS, DataNotes, repeats
from dynskip_jax.data.sentences import Labelled, has_words
from dynskip_jax.data.tables import Column, Delimiter, Row, read_table
from dynskip_jax.terminal.messages import (
    bad_file,
    bad_line,
    checked_label,
    normalized,
    printable,
    quoted,
    shown,
)

_JSON_ENDINGS = ("jsonl", "ndjson", "json")
_ENDINGS = ("tsv", "csv", *_JSON_ENDINGS)
_FLAGS = ("--text-column", "--label-column")
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
    # Lines for messages: which splits were drawn from train, and what looks wrong.
    notes: Sequence[str]

    @property
    def about(self) -> str:
        """Readable line with the texts of each class, and the majority baseline's accuracy."""
        labels = {split: [text.label for text in texts] for split, texts in self.splits.items()}
        counts = collections.Counter(labels["train"])
        majority = max(self.classes, key=counts.__getitem__)
        sizes = ", ".join(f"{len(own):,} of {split}" for split, own in labels.items())
        classes = ", ".join(f"{shown(name)} {counts[name]:,}" for name in self.classes[:_LISTED])
        more = ", …" if len(self.classes) > _LISTED else ""
        shares = (
            f"{100 * own.count(majority) / len(own):.1f} % of {split}"
            for split, own in labels.items()
        )
        baseline = f"always predicting {quoted(majority)} is right for {', '.join(shares)}"
        return f"texts: {sizes}; {len(self.classes)} classes, in train {classes}{more}; {baseline}"

    def labelled(self, words: Callable[[str], Sequence[str]]) -> dict[str, Iterator[Labelled]]:
        """Return the words and class indices of each split, for `sentence_corpus`."""
        return {
            split: labelled_words(texts, words, self.classes)
            for split, texts in self.splits.items()
        }


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
    data: PathLike,
    *,
    text: Column = "text",
    label: Column = "label",
    header: bool | None = None,
    delimiter: Delimiter = "auto",
    share: float = 0.1,
) -> LabelledTextCorpus:
    """Read labelled texts from a file or a folder.

    A folder holds files for train, dev and test (TSV, CSV or JSON lines), or folders for train, dev
    and test with a folder per class that contains one file per text, or a folder per class.

    Args:
        text: Column or JSON key of the text. A column is a name or a number counted from 0.
        label: Column or JSON key of the class.
        header: Whether the first line names the columns. None: it does if `text` or `label` is no
            number of a column.
        delimiter: What separates columns; `auto` is a tab in TSV, and detected in CSV.
        share: Fraction of the texts that is drawn from train for a missing split
            (`stratified_split`).
    """
    path = Path(data)
    notes = DataNotes()
    columns = dict(text=text, label=label, header=header, delimiter=delimiter)
    read = functools.partial(read_labelled_file, **columns, notes=notes)
    found = _read_splits(path, read, notes)
    train = found["train"]
    counts = collections.Counter(example.label for example in train)
    if len(counts) < 2:
        label = quoted(train[0].label)
        raise bad_file(path, f"has only the class {label} in train: two are needed")
    lines = _doubts(train, counts)

    splits = dict(found)
    missing = [split for split in ("dev", "test") if split not in found]
    if missing:
        drawn = stratified_split([example.label for example in train], missing, share, seed=0)
        splits |= {split: [train[i] for i in places] for split, places in drawn.items()}
        sizes = " and ".join(f"{len(splits[split]):,} as {split}" for split in missing)
        lines.append(f"drawn from train, the same share of each class: {sizes}")
    splits = {split: splits[split] for split in SPLITS}
    if not all(splits.values()):
        problem = "has too few texts to draw dev and test from train: give files for them"
        raise bad_file(path, problem)

    classes = tuple(sorted(counts))
    if all(map(_NUMBER.fullmatch, counts)):
        classes = tuple(sorted(classes, key=float))
    name = printable(path.resolve().name.removesuffix(".gz"))
    source = f"{'the folder ' * path.is_dir()}{path}"
    # Hashes of texts without case and blanks, because the texts may take much memory.
    keys = {
        split: [hash(" ".join(one.text.lower().split())) for one in own]
        for split, own in splits.items()
    }
    lines = [*lines, *notes.lines, *repeats(keys)]
    return LabelledTextCorpus(name, source, classes, splits, lines)


def _doubts(train: Sequence[LabelledText], counts: Mapping[str, int]) -> list[str]:
    """Return lines on what looks like a mistake: a header read as a text, or one class as two."""
    lines = []
    first = train[0]
    is_table = first.line == 1 < train[-1].line and _ending(first.file) not in _JSON_ENDINGS
    # The label of the first line occurs nowhere else, or its text is a number.
    if is_table and (counts[first.label] == 1 or _NUMBER.fullmatch(first.text.strip())):
        problem = f"looks like a header, and is read as a text with the label {quoted(first.label)}"
        lines.append(f"the first line of {first.file} {problem}: --header yes leaves it out")

    alike: dict[str | float, list[str]] = {}
    for label in sorted(counts):
        key = float(label) if _NUMBER.fullmatch(label) else label.casefold()
        alike.setdefault(key, []).append(label)
    for labels in alike.values():
        if len(labels) > 1:
            lines.append(f"classes that may be one: {', '.join(map(quoted, labels))}")
    return lines


def read_labelled_file(
    path: PathLike,
    *,
    text: Column = "text",
    label: Column = "label",
    header: bool | None = None,
    delimiter: Delimiter = "auto",
    notes: DataNotes | None = None,
) -> list[LabelledText]:
    """Read a file of labelled texts: CSV, JSON lines (`.jsonl`, `.ndjson`, `.json`), or else TSV.

    In TSV, quotes are part of the text; with another delimiter than a tab, such a file is read as
    CSV.
    """
    notes = notes or DataNotes()
    ending = _ending(path)
    if ending in _JSON_ENDINGS:
        records = _json_records(path, text, label)
    else:
        has_quotes = ending == "csv" or delimiter not in ("auto", "tab")
        if not has_quotes:
            delimiter = "tab"
        how = dict(flags=_FLAGS, header=header, delimiter=delimiter, has_quotes=has_quotes)
        records = read_table(path, (text, label), **how)
    texts = []
    for number, fields in records:
        texts += _examples(path, number, *fields, notes)
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


def _read_splits(
    path: Path, read: Callable[[Path], list[LabelledText]], notes: DataNotes
) -> dict[str, list[LabelledText]]:
    """Return the texts of the splits at `path`; without separate splits, all texts are `train`."""
    if not path.is_dir():
        return {"train": read(path)}
    found = find_splits(path, (*_ENDINGS, "txt"), folders=True)
    if not found:
        return {"train": _read_classes(path, notes)}
    if "train" not in found:
        raise bad_file(path, "has no file for the train split: put one there, such as train.tsv")
    texts = {}
    for split, own in found.items():
        texts[split] = _read_classes(own, notes) if own.is_dir() else read(own)
    return texts


def _read_classes(path: Path, notes: DataNotes) -> list[LabelledText]:
    """Return the texts of a folder that has a folder for each class, with a text in each file."""
    texts = []
    for folder in filter(Path.is_dir, folder_entries(path)):
        files = files_below(folder)
        # Run folders hold no texts; they may lie in the folder in which the user works.
        if any(file.name == "config.json" for file in files):
            continue
        for file in files:
            texts += _examples(file, 1, "\n".join(iter_lines(file)), folder.name, notes)
    if not texts:
        files = "train.tsv, train.csv or train.jsonl"
        problem = f"has no texts: it needs {files}, or a folder for each class"
        raise bad_file(path, f"{problem} with a text in each file")
    return texts


def _ending(path: PathLike) -> str:
    return os.path.basename(path).lower().removesuffix(".gz").rpartition(".")[2]


def _json_records(path: PathLike, text: Column, label: Column) -> Iterator[Row]:
    """Yield each line's text and label."""
    kinds = (
        (text, str, "text", _FLAGS[0]),
        (label, (str, int, float), "text or a number", _FLAGS[1]),
    )
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
        for key, types, kind, flag in kinds:
            value = found.get(normalized(str(key)))
            if not isinstance(value, types) or value != value:  # NaN
                problem = f"expected {kind} under {quoted(key)} ({flag}) in {quoted(found)}"
                raise bad_line(path, number, problem)
            fields.append(value if isinstance(value, str) else json.dumps(value))
        # Half a surrogate pair becomes "?".
        fields[0] = fields[0].encode(errors="replace").decode()
        yield Row(number, fields)


def _examples(
    path: PathLike, number: int, text: str, label: str, notes: DataNotes
) -> list[LabelledText]:
    """Return a text with its class; nothing if the text has no words."""
    if not has_words(text):
        notes.count(NO_WORDS, path, number)
        return []
    label = checked_label(label, "label", path, number)
    return [LabelledText(text, label, os.fspath(path), number)]
