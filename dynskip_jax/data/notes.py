"""Count what readers leave out or change in users' files, and tell it in one line for each kind."""

import collections
import os
from collections.abc import Hashable, Mapping, Sequence

from dynskip_jax.terminal.messages import shown

NO_WORDS = "left out: texts without words"
COMMENTS = "left out: comments, which begin with #"


class DataNotes:
    """What readers leave out or change: how often, and where first."""

    def __init__(self):
        self._counts: collections.Counter[str] = collections.Counter()
        self._first: dict[str, str] = {}  # the place of each kind

    def count(self, kind: str, where: str | os.PathLike[str], line: int) -> None:
        """Count a line that is left out, or is read in a way that its author may not expect."""
        self._counts[kind] += 1
        self._first.setdefault(kind, f"{shown(os.fspath(where), 75)}, line {line}")

    @property
    def lines(self) -> list[str]:
        """Lines for messages."""
        counts = self._counts.items()
        return [f"{kind} ({count:,}; first {self._first[kind]})" for kind, count in counts]


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
