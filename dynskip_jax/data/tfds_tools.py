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
    """Return the default data directory of TFDS: `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`."""
    return Path(environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def is_prepared(folder: Path) -> bool:
    """Return whether `folder` (dataset/config/version) contains a prepared dataset; does not import TFDS."""
    return (folder / "dataset_info.json").is_file()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Suppress printed output, progress bars, and log messages up to warnings; let exceptions pass."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(disabled)


def read_splits(make_builder: Callable[[], Any], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return all records of all splits of a prepared dataset, in order.

    Args:
      make_builder: Function that makes the builder that reads `folder`.
      folder: Folder of the dataset (dataset/config/version), for error messages.

    Returns:
      Records of each split; each record is a dict of NumPy arrays, numbers and bytes.

    Raises:
      UserError: If the dataset is damaged.
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
            # ArrayRecord reads some truncated files without an error, as records without content.
            if any(value is None for example in examples for value in example.values()):
                raise ValueError(f"its {split} split has empty records")
    # TFDS, protobuf and ArrayRecord raise different errors for damaged files; the remedy is always the same.
    except Exception as error:
        raise damaged(folder, error) from error
    return records


def damaged(folder: Path, reason: object) -> UserError:
    """Return the error for a prepared dataset that is damaged for this `reason`."""
    line = " ".join(str(reason).split())[:200] or type(reason).__name__
    return UserError(
        f"the prepared dataset in {folder} is damaged ({line}): delete that folder and run again"
    )
