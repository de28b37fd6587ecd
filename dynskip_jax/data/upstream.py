"""Find data sets that TFDS keeps: prepared on this machine, or else in their upstream archives."""

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
    def root(self) -> Path:
        """The data directory of TFDS."""
        return expanded(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")

    @property
    def folder(self) -> Path:
        """The folder in which TFDS keeps it."""
        return self.root / self.name / self.config / self.version

    @property
    def is_prepared(self) -> bool:
        """Whether TFDS has prepared it."""
        return (self.folder / "dataset_info.json").is_file()


def is_reachable(url: str, seconds: float = 2.5) -> bool:
    """Return whether `url` can be opened within `seconds`."""
    try:
        with urllib.request.urlopen(url, timeout=seconds):
            return True
    except (OSError, HTTPException):
        return False


def find_records(data: Upstream, splits: Sequence[str]) -> tuple[dict[str, list[Record]], str]:
    """Return the records of some splits, and where they were.

    They are read from the folder of TFDS, which is filled from the upstream archive if need be.
    """
    source = f"the TFDS cache {data.folder}"
    is_new = not data.is_prepared
    # Asked before TFDS is imported, so that a machine without a network does not wait.
    if is_new and not is_reachable(data.url):
        raise NotAvailable("its upstream address does not answer")

    from dynskip_jax.data import builders  # imports TFDS, which takes seconds

    if is_new:
        source = f"{data.url}, now kept in {data.folder}"
        try:
            builders.prepare(data)
        except Exception as error:
            if not data.is_prepared:  # by another process in the meantime
                what = builders.in_one_line(error)
                raise NotAvailable(f"its download failed: {what}") from error
    return builders.read_prepared(data.folder, splits), source
