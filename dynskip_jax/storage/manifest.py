"""The manifest of a run folder: size and SHA-256 of each file that belongs to the run.

It is written last, after the files that it names, and so decides what the run is: a process that
is killed between two writes leaves files that the manifest does not name, which nobody reads.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from dynskip_jax.errors import UserError
from dynskip_jax.storage.files import read_json, write_atomically

FORMAT = 5  # of run folders; a folder of another format is refused
NAME = "manifest.json"
METRICS = "metrics.jsonl"
RESULT = "result.json"


class Entry(NamedTuple):
    """A file as the run wrote it."""

    bytes: int
    sha256: str


Files = dict[str, Entry]  # by path inside the run folder


def entry_of(content: str) -> Entry:
    """Return the entry of a file with this content."""
    data = content.encode()
    return Entry(len(data), hashlib.sha256(data).hexdigest())


def entries_of(folder: Path, part: Path) -> Files:
    """Return the entries of a file, or of all files below a folder, once they are on disk."""
    found = {}
    paths = [part, *part.rglob("*")]
    for path in sorted(path for path in paths if path.is_file()):
        with open(path, "r+b") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[path.relative_to(folder).as_posix()] = Entry(file.tell(), digest)
    return found


def write_manifest(folder: Path, files: Mapping[str, Entry]) -> None:
    """Write the manifest of a run folder, as the last of its files."""
    written = {name: entry._asdict() for name, entry in sorted(files.items())}
    manifest = {"format": FORMAT, "files": written}
    write_atomically(folder / NAME, json.dumps(manifest, indent=1) + "\n")


def read_manifest(folder: Path) -> Files:
    """Return the files of a run folder, each of which must be as the run wrote it."""
    manifest = read_json(folder / NAME)
    try:
        found = manifest["format"]
        files = {name: Entry(**entry) for name, entry in manifest["files"].items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{folder / NAME} is no manifest ({error}): restore it") from None
    if found != FORMAT:
        raise other_format(folder, found)

    is_finished = RESULT in files
    for name, entry in files.items():
        # An unfinished run goes on to write records; they begin with those of its checkpoint.
        grows = name == METRICS and not is_finished
        problem = _problem(folder / name, entry, grows=grows)
        if problem is not None:
            raise UserError(
                f"{folder / name} {problem}: restore it, copy the whole folder again, or choose "
                "another --run-dir"
            )

    # A part of an array may have no file; one that was added would be read.
    step = checkpoint_step(files)
    if step is not None:
        part = folder / "checkpoints" / step
        for path in part.rglob("*"):
            if path.is_file() and path.relative_to(folder).as_posix() not in files:
                raise UserError(f"{path} is no file of the run: remove it")
    return files


def checkpoint_step(files: Mapping[str, Entry]) -> str | None:
    """Return the step of the checkpoint that a manifest names, as its folder is called."""
    parts = (PurePosixPath(name).parts for name in files)
    return next((path[1] for path in parts if path[0] == "checkpoints" and len(path) > 2), None)


def other_format(folder: Path, found: object) -> UserError:
    """Return the error for a folder of another format."""
    reader = "commit 9f0b6f26 reads it" if found == 4 else "use the version that wrote it"
    return UserError(
        f"{folder} holds a run of format {str(found)[:20]}, and this version reads and writes "
        f"format {FORMAT}: {reader}, or choose another --run-dir"
    )


def _problem(path: Path, entry: Entry, *, grows: bool) -> str | None:
    """Return how a file differs from its entry; None if it does not."""
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    if size < entry.bytes or (size > entry.bytes and not grows):
        return f"has {size:,} bytes, and the run wrote {entry.bytes:,}"
    with open(path, "rb") as file:
        if grows:
            digest = hashlib.sha256(file.read(entry.bytes)).hexdigest()
        else:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != entry.sha256:
        return "is not as the run wrote it (its SHA-256 differs)"
    return None
