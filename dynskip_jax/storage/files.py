"""Write files so that a crash leaves the old one or the whole new one."""

import contextlib
import os
import stat
from pathlib import Path

from dynskip_jax.errors import UserError


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write or replace a file or a link, and wait until it is on disk."""
    unfinished = _unfinished(path)
    unfinished.unlink(missing_ok=True)  # of a process that was killed
    with open(unfinished, "xb") as file:
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
    """Raise a `UserError` if a folder contains, at any depth, what is no folder or regular file."""
    for at, folders, files in os.walk(folder):
        for path in (Path(at, name) for name in (*folders, *files)):
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise UserError(
                    f"{path} is no regular file (is it a link?): a run folder holds only its own "
                    "files"
                )


def check_new(path: Path) -> None:
    """Raise a `UserError` if a file exists already, or cannot be made in its folder."""
    # The path first: `.` and `/` exist, and have no name to which an ending could be added.
    for there_of in (Path, _unfinished):
        there = there_of(path)
        try:
            there.lstat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UserError(
                f"{there} cannot be made ({error.strerror}): name another file"
            ) from None
        raise UserError(f"{there} exists: remove it, or name another file")
    if not path.absolute().parent.is_dir():
        raise UserError(f"the folder {path.parent} does not exist: make it, or name another")


def _unfinished(path: Path) -> Path:
    """Return the path of the temporary file that is written before it replaces `path`."""
    return path.with_name(path.name + ".tmp")
