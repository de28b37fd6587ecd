"""Find the files of a folder with a folder for each class; no link is followed in a circle."""

import collections
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dynskip_jax.data.files import folder_entries
from dynskip_jax.data.messages import bad_file, quoted
from dynskip_jax.data.notes import DataNotes, LeftOut

_LOOP = LeftOut("is a link to a folder above it", "links to a folder above them")
_REPEATED = LeftOut("is a link to what is read already", "links to what is read already")
_BROKEN = LeftOut("is a link that leads nowhere", "links that lead nowhere")
_SPECIAL = LeftOut("is a named pipe or a device, not a file", "named pipes and devices")


class ClassFile(NamedTuple):
    """A file, and the name of the class in whose folder it lies."""

    path: Path
    label: str


class _Entry(NamedTuple):
    """A file or folder of a class."""

    path: Path
    real: str  # its path without links, except that it may be a link itself
    label: str
    is_linked: bool = False  # reached through a link


def class_files(root: Path, notes: DataNotes) -> Iterator[ClassFile]:
    """Yield the files below each folder in `root`, whose name is their class.

    Each real file is read once. Links come last, and are left out if they lead to what is read
    already, or to a folder above. Run folders hold no texts: they may lie in the folder in which
    the user works.
    """
    start = os.path.realpath(root)
    pending = []  # a stack
    for own in reversed(folder_entries(root)):
        if not own.is_file():
            pending.append(_Entry(own, os.path.join(start, own.name), own.name))
    links: collections.deque[_Entry] = collections.deque()
    read: dict[str, _Entry] = {}  # by real path

    # Real files come first, so that a link to one of them is what is left out.
    while pending or links:
        if pending:
            entry = pending.pop()
            mode = entry.path.lstat().st_mode
            if stat.S_ISLNK(mode):
                links.append(entry)
                continue
        else:
            entry = links.popleft()
            if not entry.path.exists():
                notes.leave_out(_BROKEN, entry.path)
                continue
            mode = entry.path.stat().st_mode
            real = os.path.realpath(entry.path)
            if _is_above(real, os.path.dirname(entry.real)) or _is_above(real, start):
                notes.leave_out(_LOOP, entry.path)
                continue
            entry = entry._replace(real=real, is_linked=True)

        # By real path: two ways to one file would put the same text twice.
        other = read.setdefault(entry.real, entry)
        if other is not entry:
            if other.is_linked and other.label != entry.label:
                both = f"{quoted(other.label)} and {quoted(entry.label)}"
                problem = f"is in two classes by links, {both}"
                raise bad_file(entry.path, f"{problem}: keep one of them")
            notes.leave_out(_REPEATED, entry.path)
        elif stat.S_ISREG(mode):
            yield ClassFile(entry.path, entry.label)
        elif stat.S_ISDIR(mode):
            pending += _entries_of(entry)
        else:
            notes.leave_out(_SPECIAL, entry.path)


def _entries_of(folder: _Entry) -> list[_Entry]:
    """Return a folder's content in reverse: folders, then files; nothing of a run folder."""
    entries = folder_entries(folder.path)
    if {"config.json", "checkpoints"} <= {own.name for own in entries}:
        return []
    entries.sort(key=Path.is_dir)
    return [
        folder._replace(path=own, real=os.path.join(folder.real, own.name))
        for own in reversed(entries)
    ]


def _is_above(folder: str, other: str) -> bool:
    """Return whether `folder` is `other`, or contains it."""
    return os.path.commonpath([folder, other]) == folder
