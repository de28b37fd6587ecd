"""Files of what a benchmark has measured."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(folder: str | Path, name: str, content: Mapping[str, Any], text: str | None = None) -> None:
    """Writes the figures into NAME.json, and a table, where there is one, into NAME.md.

    Args:
        folder: is made if need be.
        name: of the benchmark.
        content: for the one, all that JSON can hold.
        text: for the other.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    if text is not None:
        (folder / f"{name}.md").write_text(text + "\n")
