"""Create, resume and read the folder of a run: its configuration, metrics and result."""

import datetime
import errno
import hashlib
import itertools
import json
import logging
import math
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dynskip_jax.errors import UserError, needs
from dynskip_jax.training.files import (
    FORMAT,
    append_line,
    check_regular,
    is_of,
    read_bytes,
    without_dots,
    write_atomically,
)

with needs("experiments"):
    import filelock

logger = logging.getLogger(__name__)

_LOCK, _MARKER = ".lock", ".running"
_NO_LOCKS = (None, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MOST_METRICS = 2**28  # bytes of metrics.jsonl
_NOT_COMPARED = ("format", "run", "dataset.name")  # of config.json; a folder of data may be renamed
_NONE = type(None)
_CONFIG = {
    "run": str,
    "experiment": (str, _NONE),
    "model": (str, _NONE),
    "models": ([str], _NONE),
    "settings": (dict, _NONE),
    "dataset": ({"name": str, "fingerprint": str}, _NONE),
    "about": [{"paths": ({...: str}, _NONE)}],
}


class RunDir:
    """The folder of one run, which may come from a stranger: links, pipes and devices in it are refused.

    `config.json` contains a format number, a random identity and all settings, `metrics.jsonl` one JSON
    object (record) per line, and `result.json` the final result. NaN and infinity are written as strings.
    """

    def __init__(self, path: Path):
        try:
            os.fspath(path).encode()
        except UnicodeEncodeError:
            raise _unusable(path, UserError("no name in UTF-8")) from None
        self.path = path = without_dots(path)
        self.identity = ""  # SHA-256 of the run's random identity and of the settings that never change
        self.checkpoints, self.plots = path / "checkpoints", path / "plots"
        self._config, self._metrics, self._result = (
            path / name for name in ("config.json", "metrics.jsonl", "result.json")
        )
        self._lock: filelock.BaseFileLock | None = None
        self._within: RunDir | None = None
        self._new_config: str | None = None

    @classmethod
    def open(
        cls,
        path: str | Path,
        config: Mapping[str, Any],
        *,
        about: Mapping[str, Any] | None = None,
        may_grow: Sequence[str] = (),
        within: "RunDir | None" = None,
    ) -> "RunDir":
        """Start a run in a new or empty folder, or resume the run of the same settings, `config`.

        A folder with other settings, with files but no run, or in use by another process is refused, and
        nothing in it is changed. `about` is how the run was started. The settings named in `may_grow`, such
        as `settings.training.epochs`, may have larger numbers or longer lists than in the folder; `go_on`
        writes them. `within` is a run of several models that contains this one.
        """
        run = cls(Path(path))
        try:
            exists = _holds_run(run.path)
            old, new = run.config() if exists else {}, _to_json(config)
            if exists:
                _check_settings(run.path, old, new, may_grow)
            started = old.get("about", []) + ([] if about is None else [_to_json(about)])
            written = {"format": FORMAT, "run": old.get("run", uuid.uuid4().hex), **new, "about": started}
            may_change = (*may_grow, "dataset.name")
            run.identity = _sha256({k: v for k, v in _flat(written).items() if k not in may_change})
            run.path.mkdir(parents=True, exist_ok=True)
            run._lock = _lock(run.path)
            run._within, text = within, json.dumps(written, indent=2) + "\n"
            if not exists:
                write_atomically(run._config, text)
            elif old != written:
                run._new_config = text
            run.checkpoints.mkdir(exist_ok=True)
            run.plots.mkdir(exist_ok=True)
        except UserError:
            raise
        except (OSError, ValueError) as error:
            raise _unusable(run.path, error) from error
        return run

    def config(self) -> dict:
        """Return the configuration of the run; one of another format is refused."""
        try:
            config = _parsed(read_bytes(self._config))
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(
                f"{self.path} is not a run folder (it has no config.json): restore it, or name another"
            ) from None
        if config is not None and config.get("format") != FORMAT:
            raise UserError(
                f"{self.path} holds a run of format {str(config.get('format', 1))[:20]}, and this version "
                f"reads and writes format {FORMAT}: use the version that wrote it, or another --run-dir"
            )
        names = [] if config is None else config.get("models", [config.get("model", "model")])
        if not is_of(_CONFIG, config) or not names or not all(map(is_model_name, names)):
            raise UserError(
                f"{self._config} does not hold a valid configuration; restore it, or choose another --run-dir"
            )
        return config

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a record, whose arrays become lists, to the metrics file, and wait until it is on disk."""
        append_line(self._metrics, json.dumps(_to_json(record)))

    def records(self) -> list[dict]:
        """Return the logged records, without an incomplete last line of a run that was killed."""
        return [_from_json(_parsed(line)) for line in self._lines()]

    def _lines(self, step: float = math.inf) -> list[str]:
        """Return the complete lines of the metrics file up to a step."""
        if not self._metrics.exists():
            return []
        text = read_bytes(self._metrics, _MOST_METRICS).decode("utf-8", "replace")
        kept = []
        for number, line in enumerate(text.split("\n")[:-1], 1):  # after the last "\n" a line is incomplete
            record = _parsed(line)
            if record is None:
                raise UserError(
                    f"line {number} of {self._metrics} is not a JSON object; restore the file, delete it to "
                    "go on without its records, or choose another --run-dir"
                )
            if record.get("step", 0) <= step:
                kept.append(line)
        return kept

    def digest_of_metrics(self, step: int) -> str:
        """Return the SHA-256 of the records up to a step, which the checkpoint of this step contains."""
        return _sha256(self._lines(step))

    def rewind(self, step: int, digest: str | None = None) -> None:
        """Remove the records after the step of the checkpoint, or 0, and an incomplete last line.

        Records that differ from those of the checkpoint, by its `digest_of_metrics`, are refused. If the
        whole file is missing, a warning is logged, because the records are not needed to go on.
        """
        lines, exists = self._lines(step), self._metrics.exists()
        if digest not in (None, _sha256(lines)):
            if exists:
                raise UserError(
                    f"{self._metrics} does not hold the {step:,} steps of the checkpoint (it has "
                    f"{len(lines)} records of them): restore it, or delete it to go on without its records"
                )
            logger.warning("%s is missing: the records up to step %s are lost", self._metrics, f"{step:,}")
        if exists:
            write_atomically(self._metrics, "".join(f"{line}\n" for line in lines))

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write `result.json` atomically, with digests of itself and of the settings, as the last action."""
        written = _to_json({**result, "config_sha256": self._sha256_of_settings()})
        written["sha256"] = _sha256(written)
        write_atomically(self._result, json.dumps(written, indent=2) + "\n")

    def go_on(self) -> None:
        """Start or resume the run, and the one that contains it, after everything that it needs was read.

        Remove `result.json`, which will no longer match the checkpoints, and write grown settings and the new
        `about` to `config.json`.
        """
        if self._within is not None:
            self._within.go_on()
        self._result.unlink(missing_ok=True)
        if self._new_config is not None:
            write_atomically(self._config, self._new_config)
            self._new_config = None

    def result(self) -> dict | None:
        """Return the result, if it and the settings are as the run wrote them; None if it is not finished."""
        if not self._result.exists():
            return None
        found = _parsed(read_bytes(self._result)) or {}
        if found.pop("sha256", None) != _sha256(found):
            raise UserError(
                f"{self._result} is not as the run wrote it (its SHA-256 differs); restore it, or delete it "
                "and run again"
            )
        if found.pop("config_sha256", None) != self._sha256_of_settings():
            raise UserError(
                f"{self._config} does not hold the settings that the model was trained with: restore it, or "
                "train again"
            )
        return _from_json(found)

    def _sha256_of_settings(self) -> str:
        return _sha256({name: value for name, value in self.config().items() if name != "about"})


def new_folder(task: str, model: str, now: datetime.datetime) -> Path:
    """Create and return a folder `runs/<task>/<model>-<time>`, followed by `-2`, `-3`, … if it exists."""
    name = file_name(model).replace(",", "-")  # commands take several folders, separated by commas
    first = Path("runs") / task / f"{name}-{now:%Y%m%d-%H%M%S}"
    for count in itertools.count(1):
        path = first if count == 1 else first.with_name(f"{first.name}-{count}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            pass
        except OSError as error:
            raise _unusable(path, error) from error


def file_name(model: str) -> str:
    """Return the name of a model for use in a file name: characters such as ":" are replaced by "-"."""
    return re.sub(r"[^A-Za-z0-9.,_+=-]", "-", model)


def is_model_name(value: Any) -> bool:
    """Return whether a value is the name of a model, whose folder lies in the run's."""
    return isinstance(value, str) and len(value) < 200 and file_name(value).strip(".") != ""


def _unusable(path: Path, error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or error
    return UserError(f"cannot use the run folder {path} ({reason}); choose another --run-dir")


def _lock(path: Path) -> filelock.BaseFileLock:
    """Lock a run folder for this process; the system releases the lock if the process is killed.

    On a file system without locks, a file that only one process can create is the lock.
    """
    remedy = "stop it, or choose another --run-dir"
    for kind, name in ((filelock.FileLock, _LOCK), (filelock.SoftFileLock, _MARKER)):
        try:
            lock = kind(path / name, timeout=0, is_singleton=True)  # one lock a process
            lock.acquire()
            return lock
        except filelock.Timeout:
            raise UserError(f"another process is running in {path}: wait for it, or {remedy}") from None
        except (NotImplementedError, OSError) as error:
            if kind is filelock.SoftFileLock or getattr(error, "errno", None) not in _NO_LOCKS:
                raise
        remedy = f"delete {path / _MARKER} if it was killed"


def _holds_run(path: Path) -> bool:
    """Return whether the folder contains a run; refuse a file, and a folder with other contents."""
    if not os.path.lexists(path):
        return False
    if not path.is_dir():
        raise UserError(f"{path} is a file or a broken link, not a folder; choose another --run-dir")
    names = {entry.name for entry in path.iterdir()}
    # A run that is killed while it writes its configuration leaves only the other files.
    if "config.json" not in names and names - {"config.json.tmp", _LOCK, _MARKER}:
        raise UserError(
            f"{path} is not empty and has no config.json, so it is not a run; choose another --run-dir"
        )
    check_regular(path)
    return "config.json" in names


def _check_settings(path: Path, old: dict, new: dict, may_grow: Sequence[str]) -> None:
    """Refuse settings that differ from those in the folder, unless they have grown."""
    before, now, changed = _flat(old), _flat(new), []
    grown = [name for name in may_grow if name in before.keys() & now and _is_more(before[name], now[name])]
    for name in {**before, **now}:
        was, value = (of.get(name, "not set") for of in (before, now))
        if was != value and name not in (*grown, *_NOT_COMPARED):
            changed.append(f"{name} was {was[:80]} and is now {value[:80]}")
    if changed:
        more = [f"and {len(changed) - 3} more"] if len(changed) > 3 else []
        raise UserError(
            f"{path} holds a run with other settings ({'; '.join(changed[:3] + more)}); "
            "choose another --run-dir, or use the old settings to resume it"
        )


def _is_more(old: str, new: str) -> bool:
    """Return whether a number has increased, or a list has all old entries and new ones."""
    before, now = json.loads(old), json.loads(new)
    if isinstance(before, list) and isinstance(now, list):
        return set(map(str, before)) < set(map(str, now))
    return is_of([(int, float)], [before, now]) and now > before


def _parsed(text: str | bytes) -> dict | None:
    """Return the JSON object of a text; None if it is not one."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _sha256(content: Any) -> str:
    """Return the SHA-256 of JSON values, independent of their formatting."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested settings, as in `{"optimizer.rate": "0.1"}`, with values as JSON text."""
    flat: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        elif name != "about":
            flat[prefix + name] = json.dumps(value)
    return flat


def _to_json(value: Any) -> Any:
    """Convert a value to JSON types: arrays become lists or numbers, values of unknown types text."""
    text = json.dumps(value, default=lambda each: each.tolist() if hasattr(each, "tolist") else str(each))
    return json.loads(text, parse_constant=str)  # "NaN", "Infinity", "-Infinity"


def _from_json(value: Any) -> Any:
    """Convert the strings that `_to_json` writes for non-finite numbers back to numbers."""
    if isinstance(value, dict):
        return {key: _from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value
