"""Prepare TFDS builders without noise and read their records without TensorFlow."""

import contextlib
import io
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dynskip_jax.errors import UserError


def default_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """TFDS's own data directory: `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`."""
    return Path(environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def is_prepared(folder: Path) -> bool:
    """Whether `folder` (dataset/config/version) holds a prepared dataset; needs no import of TFDS."""
    return (folder / "dataset_info.json").is_file()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Swallow what TFDS prints, draws and logs up to warnings; exceptions pass."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(disabled)


def read_splits(make_builder: Callable[[], Any], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """All records of all splits of a prepared dataset, in order.

    Args:
      make_builder: makes the builder that reads `folder`.
      folder: where the dataset is (dataset/config/version), for the error.

    Returns:
      For each split its records, each a dict of NumPy arrays, numbers and bytes.

    Raises:
      UserError: when the dataset is damaged.
    """
    try:
        with quietly():
            sources = make_builder().as_data_source()
            records = {
                split: source.__getitems__(list(range(len(source)))) for split, source in sources.items()
            }
        if not records:
            raise ValueError("it has no splits")
        for split, examples in records.items():
            # ArrayRecord reads some truncated files without a complaint, as records without content.
            if any(value is None for example in examples for value in example.values()):
                raise ValueError(f"its {split} split has empty records")
    # Whatever TFDS, protobuf or ArrayRecord raise on a damaged file, the remedy is the same.
    except Exception as error:
        raise damaged(folder, error) from error
    return records


def damaged(folder: Path, reason: object) -> UserError:
    """The error for a prepared dataset that cannot be used."""
    line = " ".join(str(reason).split())[:200] or type(reason).__name__
    return UserError(
        f"the prepared dataset in {folder} is damaged ({line}): delete that folder and run again"
    )
