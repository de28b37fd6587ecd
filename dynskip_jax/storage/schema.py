"""The JSON files of a run folder: how each is formed, and how it is read and written.

A form is a type, a tuple of forms of which one fits, `[form]`, or `{name: form}`, where `{...:
form}` is the form of all entries. Objects may have other entries too. NaN and infinity are written
as strings, because JSON has neither.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynskip_jax.data.files import read_file
from dynskip_jax.errors import UserError

_NONE = type(None)
_NUMBER = (int, float)
_NUMBERS = (*_NUMBER, [_NUMBER])  # of several k
_METRICS = {...: {"mean": _NUMBERS, "std": _NUMBERS, "per_seed": [_NUMBERS]}}

MANIFEST = {"format": int, "files": {...: {"bytes": int, "sha256": str}}}
CONFIG = {
    "experiment": (str, _NONE),
    "model": (str, _NONE),
    "models": ([str], _NONE),
    "settings": ({...: dict}, _NONE),
    "dataset": ({"name": str, "fingerprint": str}, _NONE),
    "about": [
        {"paths": ({...: str}, _NONE), "commit": (str, _NONE), "source": (str, _NONE)},
    ],
}
PROGRESS = {
    **dict.fromkeys(("epoch", "batch", "step"), int),
    "seconds": _NUMBER,
    "history": [[_NUMBER]],
    "best_epoch": [int],
    "best_value": [_NUMBER],
}
RECORD = {"step": (int, _NONE), "epoch": (*_NUMBER, _NONE), "split": (str, _NONE)}
RESULT = {
    "rows": [
        {
            "model": str,
            "parameters": int,
            "seeds": [int],
            "metrics": _METRICS,
            "wall_seconds": _NUMBER,
            "epochs_asked": (int, _NONE),
            "selected": (dict, _NONE),
            "sweep": ([{"value": dict, "metrics": _METRICS}], _NONE),
        }
    ]
}

_MOST_BYTES = 2**26
_MOST_LEVELS = 64  # of lists and objects inside each other
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(value: Any) -> Any:
    """Convert arrays to lists or numbers, and values of unknown types to text."""
    text = json.dumps(value, default=_converted)
    return json.loads(text, parse_constant=str)  # "NaN", "Infinity", "-Infinity"


def from_json(value: Any, levels: int = _MOST_LEVELS) -> Any:
    """Convert the strings that `to_json` writes for non-finite numbers back to numbers."""
    if levels == 0:
        raise ValueError(f"it is nested more than {_MOST_LEVELS} levels deep")
    if isinstance(value, dict):
        return {key: from_json(item, levels - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json(item, levels - 1) for item in value]
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    return value


def read_json(path: Path, form: Mapping, most_bytes: int = _MOST_BYTES) -> dict[str, Any]:
    """Return the object in a JSON file, which must have a form."""
    return parse_json(read_file(path, most_bytes), form, str(path))


def parse_json(content: bytes, form: Mapping, where: str) -> dict[str, Any]:
    """Return the object in a JSON text, which must have a form; `where` is named in errors."""
    try:
        found = from_json(json.loads(content))
        wrong = _wrong(form, found)
    except (ValueError, RecursionError) as error:
        wrong = str(error)
    if wrong is not None:
        raise UserError(
            f"{where} is not as this version writes it ({wrong[:200]}): "
            "restore it, or choose another run folder"
        )
    return found


def _wrong(form: Any, value: Any, at: str = "") -> str | None:
    """Return where a value does not have a form; None if it has."""
    if isinstance(form, tuple):
        found = [_wrong(each, value, at) for each in form]
        # Of an optional object, say which entry is wrong.
        return None if None in found else max(found, key=len)
    if isinstance(form, list) and isinstance(value, list):
        parts = [(form[0], item, f"{at}[{i}]") for i, item in enumerate(value)]
    elif isinstance(form, dict) and isinstance(value, dict):
        forms = form
        if ... in form:
            forms = dict.fromkeys(value, form[...])
        parts = [(each, value.get(name), f"{at}.{name}"[:80]) for name, each in forms.items()]
    elif isinstance(form, type) and _is_of(form, value):
        parts = []
    else:
        return at.lstrip(".") or "no object"
    return next((found for part in parts if (found := _wrong(*part))), None)


def _is_of(kind: type, value: Any) -> bool:
    """Return whether a value has a type; a bool is no int, and an int fits into 64 bits."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind) and (kind is not int or abs(value) < 2**63)


def _converted(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)
