"""Files that are whole or not there at all."""

import contextlib
import hashlib
import os
from pathlib import Path

from dynskip_jax.errors import UserError


def check_new(path: Path, remedy: str = "remove it, or name another file") -> None:
    """Raise a `UserError` where a file exists already, or its folder does not."""
    for there in (path, _unfinished(path)):
        if there.exists():
            raise UserError(f"{there} exists: {remedy}")
    if not path.absolute().parent.is_dir():
        raise UserError(f"the folder {path.parent} does not exist: make it, or name another")


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file such that after a crash either the old or the new text is there, whole."""
    unfinished = _unfinished(path)
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    _sync_folder(path.parent)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _sync_folder(path: Path) -> None:
    """Put a folder's new names on disk, on systems that can open and flush folders."""
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _unfinished(path: Path) -> Path:
    """Where a file is written before it takes its place."""
    return path.with_name(path.name + ".tmp")
