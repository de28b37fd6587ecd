"""Write files atomically, and check them."""

import contextlib
import hashlib
import os
from pathlib import Path

from dynskip_jax.errors import UserError


def check_new(path: Path, remedy: str = "remove it, or name another file") -> None:
    """Raise a `UserError` if a file exists already, or if its folder does not exist.

    Args:
        path: Path of the file.
        remedy: What to do about an existing file, for the message.
    """
    for there in (path, _unfinished(path)):
        if there.exists():
            raise UserError(f"{there} exists: {remedy}")
    if not path.absolute().parent.is_dir():
        raise UserError(f"the folder {path.parent} does not exist: make it, or name another")


def write_atomically(path: Path, text: str | bytes) -> None:
    """Write or replace a file. After a crash, it contains either the old text or the whole new one."""
    unfinished = _unfinished(path)
    unfinished.unlink(missing_ok=True)  # of a process that was killed, or a link
    with unfinished.open("xb") as file:
        file.write(text.encode() if isinstance(text, str) else text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    _sync_folder(path.parent)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _sync_folder(path: Path) -> None:
    """Flush the entries of a folder to disk, on systems that can open folders."""
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _unfinished(path: Path) -> Path:
    """Return the path of the temporary file that is written before it replaces `path`."""
    return path.with_name(path.name + ".tmp")
