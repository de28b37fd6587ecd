"""Write files so that a crash leaves the old one or the whole new one; read and write JSON.

NaN and infinity are written as strings, because JSON has neither.
"""

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any

from dynskip_jax.data.files import read_file
from dynskip_jax.errors import UserError

_MOST_BYTES = 2**28  # of a file that is read
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write or replace a file or a link, and wait until it is on disk."""
    unfinished = path.with_name(path.name + ".tmp")
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


def check_new(path: Path) -> None:
    """Raise a `UserError` if a file exists already, or its folder does not."""
    if os.path.lexists(path):
        raise UserError(f"{path} exists: remove it, or name another file")
    if not path.absolute().parent.is_dir():
        raise UserError(f"the folder {path.parent} does not exist: make it, or name another")


def to_json(value: Any) -> Any:
    """Convert arrays to lists or numbers, and values of unknown types to text."""
    text = json.dumps(value, default=_converted)
    return json.loads(text, parse_constant=str)  # "NaN", "Infinity", "-Infinity"


def _converted(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def from_json(value: Any) -> Any:
    """Convert the strings that `to_json` writes for non-finite numbers back to numbers."""
    if isinstance(value, dict):
        return {key: from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    return value


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return parse_json(read_file(path, _MOST_BYTES), str(path))


def read_json_lines(path: Path) -> list[Any]:
    """Return the content of each line of a file, without an incomplete last line."""
    lines = read_file(path, _MOST_BYTES).split(b"\n")[:-1]
    return [parse_json(line, f"line {i} of {path}") for i, line in enumerate(lines, 1)]


def parse_json(content: bytes, where: str) -> Any:
    """Return the content of a JSON text; `where` is named in errors."""
    try:
        return from_json(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where} is no JSON ({error}): restore it, or choose another run folder"
        ) from None
