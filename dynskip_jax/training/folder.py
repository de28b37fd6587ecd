"""Create, resume and read the folder of a run: its configuration, metrics and result."""

import contextlib
import datetime
import errno
import hashlib
import itertools
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynskip_jax.errors import Stopped, UserError, needs
from dynskip_jax.training.files import (
    FORMAT,
    check_regular,
    is_of,
    parsed,
    read_bytes,
    sha256_of,
    without_dots,
    write_atomically,
)
from dynskip_jax.training.metrics_file import MetricsFile
from dynskip_jax.training.stored import (
    changes,
    flat,
    from_json,
    grown,
    sha256,
    sha256_of_settings,
    to_json,
)

with needs("experiments"):
    import filelock

_LOCK = ".lock"
_MARKER = ".running"
_NO_LOCKS = (None, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
# Largest numbers of values, in config.json and in result.json.
_MOST_SETTINGS = 200_000
_MOST_VALUES = 2_000_000
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
    """The folder of one run.

    It may come from a stranger: links, pipes and devices in it are refused. `config.json` contains
    a format number, a random identity and all settings, `metrics.jsonl` one JSON object (record) to
    a line, and `result.json` the final result. NaN and infinity are written as strings.
    """

    def __init__(self, path: Path):
        try:
            os.fspath(path).encode()
        except UnicodeEncodeError:
            raise _unusable(path, UserError("no name in UTF-8")) from None
        self.path = path = without_dots(path)
        # SHA-256 of the run's random identity and of the settings that never change.
        self.identity = ""
        # Step and SHA-256 of the newest checkpoint that this process has read or written.
        self.checkpoint: dict[str, Any] | None = None
        self.checkpoints = path / "checkpoints"
        self.plots = path / "plots"
        self._config = path / "config.json"
        self._result = path / "result.json"
        self._metrics = MetricsFile(path / "metrics.jsonl")
        self._lock: filelock.BaseFileLock | None = None
        self._within: RunDir | None = None
        self._new_config: str | None = None
        # What this process trains with, whatever becomes of the file.
        self._config_here: dict[str, Any] = {}
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
        with _naming(run.path):
            exists = _holds_run(run.path)
            old = run.config() if exists else {}
            new = to_json(config)
            if exists:
                _check_data(run.path, old, new, (about or {}).get("source"))
                _check_settings(run.path, old, new, may_grow)
            started = list(old.get("about", []))
            if about is not None:
                started.append(to_json(about))
            identity = old.get("run", uuid.uuid4().hex)
            written = {"format": FORMAT, "run": identity, **new, "about": started}
            may_change = (*may_grow, "dataset.name")
            constant = {name: v for name, v in flat(written).items() if name not in may_change}
            run.identity = sha256(constant)
            run._config_here = written
            run.path.mkdir(parents=True, exist_ok=True)
            run._lock = _lock(run.path)
            run._within = within
            text = json.dumps(written, indent=2) + "\n"
            if not exists:
                write_atomically(run._config, text)
            elif old != written:
                run._new_config = text
            run.checkpoints.mkdir(exist_ok=True)
            run.plots.mkdir(exist_ok=True)
        return run

    def config(self) -> dict:
        """Return the configuration of the run; one of another format is refused."""
        try:
            config = parsed(read_bytes(self._config), _MOST_SETTINGS)
        except (FileNotFoundError, NotADirectoryError):
            problem = "is not a run folder (it has no config.json)"
            raise UserError(f"{self.path} {problem}: restore it, or name another") from None
        if config is not None and config.get("format") != FORMAT:
            own = str(config.get("format", 1))[:20]
            raise UserError(
                f"{self.path} holds a run of format {own}, and this version reads and writes "
                f"format {FORMAT}: use the version that wrote it, or another --run-dir"
            )
        names = []
        if config is not None:
            names = config.get("models", [config.get("model", "model")])
        if not is_of(_CONFIG, config) or not names or not all(map(is_model_name, names)):
            problem = "does not hold a valid configuration"
            raise UserError(f"{self._config} {problem}; restore it, or choose another --run-dir")
        return config

    def keep(self, name: str, text: str) -> None:
        """Write a file that belongs to the run, which nothing may change while the run trains."""
        write_atomically(self.path / name, text)
        self.kept[name] = hashlib.sha256(text.encode()).hexdigest()

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a record to the metrics file, and wait until it is on disk."""
        self.check_present()
        self._metrics.append(record)

    def records(self) -> list[dict]:
        """Return the logged records, without an incomplete last line of a run that was killed."""
        return self._metrics.records()

    def digest_of_metrics(self) -> str:
        """Return the SHA-256 of the records that this process has found and written."""
        return self._metrics.digest

    def rewind(self, step: int, digest: str | None = None) -> None:
        """Remove the records after the step of the checkpoint, or 0: see `MetricsFile.rewind`."""
        self._metrics.rewind(step, digest)

    # --- What other programs do to the folder while this process trains ---

    def check_present(self) -> None:
        """Raise a `UserError` if the folder was removed, or replaced by another run's."""
        if not all(path.exists() for path in (self._config, self.checkpoints, self.plots)):
            raise UserError(
                f"the run folder {self.path} was removed, or files in it, while the run trained; "
                f"{self._last_checkpoint()}: restore the folder, or start again"
            )

    def check_unchanged(self) -> None:
        """Raise a `UserError` if files are not what this process has written."""
        self.check_present()
        found = self.config()
        if found["run"] != self._config_here["run"]:
            problem = "was replaced by that of another run while this run trained"
            raise UserError(
                f"the run folder {self.path} {problem}; "
                f"{self._last_checkpoint()}: choose another --run-dir"
            )
        if changed := changes(self._config_here, found):
            problem = f"was changed while the run trained ({_some(changed)})"
            raise UserError(f"{self._config} {problem}: restore it, then the same command goes on")
        if self._metrics.digest_of_file() != self._metrics.digest:
            raise UserError(
                f"{self._metrics.path} was changed or removed while the run trained: "
                "restore it, or delete it, then the same command goes on"
            )
        for name, digest in self.kept.items():
            path = self.path / name
            if not path.exists() or sha256_of(path) != digest:
                problem = "was changed or removed while the run trained"
                raise UserError(f"{path} {problem}: the same command writes it again")

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

        It contains digests of itself, and of this process's settings and records.
        """
        self.check_unchanged()
        digests = {
            "config_sha256": sha256_of_settings(self._config_here),
            "metrics_sha256": self.digest_of_metrics(),
        }
        written = to_json({**result, **digests})
        written["sha256"] = sha256(written)
        write_atomically(self._result, json.dumps(written, indent=2) + "\n")

    def go_on(self) -> None:
        """Start or resume the run, and the one that contains it, once all that it needs is read.

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
        found = parsed(read_bytes(self._result), _MOST_VALUES) or {}
        if found.pop("sha256", None) != sha256(found):
            raise UserError(
                f"{self._result} is not as the run wrote it (its SHA-256 differs); "
                "restore it, or delete it and run again"
            )
        if found.pop("config_sha256", None) != sha256_of_settings(self.config()):
            problem = "does not hold the settings that the model was trained with"
            raise UserError(f"{self._config} {problem}: restore it, or train again")
        logged = found.pop("metrics_sha256", None)  # which older versions do not write
        if logged is not None and logged != self._metrics.digest_of_file():
            raise UserError(
                f"{self._metrics.path} does not hold the records of the result: restore it; "
                f"or delete it and {self._result.name}, and run the same command again"
            )
        return from_json(found)


def new_folder(task: str, model: str, now: datetime.datetime) -> Path:
    """Create and return `runs/<task>/<model>-<time>`, followed by `-2`, `-3`, … if it exists."""
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


def check_usable(path: Path) -> None:
    """Refuse a run folder that cannot be written, before long work begins; change nothing."""
    with _naming(path):
        _holds_run(path)
        nearest = next(folder for folder in (path, *path.parents) if folder.exists())
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def file_name(model: str) -> str:
    """Return a model's name for use in a file name, with "-" for characters such as ":"."""
    return re.sub(r"[^A-Za-z0-9.,_+=-]", "-", model)


def is_model_name(value: Any) -> bool:
    """Return whether a value is the name of a model, whose folder lies in the run's."""
    return isinstance(value, str) and len(value) < 200 and file_name(value).strip(".") != ""


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the run folder in what the system says of it."""
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from error


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
            problem = f"another process is running in {path}"
            raise UserError(f"{problem}: wait for it, or {remedy}") from None
        except (NotImplementedError, OSError) as error:
            if kind is filelock.SoftFileLock or getattr(error, "errno", None) not in _NO_LOCKS:
                raise
        remedy = f"delete {path / _MARKER} if it was killed"


def _holds_run(path: Path) -> bool:
    """Return whether the folder contains a run; refuse a file, and a folder with other contents."""
    if not os.path.lexists(path):
        return False
    if not path.is_dir():
        problem = "is a file or a broken link, not a folder"
        raise UserError(f"{path} {problem}; choose another --run-dir")
    names = {entry.name for entry in path.iterdir()}
    # A run that is killed while it writes its configuration leaves only the other files.
    if "config.json" not in names and names - {"config.json.tmp", _LOCK, _MARKER}:
        problem = "is not empty and has no config.json, so it is not a run"
        raise UserError(f"{path} {problem}; choose another --run-dir")
    check_regular(path)
    return "config.json" in names


def _check_data(path: Path, old: dict, new: dict, source: str | None) -> None:
    """Refuse other data than those in the folder, from `source`.

    Other settings than those of data are not listed: they may follow from the size of the data.
    """
    was = old.get("dataset") or {}
    now = new.get("dataset") or {}
    if was.get("fingerprint") == now.get("fingerprint"):
        return
    places = [(old.get("about") or [{}])[-1].get("source"), source]
    differing = "their content has changed"
    for before, after in ((was.get("name"), now.get("name")), places):
        if before != after and before and after:
            differing = f"{str(before)[:80]}, and now it is {str(after)[:80]}"
            break
    names = {**flat(old), **flat(new)}
    derived = [name for name in names if not name.startswith("settings.data.")]
    causes = _some([differing, *changes(old, new, derived)])
    raise UserError(f"{path} was trained on other data: {causes}; choose another --run-dir")


def _check_settings(path: Path, old: dict, new: dict, may_grow: Sequence[str]) -> None:
    """Refuse settings that differ from those in the folder, unless they have grown."""
    ignored = (*grown(old, new, may_grow), *_NOT_COMPARED)
    if changed := changes(old, new, ignored):
        raise UserError(
            f"{path} holds a run with other settings ({_some(changed)}); "
            "choose another --run-dir, or use the old settings to resume it"
        )


def _some(texts: Sequence[str]) -> str:
    """Return the first three texts, and how many more there are."""
    shown = list(texts[:3])
    if len(texts) > 3:
        shown.append(f"and {len(texts) - 3} more")
    return "; ".join(shown)
