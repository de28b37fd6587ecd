"""Write the settings of a run into its `config.json`, and read them from there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynskip_jax.config.flags import is_path
from dynskip_jax.config.settings import Settings, fields_of, get, replace


def to_config(settings: Settings) -> dict[str, Any]:
    """Return the settings that a run's configuration contains, by group and name.

    Names of models, the run's own paths and devices are left out. Paths of data may change,
    because the fingerprint of the data covers the content.
    """
    config: dict[str, Any] = {}
    for name, (group, hint, _) in fields_of(type(settings)).items():
        may_change = group == "devices" or (group in ("run", "data") and is_path(hint))
        if not may_change and name not in ("model", "compare"):
            value = get(settings, name)
            config.setdefault(group, {})[name] = _stored(value)
    return config


def _stored(value: Any) -> Any:
    return str(value.resolve()) if isinstance(value, Path) else value


def from_config(kind: type[Settings], config: Mapping[str, Any]) -> Settings:
    """Return the settings of a run's configuration, with the paths of its last command."""
    stored = [setting for group in config["settings"].values() for setting in group.items()]
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in stored}
    last = values | (config.get("about") or [{}])[-1].get("paths", {})
    paths = [name for name, (_, hint, _) in fields_of(kind).items() if is_path(hint)]
    values |= {name: Path(last[name]) for name in paths if isinstance(last.get(name), str)}
    return replace(kind(), **values)
