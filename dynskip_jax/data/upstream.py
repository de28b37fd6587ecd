"""Describe data sets that TFDS keeps: their names, folders and upstream archives."""

import dataclasses
import os
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from dynskip_jax.data.files import expanded
from dynskip_jax.errors import UserError

Record = Mapping[str, Any]


class NotAvailable(UserError):
    """A data set is neither prepared on this machine, nor can it be downloaded."""


@dataclasses.dataclass(frozen=True)
class Upstream:
    """A data set under the name that TFDS has for it, and its upstream archive.

    Attributes:
        size: Bytes of the archive, which are checked with `sha256`. None: neither is known.
        features: Type of each feature. `str` is a text, and names are those of classes.
        records: Function that reads the records of each split from the archive.
    """

    name: str
    version: str
    url: str
    features: Mapping[str, type[str] | Sequence[str]]
    records: Callable[[Path], Mapping[str, Iterable[Record]]]
    config: str = ""
    size: int | None = None
    sha256: str | None = None

    @property
    def folder(self) -> Path:
        """The folder in which TFDS keeps it."""
        return tfds_folder() / self.name / self.config / self.version


def tfds_folder() -> Path:
    """Return the data directory of TFDS."""
    return expanded(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")


def is_prepared(folder: Path) -> bool:
    """Return whether TFDS has prepared the data set in `folder`."""
    return (folder / "dataset_info.json").is_file()


def is_reachable(url: str, seconds: float = 2.5) -> bool:
    """Return whether `url` can be opened within `seconds`."""
    try:
        with urllib.request.urlopen(url, timeout=seconds):
            return True
    except (OSError, HTTPException):
        return False
