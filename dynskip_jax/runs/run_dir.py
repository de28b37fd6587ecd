"""The folder of one run: its configuration, its metrics, its result, and the way back into it."""

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
from dynskip_jax.runs.files import write_atomically

with needs("experiments"):
    import filelock

_LOCK = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # what file systems without locks say
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)  # what the system says where nothing may be written
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class RunDir:
    """The folder of one run.

    `config.json` holds every setting, `metrics.jsonl` one JSON object per line, `result.json` what came out;
    `checkpoints/` and `plots/` are for others to fill. JSON has no NaN and no infinity: they are written as
    the strings "NaN", "Infinity" and "-Infinity", which `records` and `result` turn into numbers again.

    Attributes:
        path: the folder.
        checkpoints: the folder for checkpoints.
        plots: the folder for plots.
        resumed: whether the run was there already.
        is_read_only: whether nothing may be written into the folder: its run is finished, and can be read.
        on_rewind: is told the records that `rewind` has left.
        on_log: is told each record that `log` adds.
    """

    def __init__(self, path: Path, *, resumed: bool):
        """Names the files of a run folder that is there; `RunDir.open` is what makes or checks one."""
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
        """Starts a run in a new or empty folder, or resumes the run in a folder with the same configuration.

        Arguments:
            path: the folder.
            config: every setting of the run; whatever JSON cannot hold is kept as its text.
            about: how the run was begun, kept beside the configuration as `about` and compared with nothing.
            defaults: the defaults of the settings in `config`: what a folder holds of a setting that is newer
                than the run.
            upgrade: turns the configuration of a folder that an older version wrote into one of this version.
            may_grow: settings, as in `training.epochs`, that may be larger than those of the run there,
                or lists that may have more entries; the folder keeps the new ones from `go_on` on.
            fixed: of `may_grow` those that may not grow in this run, and why.
            ignored: settings that are not compared, such as paths that older versions wrote.
            named_by: from a setting that only names something to the one that identifies it; where the second
                is equal, the first is not compared.
            within: the run of several models that this one is a part of.

        Returns:
            The run's folder, with `resumed` telling which of the two happened.

        Raises:
            UserError: the folder holds a run with other settings or something that is not a run, another
                process is running it, or it cannot be read or written. Nothing is changed in it then.
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
        """Returns the folder of a run that is there, to be read.

        Raises:
            UserError: it is not the folder of a run.
        """
        path = Path(path)
        if not (path / "config.json").exists():
            raise UserError(f"{path} is not a run folder (it has no config.json): name one that is")
        return cls(path, resumed=True)

    def check_writable(self) -> None:
        """Raise a `UserError` where nothing may be written into the folder."""
        if self.is_read_only:
            raise UserError(
                f"nothing may be written into {self.path}, and its run is not finished with these settings: "
                "make it writable, or choose another --run-dir"
            )

    def config(self) -> dict:
        """Returns the settings of the run.

        Raises:
            UserError: `config.json` does not hold them.
        """
        return _read_config(self.path / "config.json")

    def log(self, record: Mapping[str, Any]) -> None:
        """Appends one record to the metrics, and hands it to the operating system before it returns.

        Arguments:
            record: names and values; NumPy and JAX arrays become numbers or lists.
        """
        written = _to_json(record)
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(written, allow_nan=False) + "\n")
        self.on_log(_from_json(written))

    def records(self) -> list[dict]:
        """Returns the logged records, without a last line that was cut off when the run was killed.

        Raises:
            UserError: a line before the last is not a JSON object.
        """
        if not self._metrics.exists():
            return []
        lines = self._metrics.read_text(encoding="utf-8", errors="replace").split("\n")
        # Every record ends its line, so what follows the last line end is nothing, or was cut off.
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
        """Takes back what was logged after the checkpoint to resume from, and a cut-off last line.

        Call it whenever a run is resumed, also without a checkpoint (`step=0`).

        Arguments:
            step: the step of that checkpoint. Records with a larger "step" go; those without a "step" stay.

        Raises:
            UserError: as `records`.
        """
        if self._metrics.exists():
            kept = [record for record in self.records() if record.get("step", step) <= step]
            text = "".join(json.dumps(_to_json(record), allow_nan=False) + "\n" for record in kept)
            write_atomically(self._metrics, text)
        self.on_rewind(self.records())

    def keep(self, name: str, text: str) -> None:
        """Write a file into the folder, all of it or nothing; another file of that name is replaced.

        Arguments:
            name: of the file.
            text: its content.
        """
        path = self.path / name
        if not path.exists() or path.read_bytes() != text.encode():  # a finished run may be read-only
            write_atomically(path, text)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Writes `result.json`, all of it or nothing. It is the last thing a run does.

        Its entry `sha256` covers all others, and `config_sha256` the settings.

        Arguments:
            result: names and values, as for `log`.
        """
        written = _to_json({**result, "config_sha256": _sha256_of_settings(self.config())})
        written["sha256"] = _sha256(written)
        write_atomically(self._result, json.dumps(written, indent=2, allow_nan=False) + "\n")

    def go_on(self) -> None:
        """Begins, or goes on, for certain: everything that is needed has been read.

        Settings that have grown are kept from now on, and `result.json` is removed, here and in the run that
        this one is a part of: checkpoints are no longer those it tells of.
        """
        if self._within is not None:
            self._within.go_on()
        if self._grown is not None:
            write_atomically(self.path / "config.json", self._grown)
            self._grown = None
        self._result.unlink(missing_ok=True)

    def result(self) -> dict | None:
        """Returns the result, or None while the run is not finished.

        Raises:
            UserError: `result.json` is not a JSON object, has no list of rows, or was changed since it was
                written.
        """
        found = self._verified_result()
        if found is not None:
            found.pop("config_sha256", None)
        return found

    def check_settings(self) -> None:
        """Raise a `UserError` where a finished run's settings are not those that it was trained with.

        Results that older versions wrote do not say which these were.
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
    """Make and return a new folder: `runs/<task>/<model>-<time>`, with `-2`, `-3`, … where it is taken.

    Of several processes that start in the same second each gets a folder of its own.

    Arguments:
        task: the name of the experiment.
        model: the model as on the command line; see `file_name`.
        now: the time that names the folder.

    Raises:
        UserError: no folder can be made here.
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
    """Returns a model's name as part of a file's: what does not fit into one (":") becomes "-"."""
    return re.sub(r"[^A-Za-z0-9.,_+=-]", "-", model)


def _lock(path: Path) -> filelock.BaseFileLock | None:
    """Holds a run folder for this process as long as the run is in use; the system lets go if it is killed.

    On file systems without locks there is none.

    Raises:
        UserError: another process holds it.
    """
    lock = filelock.FileLock(path / _LOCK, timeout=0, is_singleton=True)  # one for each process
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
    """Whether there is a run in the folder; a folder with anything else in it is an error."""
    if not path.exists():
        return False
    if not path.is_dir():
        raise UserError(f"{path} is a file, not a folder; choose another --run-dir")
    names = {entry.name for entry in path.iterdir()}
    if "config.json" in names:
        return True
    # A run that was killed while it wrote its configuration leaves only the unfinished file.
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
    """Whether the lists and objects of a configuration are lists and objects."""
    return (
        _is_list_of(config.get("models", [""]), str)
        and config.get("models") != []
        and isinstance(config.get("model"), str | None)
        and _is_list_of(config.get("about", []), dict)
        and all(_is_about(entry) for entry in config.get("about", []))
        and all(isinstance(config.get(name) or {}, dict) for name in ("settings", "dataset"))
    )


def _is_about(entry: dict) -> bool:
    """Whether the paths in an entry of how a run was begun are paths."""
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
    """Return whether the new configuration has grown where it may; raise where it differs elsewhere.

    A setting that is newer than the run, so that the old configuration lacks it, has its default there.

    Raises:
        UserError: another setting differs.
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
    """Return the configuration with the defaults of the settings that its groups lack."""
    completed = dict(config)
    for name, default in defaults.items():
        if not isinstance(default, dict):
            completed.setdefault(name, default)
        elif isinstance(config.get(name), dict):
            completed[name] = _completed(config[name], default)
    return completed


def _is_more(old: str | None, new: str | None) -> bool:
    """Whether a number has become larger, or a list longer."""
    if old is None or new is None:
        return False
    before, now = json.loads(old), json.loads(new)
    if isinstance(before, list) and isinstance(now, list):
        return set(map(str, before)) < set(map(str, now))
    return isinstance(before, int | float) and isinstance(now, int | float) and now > before


def _sha256(content: Mapping[str, Any]) -> str:
    """The SHA-256 of what a JSON file holds, however it is laid out."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sha256_of_settings(config: Mapping[str, Any]) -> str:
    """The SHA-256 of a configuration, without how the run was begun and resumed."""
    return _sha256({name: value for name, value in config.items() if name != "about"})


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as `{"optimizer.rate": "0.1"}`, with the values as JSON text."""
    flat: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = json.dumps(value)
    return flat


def _to_json(value: Any) -> Any:
    """The value made of JSON's own types; NumPy and JAX arrays become lists, anything unknown its text."""
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
    """The inverse of `_to_json` for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value
