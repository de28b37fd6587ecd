"""Create, resume and read the folder of a run: its configuration, metrics and result."""

import contextlib
import datetime
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from dynskip_jax.errors import UserError, needs
from dynskip_jax.storage import checkpoint
from dynskip_jax.storage.files import (
    from_json,
    read_json,
    read_json_lines,
    to_json,
    write_atomically,
)
from dynskip_jax.storage.manifest import (
    METRICS,
    NAME,
    RESULT,
    Files,
    checkpoint_step,
    entries_of,
    entry_of,
    other_format,
    read_manifest,
    write_manifest,
)

with needs("experiments"):
    import filelock

_CONFIG = "config.json"
_PROGRESS = "progress.json"
_LOCK = ".lock"


class RunDir:
    """The folder of one run.

    `config.json` contains all settings, `metrics.jsonl` one JSON object (record) to a line, and
    `result.json` the final result. `manifest.json` names them all with their SHA-256, and the files
    of one checkpoint. It is written after them: with the folder as it was at the last manifest, a
    run that was killed goes on.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.plots = self.path / "plots"
        self.files: Files = {}  # what the manifest names, as this process read or wrote it
        self._new_config: str | None = None
        self._lock: filelock.BaseFileLock | None = None

    @classmethod
    def read(cls, path: str | Path) -> "RunDir":
        """Return the run in a folder, whose files must be as the run wrote them."""
        run = cls(path)
        with _naming(run.path):
            if not _holds_run(run.path):
                problem = "is not a run folder (it has no manifest.json)"
                raise UserError(f"{run.path} {problem}: restore it, or name another")
            run.files = read_manifest(run.path)
        return run

    @classmethod
    def open(
        cls,
        path: str | Path,
        config: Mapping[str, Any],
        *,
        about: Mapping[str, Any] | None = None,
        may_grow: Sequence[str] = (),
    ) -> "RunDir":
        """Start a run in a new or empty folder, or resume the run of the same settings, `config`.

        A folder with other settings, with files but no run, or in use by another process is
        refused. `about` is how the run was started. The settings named in `may_grow`, such as
        `settings.training.epochs`, may have larger numbers or longer lists than in the folder.
        `go_on` writes them.
        """
        run = cls(path)
        with _naming(run.path):
            check_usable(run.path)
            run.path.mkdir(parents=True, exist_ok=True)
            run._lock = _lock(run.path)
            if _holds_run(run.path):
                run.files = read_manifest(run.path)
            else:
                write_manifest(run.path, {})
            # A run that was killed while it wrote a new configuration has no entry of it.
            old = {}
            if _CONFIG in run.files or run.checkpoint is not None:
                old = run.config()
            new = from_json(to_json(config))
            if old:
                _check_same(run.path, old, new, may_grow, (about or {}).get("source"))
            started = [*old.get("about", [])]
            if about is not None:
                started.append(to_json(about))
            run._new_config = json.dumps(to_json({**new, "about": started}), indent=2) + "\n"
            if not old:
                run._write_config()
            run.checkpoints.mkdir(exist_ok=True)
            run.plots.mkdir(exist_ok=True)
        return run

    # --- Reading ---

    def config(self) -> dict[str, Any]:
        """Return the configuration of the run."""
        return read_json(self.path / _CONFIG)

    def records(self) -> list[dict[str, Any]]:
        """Return the logged records, without an incomplete last line of a run that was killed."""
        path = self.path / METRICS
        return read_json_lines(path) if path.exists() else []

    @property
    def is_finished(self) -> bool:
        """Whether the run has a result."""
        return RESULT in self.files

    def result(self) -> dict[str, Any] | None:
        """Return the result; None if the run is not finished."""
        return read_json(self.path / RESULT) if self.is_finished else None

    @property
    def checkpoint(self) -> Path | None:
        """The folder of the checkpoint; None if there is none yet."""
        step = checkpoint_step(self.files)
        return None if step is None else self.checkpoints / step

    # --- Writing ---

    def go_on(self) -> None:
        """Start or resume the run, once all that it needs is read.

        Remove the result, which will no longer be that of the checkpoint, and what a process that
        was killed has written after it. Write grown settings and the new `about`.
        """
        kept = {name: entry for name, entry in self.files.items() if _outlasts(name)}
        if self._new_config is not None:
            kept.pop(_CONFIG, None)
        if kept != self.files:
            self._commit(kept)
        (self.path / RESULT).unlink(missing_ok=True)
        # Remove the records after those of the checkpoint.
        if (self.path / METRICS).exists():
            size = 0
            if METRICS in self.files:
                size = self.files[METRICS].bytes
            os.truncate(self.path / METRICS, size)
        self._remove_other_checkpoints()
        if self._new_config is not None:
            self._write_config()

    def keep(self, name: str, text: str) -> None:
        """Write a file that belongs to the run, and never changes."""
        entry = entry_of(text)
        if name not in self.files:
            write_atomically(self.path / name, text)
            self._commit({**self.files, name: entry})
        elif self.files[name] != entry:
            problem = "is not what these data and this version give"
            raise UserError(f"{self.path / name} {problem}: choose another --run-dir")

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a record, whose arrays become lists, and wait until it is on disk."""
        with open(self.path / METRICS, "ab") as file:
            file.write(f"{json.dumps(to_json(record))}\n".encode())
            file.flush()
            os.fsync(file.fileno())

    def save(self, step: int, state: PyTree, progress: Mapping[str, Any]) -> None:
        """Save a checkpoint and the records so far, in place of the last checkpoint."""
        folder = self.checkpoints / str(step)
        if folder == self.checkpoint:
            return
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        folder.mkdir()  # fails if the run folder was removed
        checkpoint.save(folder / "state", state)
        write_atomically(folder / _PROGRESS, json.dumps(to_json(progress)) + "\n")
        others = {name: entry for name, entry in self.files.items() if "/" not in name}
        self._commit({**others, **entries_of(self.path, folder), **self._records_entry()})
        self._remove_other_checkpoints()

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write the result, as the last action."""
        text = json.dumps(to_json(result), indent=2) + "\n"
        write_atomically(self.path / RESULT, text)
        self._commit({**self.files, RESULT: entry_of(text), **self._records_entry()})

    def _commit(self, files: Files) -> None:
        """Write the manifest: from now on, these are the files of the run."""
        write_manifest(self.path, files)
        self.files = files

    def _write_config(self) -> None:
        write_atomically(self.path / _CONFIG, self._new_config)
        self._commit({**self.files, _CONFIG: entry_of(self._new_config)})
        self._new_config = None

    def _records_entry(self) -> Files:
        return entries_of(self.path, self.path / METRICS)

    def _remove_other_checkpoints(self) -> None:
        """Remove older checkpoints, and those of which the manifest does not know yet."""
        for folder in self.checkpoints.iterdir():
            if folder.is_dir() and folder != self.checkpoint:
                shutil.rmtree(folder)


def read_checkpoint(folder: Path, like: PyTree, *, partial: bool = False) -> PyTree:
    """Return the state in the folder of a checkpoint: see `checkpoint.restore`."""
    return checkpoint.restore(folder / "state", like, partial=partial)


def read_progress(folder: Path) -> dict[str, Any]:
    """Return the progress in the folder of a checkpoint."""
    return read_json(folder / _PROGRESS)


def new_folder(task: str, model: str, now: datetime.datetime) -> Path:
    """Create and return `runs/<task>/<model>-<time>`, followed by `-2`, `-3`, … if it exists."""
    name = file_name(model).replace(",", "-")  # commands take several folders, separated by commas
    first = Path("runs") / task / f"{name}-{now:%Y%m%d-%H%M%S}"
    for count in itertools.count(1):
        path = first if count == 1 else first.with_name(f"{first.name}-{count}")
        with _naming(path), contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path


def check_usable(path: Path) -> None:
    """Refuse a run folder that cannot be written, before long work begins; change nothing."""
    with _naming(path):
        # TensorStore takes paths in UTF-8, and reads a backslash as a slash.
        if "\\" in os.fsencode(path.absolute()).decode():
            raise ValueError("a backslash in its path")
        _holds_run(path)


def file_name(model: str) -> str:
    """Return a model's name for use in a file name, with "-" for characters such as ":"."""
    return re.sub(r"[^A-Za-z0-9.,_+=-]", "-", model)


def _outlasts(name: str) -> bool:
    """Return whether a file stays as it is where a finished run goes on.

    Older versions named the manifests of a comparison's models, too.
    """
    return name != RESULT and not name.endswith(f"/{NAME}")


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn an error of the system into one that names the run folder."""
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot use the run folder {path} ({reason}); choose another --run-dir"
        ) from error


def _lock(path: Path) -> filelock.BaseFileLock:
    """Lock a run folder for this process; the system releases the lock if the process is killed."""
    lock = filelock.FileLock(path / _LOCK, timeout=0, is_singleton=True)  # one lock a process
    try:
        lock.acquire()
    except filelock.Timeout:
        raise UserError(
            f"another process is running in {path}: wait for it, stop it, or choose another "
            "--run-dir"
        ) from None
    return lock


def _holds_run(path: Path) -> bool:
    """Return whether the folder contains a run; refuse a file, and a folder with other contents."""
    if not os.path.lexists(path):
        return False
    if not path.is_dir():
        problem = "is a file or a broken link, not a folder"
        raise UserError(f"{path} {problem}; choose another --run-dir")
    names = {entry.name for entry in path.iterdir()}
    # A run that is killed while it writes its first manifest leaves only the other files.
    if NAME in names or not names - {f"{NAME}.tmp", _LOCK}:
        return NAME in names
    if _CONFIG in names and "format" in (found := read_json(path / _CONFIG)):
        raise other_format(path, found["format"])
    problem = "is not empty and has no manifest.json, so it is not a run"
    raise UserError(f"{path} {problem}; choose another --run-dir")


# --- Settings that have changed ---


def _check_same(
    path: Path, old: Mapping, new: Mapping, may_grow: Sequence[str], source: str | None
) -> None:
    """Refuse other data or settings than those in the folder, unless they have grown."""
    was = old.get("dataset") or {}
    now = new.get("dataset") or {}
    if was.get("fingerprint") != now.get("fingerprint"):
        before = (old.get("about") or [{}])[-1].get("source")
        differing = "their content has changed"
        if source is not None and source != before:
            differing = f"{str(before)[:80]}, and now it is {source[:80]}"
        problem = f"was trained on other data: {differing}"
        raise UserError(f"{path} {problem}; choose another --run-dir")
    before = _flat(old)
    after = _flat(new)
    changed = [
        f"{name[:80]} was {before.get(name, 'not set')[:80]} "
        f"and is now {after.get(name, 'not set')[:80]}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
        and not (name in may_grow and _is_more(before.get(name), after.get(name)))
    ]
    if changed:
        if len(changed) > 3:
            changed[3:] = [f"and {len(changed) - 3} more"]
        raise UserError(
            f"{path} holds a run with other settings ({'; '.join(changed)}); "
            "choose another --run-dir, or use the old settings to resume it"
        )


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested settings, as in `{"optimizer.rate": "0.1"}`, with values as JSON text.

    How a run was started is left out, and the name of its data, whose folder may be renamed.
    """
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{prefix}{name}.")
        elif name != "about" and prefix + name != "dataset.name":
            found[prefix + name] = json.dumps(value)
    return found


def _is_more(old: str | None, new: str | None) -> bool:
    """Return whether a number is larger, or a list has all old entries and new ones."""
    before = json.loads(old or "null")
    now = json.loads(new or "null")
    if isinstance(before, list) and isinstance(now, list):
        return set(map(str, before)) < set(map(str, now))
    numbers = [isinstance(value, int | float) for value in (before, now)]
    return all(numbers) and not isinstance(now, bool) and now > before
