"""Read and write the files of run folders, which may come from a stranger, and replace them atomically."""

import contextlib
import hashlib
import os
import stat
from pathlib import Path

from dynskip_jax.errors import UserError

FORMAT = 3  # of run folders; a folder of another format is refused
MOST_BYTES = 64 * 2**20  # of a file that is read as a whole
# A link is never followed, and opening a pipe does not wait. Windows has neither flag.
_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises:
        UserError: If `path` is a link, a pipe or a device, or has more than `most` bytes.
        OSError: If it cannot be read.
    """
    with os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UserError(f"{path} has more than {most:,} bytes: restore it, or name another run folder")
    return content


def append_line(path: Path, line: str) -> None:
    """Append a line to a regular file, and wait until it is on disk."""
    with os.fdopen(_open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
        file.write(f"{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write or replace a file. After a crash, it contains either the old content or the whole new one.

    A link at `path` is replaced, and what it points to stays as it is.
    """
    unfinished = _unfinished(path)
    unfinished.unlink(missing_ok=True)  # of a process that was killed
    with os.fdopen(_open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    with contextlib.suppress(OSError):  # not every system can open folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def check_regular(folder: Path) -> None:
    """Raise a `UserError` if a folder contains anything but folders and regular files, at any depth."""
    for at, folders, files in os.walk(folder):
        for name in (*folders, *files):
            mode = os.lstat(path := os.path.join(at, name)).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise _not_regular(Path(path), mode)


def check_new(path: Path, remedy: str = "remove it, or name another file") -> None:
    """Raise a `UserError` if a file exists already, or if its folder does not exist.

    Args:
        path: Path of the file.
        remedy: What to do about an existing file, for the message.
    """
    for there in (path, _unfinished(path)):
        if os.path.lexists(there):
            raise UserError(f"{there} exists: {remedy}")
    if not path.absolute().parent.is_dir():
        raise UserError(f"the folder {path.parent} does not exist: make it, or name another")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a regular file, in hexadecimal."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


def _open(path: Path, flags: int) -> int:
    """Return the descriptor of a regular file."""
    if path.is_symlink():
        raise _not_regular(path, stat.S_IFLNK)
    number = os.open(path, flags | _SAFE, 0o666)
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        raise _not_regular(path, mode)
    return number


def _not_regular(path: Path, mode: int) -> UserError:
    kind = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe"}.get(stat.S_IFMT(mode))
    return UserError(f"{path} is {kind or 'a device'}, not a file: a run folder holds only its own files")


def _unfinished(path: Path) -> Path:
    """Return the path of the temporary file that is written before it replaces `path`."""
    return path.with_name(path.name + ".tmp")
