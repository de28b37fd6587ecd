"""Read and write the files of run folders, which may come from a stranger."""

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dynskip_jax.errors import UserError

FORMAT = 4  # of run folders; a folder of another format is refused
_MOST_BYTES = 64 * 2**20  # of a file that is read as a whole
_MOST_ITEMS = 10_000  # of a list in config.json or result.json
_MOST_LEVELS = 64  # of lists and objects inside each other
# Strings, which may contain brackets, and brackets. A string that never ends is read once, up to
# the end.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]', re.DOTALL)
# A link is never followed, and opening a pipe does not wait. Windows has neither flag.
_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def read_bytes(path: Path, most: int = _MOST_BYTES) -> bytes:
    """Return a regular file's content; refuse links, pipes, devices and more than `most` bytes."""
    with os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise _too_large(path, most)
    return content


def read_lines(path: Path, most: int) -> Iterator[bytes]:
    """Yield a regular file's lines without their ends; a last one without an end is incomplete.

    More than `most` bytes are refused, after the lines before them.
    """
    left = most
    with os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
        while (line := file.readline(left + 1)).endswith(b"\n") and len(line) <= left:
            left -= len(line)
            yield line[:-1]
    if len(line) > left:
        raise _too_large(path, most)


def parse_json(content: bytes, most_values: int) -> Any:
    """Return the value of a JSON text; raise a `ValueError` if it is none, too large or too deep.

    Size and depth are found without parsing: a small file can contain millions of objects, and
    Python's functions for JSON call themselves for each level.
    """
    too_many = ValueError(f"it has more than {most_values:,} values")
    if num_values(content) > most_values:
        raise too_many
    level = 0
    is_shallow = content.count(b"[") + content.count(b"{") <= _MOST_LEVELS
    for number, token in enumerate([] if is_shallow else _TOKENS.finditer(content)):
        start = content[token.start()]
        if start in b"[{":
            level += 1
        elif start in b"]}":
            level -= 1
        if not 0 <= level <= _MOST_LEVELS:
            raise ValueError(f"it is nested more than {_MOST_LEVELS} levels deep")
        if number > 4 * most_values:  # two brackets, a name and a text for each value
            raise too_many
    return json.loads(content.decode("utf-8-sig"))


def parsed(content: bytes, most_values: int) -> dict | None:
    """Return the JSON object of a text; None if it is not one, too large or nested too deep."""
    try:
        found = parse_json(content, most_values)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def num_values(content: bytes) -> int:
    """Return how many values a JSON text has at most."""
    return sum(map(content.count, (b",", b"[", b"{")))


def append_line(path: Path, line: str) -> None:
    """Append a line to a regular file, and wait until it is on disk."""
    _write(path, os.O_APPEND, f"{line}\n")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write or replace a file or a link; after a crash it is the old one or the whole new one."""
    unfinished = _unfinished(path)
    unfinished.unlink(missing_ok=True)  # of a process that was killed
    _write(unfinished, os.O_EXCL, content)
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
                raise _not_regular(path)


def check_new(path: Path) -> None:
    """Raise a `UserError` if a file exists already, or if its folder does not exist."""
    for there in (path, _unfinished(path)):
        if os.path.lexists(there):
            raise UserError(f"{there} exists: remove it, or name another file")
    if not path.absolute().parent.is_dir():
        raise UserError(f"the folder {path.parent} does not exist: make it, or name another")


def without_dots(path: Path) -> Path:
    """Return a path, resolved if it has `..`, which TensorStore refuses."""
    return path.resolve() if ".." in path.parts else path


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a regular file, in hexadecimal."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


def is_of(form: Any, value: Any, most_items: int = _MOST_ITEMS) -> bool:
    """Return whether a value has a form: a type, a tuple of forms, `[form]` or `{name: form}`.

    Objects may have other entries too; `{...: form}` is the form of all of them. Whole numbers have
    to be below 2^63, and lists have at most `most_items` entries.
    """
    if isinstance(form, tuple):
        return any(is_of(each, value, most_items) for each in form)
    if isinstance(form, list):
        is_list = isinstance(value, list) and len(value) <= most_items
        return is_list and all(is_of(form[0], each, most_items) for each in value)
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return False
        forms = form
        if ... in form:  # the form of every entry
            forms = dict.fromkeys(value, form[...])
        return all(is_of(each, value.get(name), most_items) for name, each in forms.items())
    if isinstance(value, bool):
        return form is bool
    return isinstance(value, form) and (form is not int or abs(value) < 2**63)


def _write(path: Path, flags: int, content: str | bytes) -> None:
    with os.fdopen(_open(path, os.O_WRONLY | os.O_CREAT | flags), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def _open(path: Path, flags: int) -> int:
    """Return the descriptor of a regular file."""
    if path.is_symlink():
        raise _not_regular(path)
    number = os.open(path, flags | _SAFE, 0o666)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise _not_regular(path)
    return number


def _too_large(path: Path, most: int) -> UserError:
    return UserError(f"{path} has more than {most:,} bytes: restore it, or name another run folder")


def _not_regular(path: Path) -> UserError:
    return UserError(
        f"{path} is no regular file (is it a link?): a run folder holds only its own files"
    )


def _unfinished(path: Path) -> Path:
    """Return the path of the temporary file that is written before it replaces `path`."""
    return path.with_name(path.name + ".tmp")
