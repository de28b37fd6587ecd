"""Compare the contents of two run folders bit by bit, except for times, dates and paths."""

import hashlib
import json
from pathlib import Path
from typing import Any

_OF_TIME = ("wall_seconds", "checkpoint")  # in rows of result.json; the checkpoint's digest covers seconds


def contents(folder: Path) -> dict[str, Any]:
    """Return the contents of a finished run by name: settings, metrics, results, arrays, pictures."""
    config = json.loads((folder / "config.json").read_text())
    for name in ("about", "run"):
        config.pop(name, None)
    found: dict[str, Any] = {"config.json": config}
    result = json.loads((folder / "result.json").read_text())
    for name in ("sha256", "config_sha256"):
        result.pop(name, None)
    for row in result["rows"]:
        for name in _OF_TIME:
            row.pop(name, None)
    result["dataset"].pop("source")
    found["result.json"] = result
    for path in sorted(folder.glob("*.json*")):
        if path.name not in found:
            found[path.name] = path.read_text()
    for path in sorted((folder / "plots").iterdir()):
        found[f"plots/{path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    found["checkpoint"] = newest_checkpoint(folder)
    return found


def newest_checkpoint(folder: Path) -> dict[str, Any]:
    """Return the array digests and the metadata of the newest checkpoint, without times.

    Older checkpoints are ignored. One that was being deleted when the run was killed may remain in part.
    """
    step = max((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))
    document = json.loads((step / "document" / "metadata").read_text())
    meta = {name: value for name, value in document["meta"].items() if name not in ("seconds", "run")}
    return {"step": step.name, "meta": meta, "leaves": document["leaves"]}


def outcome_of(found: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of a run without the logged metrics and the pictures."""
    return {
        name: part
        for name, part in found.items()
        if name != "metrics.jsonl" and not name.startswith("plots/")
    }


def differences(folder: Path, expected: dict[str, Any]) -> list[str]:
    """Return the names of the contents that differ from those of another run.

    Args:
        folder: Run folder to compare.
        expected: Contents of the other run.
    """
    try:
        found = contents(folder)
    except (OSError, ValueError, KeyError) as error:
        return [f"unreadable ({error})"]
    return [name for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]
