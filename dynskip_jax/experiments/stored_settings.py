"""Read settings from JSON: those of run folders, also of older versions, and of `--config FILE`."""

import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynskip_jax.errors import UserError
from dynskip_jax.experiments.settings import Settings, absent_values, fields_of, fill, path_fields
from dynskip_jax.settings import without_none
from dynskip_jax.training.files import FORMAT, read_bytes

# Current names of settings, by the names that older versions wrote. A name is replaced only in experiments
# that have no setting of the old name. None: the experiment never used the setting.
RENAMED = {
    "column_features": None,  # pos
    "data_seed": "split_seed",  # taggers
    "decay": "inverse_decay",  # taggers
    "dev_seed": "split_seed",  # imdb
    "dropout_hidden": "dropout_between",  # taggers
    "init_scale": "init_gain",  # taggers
    "word_features": "embedding_features",  # taggers
}


def upgraded(kind: type[Settings], groups: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the settings of a run to the names, groups and forms that they have in this version.

    Args:
        kind: Class of the experiment's settings.
        groups: Settings as in `config.json`. Unknown settings stay unchanged.
    """
    known = {field.name: (group, hint) for group, field, hint in fields_of(kind)}
    found: dict[str, Any] = {group: {} if isinstance(of, Mapping) else of for group, of in groups.items()}
    for group, of in groups.items():
        for old, value in of.items() if isinstance(of, Mapping) else ():
            name = old if old in known else RENAMED.get(old, old)
            if name is None:
                continue
            place, hint = known.get(name, (group, None))
            is_list = typing.get_origin(without_none(hint)) is tuple
            if is_list and value is not None and not isinstance(value, list | tuple):
                value = [value]  # older versions took one number
            found.setdefault(place, {})[name] = value
    return found


def from_config(kind: type[Settings], groups: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Return the settings that `Settings.to_config` described, read back from JSON.

    Raises:
        UserError: If another version wrote settings that this version does not accept.
    """
    return fill(kind, absent_values(kind) | _values(upgraded(kind, groups)))


def _values(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return settings by name, without their groups; lists become tuples."""
    values = {name: value for group in groups.values() for name, value in group.items()}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def last_paths(kind: type[Settings], config: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths that the last command of a run gave, by setting, without that of the data."""
    about = config.get("about") or [{}]
    known = {name for _, name in path_fields(kind)}
    paths = {name: path for name, path in about[-1].get("paths", {}).items() if name in known}
    paths.pop("control_of", None)  # its rates are stored as the setting `rates`
    return paths


def read_config_file(kind: type[Settings], experiment: str, path: str) -> dict[str, Any]:
    """Read the settings of a run by name, including its models, and its paths if these are known.

    Args:
        kind: Class of the experiment's settings.
        experiment: Name of the experiment.
        path: Path of the `config.json` of a run of the experiment.

    Raises:
        UserError: If the file cannot be read, or belongs to another experiment or version.
    """
    expected = f"--config {path}: expected the config.json of a run of {experiment}"
    try:
        config = json.loads(read_bytes(Path(path).resolve()))
        written = config["experiment"], config.get("format")
        values = absent_values(kind) | _values(upgraded(kind, config["settings"]))
        about = (config.get("about") or [{}])[-1]
        paths = {"data": about.get("data"), **last_paths(kind, config)}
        models = config.get("models")
        named = {"model": config["model"]} if models is None else {"compare": ",".join(models)}
    except UserError as error:
        raise UserError(f"{expected} ({error})") from None
    except OSError as error:
        raise UserError(f"{expected} ({error.strerror})") from None
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise UserError(f"{expected}, found another file ({error!r})") from None
    if written != (experiment, FORMAT):
        raise UserError(f"{expected} in format {FORMAT}, found one of {written[0]} in format {written[1]}")
    return values | named | {name: path for name, path in paths.items() if path is not None}
