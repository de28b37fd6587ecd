"""Find data sets in the user's data folder `$DYNSKIP_DATA_DIR`, which has one sub-folder for each."""

import os
from collections.abc import Mapping
from pathlib import Path

DATA_VARIABLE = "DYNSKIP_DATA_DIR"


def named_folder(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the sub-folder `name` of `$DYNSKIP_DATA_DIR`, or None if there is no such folder."""
    root = environ.get(DATA_VARIABLE)
    if not root or name in (".", "..") or Path(name).name != name:
        return None
    folder = Path(root).expanduser() / name
    return folder if folder.is_dir() else None
