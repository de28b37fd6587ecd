"""Count what readers leave out or change in users' files, and tell it in one line for each kind."""

import os
import unicodedata
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from dynskip_jax.data.messages import bad_file, bad_line, shown


class LeftOut(NamedTuple):
    """A kind of line or file that readers leave out."""

    problem: str  # in the error of `--strict`, after the name of the file or line
    plural: str  # in the line that counts them


EMPTY = LeftOut("the text has no words", "texts without words")
COMMENT = LeftOut("a comment, which begins with #", "comments, which begin with #")

_NOT_NFC = "labels in another Unicode form, now in NFC"


class DataNotes:
    """What readers leave out or change, and where first; `strict` refuses what is left out."""

    def __init__(self, *, strict: bool = False):
        self._strict = strict
        self._found: dict[str, tuple[int, str]] = {}  # how often, and where first
        self._lines: list[str] = []

    def leave_out(
        self, kind: LeftOut, where: str | os.PathLike[str], line: int | None = None
    ) -> None:
        """Count a line, or a file, that is left out."""
        if self._strict:
            problem = f"{kind.problem}: mend it, or leave --strict out"
            if line is None:
                raise bad_file(where, problem)
            raise bad_line(where, line, problem)
        self.count(f"left out: {kind.plural}", where, line)

    def count(self, what: str, where: str | os.PathLike[str], line: int | None = None) -> None:
        """Count what is read in a way that its author may not expect."""
        count, first = self._found.get(what, (0, ""))
        # The first place is named, and the others are counted.
        if not count:
            first = shown(os.fspath(where), 75)
            if line is not None:
                first = f"{first}, line {line}"
        self._found[what] = count + 1, first

    def add(self, line: str) -> None:
        """Add a line."""
        self._lines.append(line)

    def label(self, text: str, where: str | os.PathLike[str], line: int | None = None) -> str:
        """Return a label without spaces around it and in NFC, so that equal names are equal."""
        text = text.strip()
        label = unicodedata.normalize("NFC", text)
        if label != text:
            self.count(_NOT_NFC, where, line)
        return label

    @property
    def lines(self) -> list[str]:
        """Lines for messages."""
        counted = [
            f"{what} ({count:,}; first {where})" for what, (count, where) in self._found.items()
        ]
        return [*self._lines, *counted]


def repeats(splits: Mapping[str, Sequence[Hashable]]) -> list[str]:
    """Return a line that counts the texts of other splits that train has, too, if any."""
    # A text of train that is tested, too, makes scores too good.
    train = set(splits["train"])
    counts = []
    for split, texts in splits.items():
        repeated = [text for text in texts if text in train]
        if repeated and split != "train":
            distinct = len(set(repeated))
            counts.append(f"{len(repeated):,} of {len(texts):,} of {split} ({distinct:,} distinct)")
    if not counts:
        return []
    return [f"train has the same texts, which makes scores too good: {', '.join(counts)}"]
