"""Files that are whole or not there at all."""

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file such that after a crash either the old or the new text is there, whole."""
    unfinished = path.with_name(path.name + ".tmp")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
