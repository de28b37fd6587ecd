"""Write the results of a benchmark to files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(folder: str | Path, name: str, content: Mapping[str, Any], text: str | None = None) -> None:
    """Write the results to NAME.json, and a table, if given, to NAME.md.

    Args:
        folder: Folder of the files; it is created if necessary.
        name: Name of the benchmark.
        content: Content of NAME.json.
        text: Text of NAME.md; None writes no such file.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    if text is not None:
        (folder / f"{name}.md").write_text(text + "\n")
