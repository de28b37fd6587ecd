"""Create, resume and read the folder of a run: its configuration, metrics and result."""

import datetime
import errno
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynskip_jax.errors import UserError
from dynskip_jax.extras import needs
from dynskip_jax.training.files import write_atomically

with needs("experiments"):
    import filelock

_LOCK = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # errors of file systems without locks
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)  # errors if writing is not permitted
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class RunDir:
    """The folder of one run.

    `config.json` contains all settings, `metrics.jsonl` one JSON object (record) per line, and `result.json`
    the final result. Other modules write into `checkpoints/` and `plots/`. JSON has no NaN and no infinity.
    They are written as the strings "NaN", "Infinity" and "-Infinity", which `records` and `result` convert
    back to numbers.

    Attributes:
        path: Path of the folder.
        checkpoints: Path of the folder of checkpoints.
        plots: Path of the folder of plots.
        resumed: Whether the run existed already.
        is_read_only: Whether the folder is not writable. Its run is then finished, and can only be read.
        on_rewind: Callback for the records that remain after `rewind`.
        on_log: Callback for each record that `log` adds.
    """

    def __init__(self, path: Path, *, resumed: bool):
        """Initialize the object of an existing run folder. `RunDir.open` creates or checks the folder.

        Args:
            path: Path of the folder.
            resumed: Whether the run existed already.
        """
        self.path = path
        self.resumed = resumed
        self.is_read_only = False
        self.on_rewind: Callable[[list[dict]], None] = lambda records: None
        self.on_log: Callable[[dict], None] = lambda record: None
        self.checkpoints = path / "checkpoints"
        self.plots = path / "plots"
        self._lock: filelock.BaseFileLock | None = None
        self._within: RunDir | None = None
        self._grown: str | None = None
        self._metrics = path / "metrics.jsonl"
        self._result = path / "result.json"

    @classmethod
    def open(
        cls,
        path: str | Path,
        config: Mapping[str, Any],
        *,
        about: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
        upgrade: Callable[[dict], dict] | None = None,
        may_grow: Sequence[str] = (),
        fixed: Mapping[str, str] | None = None,
        ignored: Sequence[str] = (),
        named_by: Mapping[str, str] | None = None,
        within: "RunDir | None" = None,
    ) -> "RunDir":
        """Start a run in a new or empty folder, or resume the run in a folder with the same configuration.

        Args:
            path: Path of the folder.
            config: All settings of the run. Values that are not JSON-serializable are stored as text.
            about: How the run was started, such as command and versions. It is appended to the list `about`
                of the configuration and is not compared.
            defaults: Default values of the settings in `config`. They are used for settings that are newer
                than the folder.
            upgrade: Function that converts the configuration of an older version to the current format.
            may_grow: Names of settings, such as `settings.training.epochs`, whose number may be larger, or
                whose list may have more entries, than in the folder. `go_on` writes the new values.
            fixed: Settings of `may_grow` that may not grow in this run, with the reason.
            ignored: Settings that are not compared, such as paths.
            named_by: Map from a setting that is only a name to the setting that identifies the same thing.
                The name is not compared if the other setting is equal.
            within: Run of several models that contains this one.

        Returns:
            The run folder. Its attribute `resumed` states whether the run was resumed.

        Raises:
            UserError: The folder contains a run with other settings, or files but no run. Or another process
                uses it, or it cannot be read or written. Existing files are not changed.
        """
        path = Path(path)
        try:
            resumed = _holds_run(path)
            written, kept = _to_json(config), [] if about is None else [_to_json(about)]
            grown = False
            if resumed:
                old = _read_config(path / "config.json")
                kept = old.pop("about", []) + kept
                if upgrade is not None and old.get("experiment") == written.get("experiment"):
                    old = upgrade(old)
                completed = _to_json(defaults or {})
                grown = _check_config(
                    path, old, written, completed, may_grow, fixed or {}, ignored, named_by or {}
                )
            path.mkdir(parents=True, exist_ok=True)
            is_read_only, lock = False, None
            try:
                lock = _lock(path)
            except OSError as error:
                if error.errno not in _READ_ONLY or not (path / "result.json").exists():
                    raise
                is_read_only = True
            if about is not None:
                written = {**written, "about": kept}
            text = json.dumps(written, indent=2) + "\n"
            if not resumed:
                write_atomically(path / "config.json", text)
            run = cls(path, resumed=resumed)
            run._lock, run._within, run.is_read_only = lock, within, is_read_only
            run._grown = text if grown or (resumed and about is not None) else None
            if not is_read_only:
                run.checkpoints.mkdir(exist_ok=True)
                run.plots.mkdir(exist_ok=True)
        except UserError:
            raise
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(
                f"cannot use the run folder {path} ({reason}); choose another --run-dir"
            ) from error
        return run

    @classmethod
    def existing(cls, path: str | Path) -> "RunDir":
        """Return the folder of an existing run for reading, without a lock.

        Args:
            path: Path of the folder.

        Raises:
            UserError: `path` is not a run folder.
        """
        path = Path(path)
        if not (path / "config.json").exists():
            raise UserError(f"{path} is not a run folder (it has no config.json): name one that is")
        return cls(path, resumed=True)

    def check_writable(self) -> None:
        """Raise a `UserError` if the folder is read-only."""
        if self.is_read_only:
            raise UserError(
                f"nothing may be written into {self.path}, and its run is not finished with these settings: "
                "make it writable, or choose another --run-dir"
            )

    def config(self) -> dict:
        """Return the configuration of the run.

        Raises:
            UserError: `config.json` does not exist or is not a valid configuration.
        """
        return _read_config(self.path / "config.json")

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a record to the metrics file, and pass it to the operating system before returning.

        Args:
            record: Names and values. NumPy and JAX arrays are converted to numbers or lists.
        """
        written = _to_json(record)
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(written, allow_nan=False) + "\n")
        self.on_log(_from_json(written))

    def records(self) -> list[dict]:
        """Return the logged records, without an incomplete last line of a run that was killed.

        Raises:
            UserError: A complete line is not a JSON object.
        """
        if not self._metrics.exists():
            return []
        lines = self._metrics.read_text(encoding="utf-8", errors="replace").split("\n")
        # Every record ends with a newline. So the text after the last newline is empty or incomplete.
        records = []
        for number, line in enumerate(lines[:-1], 1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict):
                raise UserError(
                    f"line {number} of {self._metrics} is not a JSON object; "
                    "delete that line, or choose another --run-dir"
                )
            records.append(_from_json(record))
        return records

    def rewind(self, step: int) -> None:
        """Remove records that were logged after the checkpoint to resume from, and an incomplete last line.

        Call it whenever a run is resumed, also without a checkpoint (`step=0`).

        Args:
            step: Step of the checkpoint. Records with a larger "step" are removed. Records without a "step"
                are kept.

        Raises:
            UserError: See `records`.
        """
        if self._metrics.exists():
            kept = [record for record in self.records() if record.get("step", step) <= step]
            text = "".join(json.dumps(_to_json(record), allow_nan=False) + "\n" for record in kept)
            write_atomically(self._metrics, text)
        self.on_rewind(self.records())

    def keep(self, name: str, text: str) -> None:
        """Write or replace a file in the folder atomically, unless it has the same content already.

        Args:
            name: Name of the file.
            text: Content of the file.
        """
        path = self.path / name
        if not path.exists() or path.read_bytes() != text.encode():  # a finished run may be read-only
            write_atomically(path, text)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write `result.json` atomically. This is the last action of a run.

        The entry `sha256` is computed from all other entries, `config_sha256` from the settings.

        Args:
            result: Names and values, as for `log`.
        """
        written = _to_json({**result, "config_sha256": _sha256_of_settings(self.config())})
        written["sha256"] = _sha256(written)
        write_atomically(self._result, json.dumps(written, indent=2, allow_nan=False) + "\n")

    def go_on(self) -> None:
        """Commit to starting or resuming the run; call it after reading everything that the run needs.

        It writes grown settings and the new `about` to `config.json`, and removes `result.json`, which will
        no longer match the checkpoints. It does the same in the run that contains this one.
        """
        if self._within is not None:
            self._within.go_on()
        if self._grown is not None:
            write_atomically(self.path / "config.json", self._grown)
            self._grown = None
        self._result.unlink(missing_ok=True)

    def result(self) -> dict | None:
        """Return the result; None if the run is not finished.

        Raises:
            UserError: `result.json` is not a JSON object, its `rows` are not a list of objects, or it was
                changed after the run wrote it.
        """
        found = self._verified_result()
        if found is not None:
            found.pop("config_sha256", None)
        return found

    def check_settings(self) -> None:
        """Raise a `UserError` if the settings of a finished run were changed after training.

        Results of older versions are not checked, because they do not contain a hash of the settings.
        """
        expected = (self._verified_result() or {}).get("config_sha256")
        if expected not in (None, _sha256_of_settings(self.config())):
            raise UserError(
                f"{self.path / 'config.json'} does not hold the settings that the model was trained with: "
                "restore it, or train again"
            )

    def _verified_result(self) -> dict | None:
        if not self._result.exists():
            return None
        try:
            found = json.loads(self._result.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise UserError(f"{self._result} is not a JSON object; delete it and run again")
        rows = found.get("rows", [{}])
        if not rows or not _is_list_of(rows, dict):
            raise UserError(f'{self._result} has no list of results in "rows"; delete it and run again')
        if found.pop("sha256", None) not in (None, _sha256(found)):
            raise UserError(
                f"{self._result} is not as the run wrote it (its SHA-256 differs); restore it, or delete it "
                "and run again"
            )
        return _from_json(found)


def new_folder(task: str, model: str, now: datetime.datetime) -> Path:
    """Create and return a new folder `runs/<task>/<model>-<time>`, followed by `-2`, `-3`, … if it exists.

    Processes that start in the same second get different folders.

    Args:
        task: Name of the experiment.
        model: Name of the model, as on the command line; see `file_name`.
        now: Time in the folder's name.

    Raises:
        UserError: The folder cannot be created.
    """
    name = f"{file_name(model)}-{now:%Y%m%d-%H%M%S}"
    path = Path("runs") / task / name
    count = 1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                path.mkdir()
                return path
            except FileExistsError:
                count += 1
                path = path.with_name(f"{name}-{count}")
    except OSError as error:
        raise UserError(
            f"cannot use the run folder {path} ({error.strerror}); choose another --run-dir"
        ) from error


def file_name(model: str) -> str:
    """Return the name of a model for use in a file name: characters such as ":" are replaced by "-"."""
    return re.sub(r"[^A-Za-z0-9.,_+=-]", "-", model)


def _lock(path: Path) -> filelock.BaseFileLock | None:
    """Lock a run folder for this process. The system releases the lock if the process is killed.

    Args:
        path: Path of the folder.

    Returns:
        The lock; None on file systems without locks.

    Raises:
        UserError: Another process holds the lock.
    """
    lock = filelock.FileLock(path / _LOCK, timeout=0, is_singleton=True)  # one lock object per process
    try:
        lock.acquire()
    except filelock.Timeout:
        raise UserError(
            f"another process is running in {path}: wait for it, stop it, or choose another --run-dir"
        ) from None
    except NotImplementedError:
        return None
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return lock


def _holds_run(path: Path) -> bool:
    """Return whether the folder contains a run.

    Raises:
        UserError: `path` is a file, or a folder with other contents than a run.
    """
    if not path.exists():
        return False
    if not path.is_dir():
        raise UserError(f"{path} is a file, not a folder; choose another --run-dir")
    names = {entry.name for entry in path.iterdir()}
    if "config.json" in names:
        return True
    # A run that is killed while it writes its configuration leaves only these files.
    if names - {"config.json.tmp", _LOCK}:
        raise UserError(
            f"{path} is not empty and has no config.json, so it is not a run; choose another --run-dir"
        )
    return False


def _read_config(path: Path) -> dict:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no {path}: restore it, or choose another --run-dir") from None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict) or not _is_config(config):
        raise UserError(
            f"{path} does not hold a valid configuration; restore it, or choose another --run-dir"
        )
    return config


def _is_config(config: dict) -> bool:
    """Return whether the entries of a configuration have the expected types."""
    return (
        _is_list_of(config.get("models", [""]), str)
        and config.get("models") != []
        and isinstance(config.get("model"), str | None)
        and _is_list_of(config.get("about", []), dict)
        and all(_is_about(entry) for entry in config.get("about", []))
        and all(isinstance(config.get(name) or {}, dict) for name in ("settings", "dataset"))
    )


def _is_about(entry: dict) -> bool:
    """Return whether the paths in an entry of `about` are strings."""
    paths = entry.get("paths", {})
    return (
        isinstance(entry.get("data"), str | None)
        and isinstance(paths, dict)
        and all(isinstance(path, str) for path in paths.values())
    )


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(each, kind) for each in value)


def _check_config(
    path: Path,
    old: dict,
    new: dict,
    defaults: dict,
    may_grow: Sequence[str],
    fixed: Mapping[str, str],
    ignored: Sequence[str],
    named_by: Mapping[str, str],
) -> bool:
    """Compare configurations, and return whether settings that may grow have grown.

    A setting that the old configuration lacks, because it is newer, has its default value there.

    Args:
        path: Path of the run folder, for messages.
        old: Configuration in the folder.
        new: Configuration of this run.
        defaults: See `RunDir.open`.
        may_grow: See `RunDir.open`.
        fixed: See `RunDir.open`.
        ignored: See `RunDir.open`.
        named_by: See `RunDir.open`.

    Raises:
        UserError: Another setting differs.
    """
    if old.get("format") != new.get("format"):
        raise UserError(
            f"{path} holds a run of format {old.get('format', 1)}, and this version reads and writes format "
            f"{new.get('format', 1)}: choose another --run-dir"
        )
    if old.get("experiment") == new.get("experiment"):
        old = _completed(old, defaults)
    before, now = _flatten(old), _flatten(new)
    names = [name for name in {**before, **now} if before.get(name) != now.get(name) and name not in ignored]
    names = [name for name in names if name not in named_by or named_by[name] in names]
    grown = [name for name in names if name in may_grow and _is_more(before.get(name), now.get(name))]
    names = [name for name in names if name not in grown]
    for name in grown:
        if name in fixed:
            raise UserError(
                f"{path} holds a run whose {name} cannot grow from {before[name]} to {now[name]}: "
                f"{fixed[name]}; choose another --run-dir, or use the old settings to resume it"
            )
    if not names:
        return bool(grown)
    pairs = ((name, before.get(name, "not set"), now.get(name, "not set")) for name in names[:3])
    listed = "; ".join(
        f"{name} was {old_value} and is now {new_value}" for name, old_value, new_value in pairs
    )
    more = f"; and {len(names) - 3} more" if len(names) > 3 else ""
    raise UserError(
        f"{path} holds a run with other settings ({listed}{more}); "
        "choose another --run-dir, or use the old settings to resume it"
    )


def _completed(config: dict, defaults: dict) -> dict:
    """Return the configuration with defaults for missing settings; missing groups are not added."""
    completed = dict(config)
    for name, default in defaults.items():
        if not isinstance(default, dict):
            completed.setdefault(name, default)
        elif isinstance(config.get(name), dict):
            completed[name] = _completed(config[name], default)
    return completed


def _is_more(old: str | None, new: str | None) -> bool:
    """Return whether a number has increased, or a list has all old entries and new ones."""
    if old is None or new is None:
        return False
    before, now = json.loads(old), json.loads(new)
    if isinstance(before, list) and isinstance(now, list):
        return set(map(str, before)) < set(map(str, now))
    return isinstance(before, int | float) and isinstance(now, int | float) and now > before


def _sha256(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the contents of a JSON file, independent of its formatting."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sha256_of_settings(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a configuration without its entry `about`."""
    return _sha256({name: value for name, value in config.items() if name != "about"})


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested settings, as in `{"optimizer.rate": "0.1"}`, with values as JSON text."""
    flat: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = json.dumps(value)
    return flat


def _to_json(value: Any) -> Any:
    """Convert a value to JSON types.

    NumPy and JAX arrays become lists or numbers, floats that are not finite become strings, and values of
    unknown types become text.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if hasattr(value, "tolist"):
        return _to_json(value.tolist())
    return str(value)


def _from_json(value: Any) -> Any:
    """Convert the strings that `_to_json` writes for non-finite numbers back to numbers."""
    if isinstance(value, dict):
        return {key: _from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value
