"""Write settings, records and results as JSON, compare them, and hash them."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dynskip_jax.training.files import is_of

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(value: Any) -> Any:
    """Convert arrays to lists or numbers, and values of unknown types to text."""
    text = json.dumps(value, default=_converted)
    return json.loads(text, parse_constant=str)  # "NaN", "Infinity", "-Infinity"


def _converted(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def from_json(value: Any) -> Any:
    """Convert the strings that `to_json` writes for non-finite numbers back to numbers."""
    if isinstance(value, dict):
        return {key: from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    return value


def may_have_not_finite(line: str) -> bool:
    """Return whether `from_json` may change a line, which takes longer than this look."""
    return any(f'"{name}"' in line for name in _NOT_FINITE)


# --- Digests ---


def sha256(content: Any) -> str:
    """Return the SHA-256 of JSON values, independent of their formatting."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sha256_of_settings(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a configuration without the record of how it was started."""
    return sha256({name: value for name, value in config.items() if name != "about"})


# --- Settings that have changed ---


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested settings, as in `{"optimizer.rate": "0.1"}`, with values as JSON text."""
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{prefix}{name}.")
        elif name != "about":
            found[prefix + name] = json.dumps(value)
    return found


def changes(old: Mapping, new: Mapping, ignored: Sequence[str] = ()) -> list[str]:
    """Return a text for each setting that differs."""
    before = flat(old)
    now = flat(new)
    changed = []
    for name in {**before, **now}:
        was = before.get(name, "not set")
        value = now.get(name, "not set")
        if was != value and name not in ignored:
            changed.append(f"{name[:80]} was {was[:80]} and is now {value[:80]}")
    return changed


def grown(old: Mapping, new: Mapping, may_grow: Sequence[str]) -> list[str]:
    """Return which settings have a larger number, or all old entries of a list and new ones."""
    before = flat(old)
    now = flat(new)
    names = [name for name in may_grow if name in before and name in now]
    return [name for name in names if _is_more(before[name], now[name])]


def _is_more(old: str, new: str) -> bool:
    before = json.loads(old)
    now = json.loads(new)
    if isinstance(before, list) and isinstance(now, list):
        return set(map(str, before)) < set(map(str, now))
    return is_of([(int, float)], [before, now]) and now > before
