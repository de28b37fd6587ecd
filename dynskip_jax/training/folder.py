"""Create, resume and read the folder of a run: its configuration, metrics and result."""

import contextlib
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynskip_jax.errors import Stopped, UserError, needs
from dynskip_jax.training.files import (
    FORMAT,
    append_line,
    check_regular,
    is_of,
    num_values,
    parse_json,
    read_bytes,
    read_lines,
    sha256_of,
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
_MOST_LINES = 500_000  # of metrics.jsonl
# Largest numbers of values: in config.json; in result.json or a line of metrics.jsonl; in all lines
# of it.
_MOST_SETTINGS = 200_000
_MOST_VALUES = 2_000_000
_MOST_LOGGED = 25_000_000
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
_RECORD = {"step": int, "epoch": (int, float), "split": str}
_EMPTY_RECORD = {"step": 0, "epoch": 0, "split": ""}


class RunDir:
    """The folder of one run, which may come from a stranger: links, pipes and devices in it are
    refused.

    `config.json` contains a format number, a random identity and all settings, `metrics.jsonl` one
    JSON object (record) per line, and `result.json` the final result. NaN and infinity are written
    as strings.
    """

    def __init__(self, path: Path):
        try:
            os.fspath(path).encode()
        except UnicodeEncodeError:
            raise _unusable(path, UserError("no name in UTF-8")) from None
        self.path = path = without_dots(path)
        self.identity = (
            ""  # SHA-256 of the run's random identity and of the settings that never change
        )
        # Step and SHA-256 of the newest checkpoint that this process has read or written.
        self.checkpoint: dict[str, Any] | None = None
        self.checkpoints, self.plots = path / "checkpoints", path / "plots"
        self._config, self._metrics, self._result = (
            path / name for name in ("config.json", "metrics.jsonl", "result.json")
        )
        self._lock: filelock.BaseFileLock | None = None
        self._within: RunDir | None = None
        self._new_config: str | None = None
        # What this process trains with and has written, whatever becomes of the files.
        self._config_here: dict[str, Any] = {}
        self._logged = _DigestOfLines()
        self.kept: dict[str, str] = {}  # SHA-256 of each file that `keep` wrote, by name

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

        A folder with other settings, with files but no run, or in use by another process is
        refused, and nothing in it is changed. `about` is how the run was started. The settings
        named in `may_grow`, such as `settings.training.epochs`, may have larger numbers or longer
        lists than in the folder; `go_on` writes them. `within` is a run of several models that
        contains this one.
        """
        run = cls(Path(path))
        try:
            exists = _holds_run(run.path)
            old, new = run.config() if exists else {}, _to_json(config)
            if exists:
                _check_settings(run.path, old, new, may_grow)
            started = old.get("about", []) + ([] if about is None else [_to_json(about)])
            written = {
                "format": FORMAT,
                "run": old.get("run", uuid.uuid4().hex),
                **new,
                "about": started,
            }
            may_change = (*may_grow, "dataset.name")
            run.identity = _sha256({k: v for k, v in _flat(written).items() if k not in may_change})
            run._config_here = written
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
            config = _parsed(read_bytes(self._config), _MOST_SETTINGS)
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

    def keep(self, name: str, text: str) -> None:
        """Write a file that belongs to the run, which nothing may change while the run trains."""
        write_atomically(self.path / name, text)
        self.kept[name] = hashlib.sha256(text.encode()).hexdigest()

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a record, whose arrays become lists, to the metrics file, and wait until it is on
        disk.
        """
        self.check_present()
        line = json.dumps(_to_json(record))
        append_line(self._metrics, line)
        self._logged.add(line)

    def records(self) -> list[dict]:
        """Return the logged records, without an incomplete last line of a run that was killed."""
        return [record for _, record in self._read_records()]

    def _read_records(self) -> Iterator[tuple[str, dict]]:
        """Yield the complete lines of the metrics file with their records."""
        left = _MOST_LOGGED
        for number, line in enumerate(self._lines(), 1):
            content = line.encode()
            record = _parsed(content, min(left, _MOST_VALUES))
            left -= num_values(content)
            if (
                record is None
                or not is_of(_RECORD, _EMPTY_RECORD | record)
                or record.get("step", 0) < 0
            ):
                raise UserError(
                    f"line {number} of {self._metrics} is not a record of a run (a JSON object with a step); "
                    "restore the file, delete it to go on without its records, or choose another --run-dir"
                )
            yield line, _from_json(record) if _has_strings_of_numbers(line) else record

    def _lines(self) -> Iterator[str]:
        """Yield the complete lines of the metrics file; none if there is no file."""
        with contextlib.suppress(FileNotFoundError):
            for number, line in enumerate(read_lines(self._metrics, _MOST_METRICS)):
                if number == _MOST_LINES:
                    raise UserError(f"{self._metrics} has more than {number:,} lines: restore it")
                yield line.decode("utf-8", "replace")

    def digest_of_metrics(self) -> str:
        """Return the SHA-256 of the records that this process has found and written.

        The checkpoint and the result contain it, so that other records are noticed.
        """
        return self._logged.hexdigest()

    def rewind(self, step: int, digest: str | None = None) -> None:
        """Remove the records after the step of the checkpoint, or 0, and an incomplete last line.

        Records that differ from those of the checkpoint, by its `digest_of_metrics`, are refused.
        If the whole file is missing, a warning is logged, because the records are not needed to go
        on.
        """
        exists = self._metrics.exists()
        lines = [line for line, record in self._read_records() if record.get("step", 0) <= step]
        logged = _DigestOfLines(lines)
        if digest not in (None, logged.hexdigest()):
            if exists:
                raise UserError(
                    f"{self._metrics} does not hold the {step:,} steps of the checkpoint (it has "
                    f"{len(lines)} records of them): restore it, or delete it to go on without its records"
                )
            logger.warning(
                "%s is missing: the records up to step %s are lost", self._metrics, f"{step:,}"
            )
        if exists:
            write_atomically(self._metrics, "".join(f"{line}\n" for line in lines))
        self._logged = logged

    # --- What other programs do to the folder while this process trains ---

    def check_present(self) -> None:
        """Raise a `UserError` if the folder was removed, or replaced by another run's."""
        if not all(path.exists() for path in (self._config, self.checkpoints, self.plots)):
            raise UserError(
                f"the run folder {self.path} was removed, or files in it, while the run trained; "
                f"{self._last_checkpoint()}: restore the folder, or start again"
            )

    def check_unchanged(self) -> None:
        """Raise a `UserError` if settings, records or other files are not what this process has
        written.
        """
        self.check_present()
        found = self.config()
        if found["run"] != self._config_here["run"]:
            raise UserError(
                f"the run folder {self.path} was replaced by that of another run while this run trained; "
                f"{self._last_checkpoint()}: choose another --run-dir"
            )
        changed = _changes(self._config_here, found)
        if changed:
            raise UserError(
                f"{self._config} was changed while the run trained ({_some(changed)}): restore it, then the "
                "same command goes on"
            )
        if _DigestOfLines(self._lines()).hexdigest() != self.digest_of_metrics():
            raise UserError(
                f"{self._metrics} was changed or removed while the run trained: restore it, or delete it, "
                "then the same command goes on"
            )
        for name, digest in self.kept.items():
            path = self.path / name
            if not path.exists() or sha256_of(path) != digest:
                raise UserError(
                    f"{path} was changed or removed while the run trained: the same command writes it again"
                )

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Report the removal of the folder, where it is the cause of an error of any kind."""
        try:
            yield
        except (UserError, Stopped):
            raise
        except Exception:
            self.check_present()
            raise

    def _last_checkpoint(self) -> str:
        if self.checkpoint is None:
            return "it had no checkpoint yet"
        return f"its last checkpoint was {self.checkpoints / str(self.checkpoint['step'])}"

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write `result.json` atomically, as the last action.

        It contains digests of itself, and of the settings and records in the memory of this
        process.
        """
        self.check_unchanged()
        digests = {
            "config_sha256": _sha256_of_settings(self._config_here),
            "metrics_sha256": self.digest_of_metrics(),
        }
        written = _to_json({**result, **digests})
        written["sha256"] = _sha256(written)
        write_atomically(self._result, json.dumps(written, indent=2) + "\n")

    def go_on(self) -> None:
        """Start or resume the run, and the one that contains it, after everything that it needs was
        read.

        Remove `result.json`, which will no longer match the checkpoints, and write grown settings
        and the new `about` to `config.json`.
        """
        if self._within is not None:
            self._within.go_on()
        self._result.unlink(missing_ok=True)
        if self._new_config is not None:
            write_atomically(self._config, self._new_config)
            self._new_config = None

    def result(self) -> dict | None:
        """Return the result, if all files are as the run wrote them; None if it is not finished."""
        if not self._result.exists():
            return None
        found = _parsed(read_bytes(self._result), _MOST_VALUES) or {}
        if found.pop("sha256", None) != _sha256(found):
            raise UserError(
                f"{self._result} is not as the run wrote it (its SHA-256 differs); restore it, or delete it "
                "and run again"
            )
        if found.pop("config_sha256", None) != _sha256_of_settings(self.config()):
            raise UserError(
                f"{self._config} does not hold the settings that the model was trained with: restore it, or "
                "train again"
            )
        logged = found.pop("metrics_sha256", None)  # which older versions do not write
        if logged is not None and logged != _DigestOfLines(self._lines()).hexdigest():
            raise UserError(
                f"{self._metrics} does not hold the records of the result: restore it; or delete it and "
                f"{self._result.name}, and run the same command again"
            )
        return _from_json(found)


class _DigestOfLines:
    """SHA-256 of a list of lines as JSON, to which lines can be added."""

    def __init__(self, lines: Iterable[str] = ()):
        self._sha256 = hashlib.sha256(b"[")
        self._between = b""
        for line in lines:
            self.add(line)

    def add(self, line: str) -> None:
        """Add a line."""
        self._sha256.update(self._between + json.dumps(line).encode())
        self._between = b", "

    def hexdigest(self) -> str:
        """Return the SHA-256 of all lines so far."""
        whole = self._sha256.copy()
        whole.update(b"]")
        return whole.hexdigest()


def new_folder(task: str, model: str, now: datetime.datetime) -> Path:
    """Create and return a folder `runs/<task>/<model>-<time>`, followed by `-2`, `-3`, … if it
    exists.
    """
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
    """Return the name of a model for use in a file name: characters such as ":" are replaced by
    "-".
    """
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
            raise UserError(
                f"another process is running in {path}: wait for it, or {remedy}"
            ) from None
        except (NotImplementedError, OSError) as error:
            if kind is filelock.SoftFileLock or getattr(error, "errno", None) not in _NO_LOCKS:
                raise
        remedy = f"delete {path / _MARKER} if it was killed"


def _holds_run(path: Path) -> bool:
    """Return whether the folder contains a run; refuse a file, and a folder with other contents."""
    if not os.path.lexists(path):
        return False
    if not path.is_dir():
        raise UserError(
            f"{path} is a file or a broken link, not a folder; choose another --run-dir"
        )
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
    before = _flat(old)
    now = _flat(new)
    grown = [
        name
        for name in may_grow
        if name in before.keys() & now and _is_more(before[name], now[name])
    ]
    changed = _changes(old, new, (*grown, *_NOT_COMPARED))
    if changed:
        raise UserError(
            f"{path} holds a run with other settings ({_some(changed)}); "
            "choose another --run-dir, or use the old settings to resume it"
        )


def _changes(old: dict, new: dict, ignored: Sequence[str] = ()) -> list[str]:
    """Return a text for each setting that differs."""
    before = _flat(old)
    now = _flat(new)
    changed = []
    for name in {**before, **now}:
        was, value = (of.get(name, "not set") for of in (before, now))
        if was != value and name not in ignored:
            changed.append(f"{name[:80]} was {was[:80]} and is now {value[:80]}")
    return changed


def _some(texts: Sequence[str]) -> str:
    """Return the first three texts, and how many more there are."""
    more = [f"and {len(texts) - 3} more"] if len(texts) > 3 else []
    return "; ".join([*texts[:3], *more])


def _is_more(old: str, new: str) -> bool:
    """Return whether a number has increased, or a list has all old entries and new ones."""
    before, now = json.loads(old), json.loads(new)
    if isinstance(before, list) and isinstance(now, list):
        return set(map(str, before)) < set(map(str, now))
    return is_of([(int, float)], [before, now]) and now > before


def _parsed(content: bytes, most_values: int) -> dict | None:
    """Return the JSON object of a text; None if it is not one, too large or nested too deep."""
    try:
        found = parse_json(content, most_values)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _sha256_of_settings(config: Mapping[str, Any]) -> str:
    return _sha256({name: value for name, value in config.items() if name != "about"})


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
    """Convert a value to JSON types: arrays become lists or numbers, values of unknown types
    text.
    """
    text = json.dumps(
        value, default=lambda each: each.tolist() if hasattr(each, "tolist") else str(each)
    )
    return json.loads(text, parse_constant=str)  # "NaN", "Infinity", "-Infinity"


def _has_strings_of_numbers(line: str) -> bool:
    return any(f'"{name}"' in line for name in _NOT_FINITE)


def _from_json(value: Any) -> Any:
    """Convert the strings that `_to_json` writes for non-finite numbers back to numbers."""
    if isinstance(value, dict):
        return {key: _from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value
