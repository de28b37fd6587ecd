"""Save training states with Orbax, and restore the newest intact checkpoint."""

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jaxtyping import PyTree

from dynskip_jax.devices.processes import Processes
from dynskip_jax.errors import UserError

_STRUCTURE = ("path", "shape", "dtype")  # what must be equal in a checkpoint and the requested state
_LAYOUT = "named"  # layout of the document; older versions, which numbered the arrays, wrote none
# Error numbers for a file that is missing or is of another kind than expected.
_OF_FILES = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
_ROOM = 2**20  # allowance for the bytes of a checkpoint in addition to its arrays


class Restored(NamedTuple):
    """Result of `SavedCheckpoints.restore_latest`.

    Attributes:
        step: Step at which the state was saved.
        state: The state, with the requested structure.
        meta: Dictionary that was saved with the state.
        skipped: One line for each newer checkpoint that could not be read.
        sha256: SHA-256 of all arrays and the metadata.
    """

    step: int
    state: PyTree
    meta: dict
    skipped: tuple[str, ...]
    sha256: str

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Step and SHA-256, which identify the checkpoint among those of the run."""
        return {"step": self.step, "sha256": self.sha256}


class SavedCheckpoints:
    """The checkpoints in an existing folder, for reading only: nothing in the folder is changed.

    Orbax stores the arrays as nested dictionaries with the names of the state. Without this class, Orbax
    reads `<step>/state` as `{"params": {"kernel": array, ...}, ...}`. Items of tuples have the names "0", "1"
    and so on, typed PRNG keys are stored as their uint32 data, and empty arrays are left out.

    A SHA-256 of every array detects checkpoints that were truncated, altered or only partly written. Orbax
    reads some of these without an error (a missing chunk reads as zeros).

    Several processes can read together from a folder that they share. Each process reads whole arrays. The
    number of processes that wrote them does not matter.

    Example:
        >>> SavedCheckpoints("runs/demo/checkpoints").restore_latest((params, opt_state))  # doctest: +SKIP
    """

    def __init__(self, directory: str | Path, *, processes: Processes | None = None):
        """Initialize the reader without reading anything.

        Args:
            directory: Folder of the checkpoints.
            processes: Processes that read together; by default only this one.
        """
        self.directory = Path(directory).absolute()
        self._unreadable: set[int] = set()
        self._intact: dict[int, str] = {}  # digest of each step that this object saved or restored
        self._processes = processes or Processes()
        # Without these options, Orbax waits for all JAX processes. Readers need not wait for each other.
        self._alone = ocp.options.MultiprocessingOptions(
            primary_host=jax.process_index(), active_processes={jax.process_index()}
        )
        self._document = ocp.JsonCheckpointHandler(multiprocessing_options=self._alone)
        self._arrays = ocp.PyTreeCheckpointHandler(multiprocessing_options=self._alone)

    def restore_latest(self, like: PyTree, *, partial: bool = False) -> Restored | None:
        """Restore the newest intact checkpoint. The restored values are bitwise equal to the saved ones.

        Args:
            like: Pytree with the saved structure, of arrays or `jax.ShapeDtypeStruct`s. If a leaf is a
                committed JAX array, or a `ShapeDtypeStruct` with a sharding, the restored array has the same
                sharding.
            partial: Whether `like` contains only a part of the saved state. The rest is then neither read nor
                verified.

        Returns:
            The restored checkpoint; None if nothing has been saved yet. JAX arrays are copies owned by JAX,
            so they can be donated. Leaves that are NumPy arrays or Python numbers in `like` have the same
            type in the result.

        Raises:
            UserError: There are checkpoints but none can be read. Or the system failed to read one (not
                enough memory, a disk that does not respond), so that the file may be intact. Or the newest
                intact checkpoint has another structure, shape or dtype, or was written by an older version
                that numbered the arrays.
        """
        asked = {leaf["path"] for leaf in _describe(like)} if partial else None
        failures: list[tuple[int, str]] = []
        for step in self._processes.agree(sorted(self._steps(), reverse=True)):
            reason, passing = None, False
            try:
                document, leaves, data = self._read(step, asked)
            except Exception as error:  # a damaged file can cause any error in Orbax, TensorStore or JSON
                reason, passing = _reason(error), not _is_damage(error)
            found = self._processes.collect((reason, passing))
            reason = next((reason for reason, _ in found if reason is not None), None)
            if any(passing for _, passing in found):
                raise UserError(
                    f"checkpoint {step} in {self.directory} cannot be read now ({reason}): "
                    "nothing was changed; mend that, and run the same command again"
                )
            if reason is not None:
                self._unreadable.add(step)
                failures.append((step, reason))
                continue
            if data is None:
                raise UserError(
                    f"checkpoint {step} in {self.directory} was written by an older version, which numbered "
                    "the arrays instead of naming them: go on with that version, or choose another --run-dir"
                )
            leaves, data = _in_order_of(like, leaves, data)
            self._check_structure(step, leaves, like)
            if not partial:
                self._intact[step] = document["sha256"]
            state = jax.tree.unflatten(jax.tree.structure(like), map(_like, data, jax.tree.leaves(like)))
            skipped = tuple(
                f"checkpoint {bad} in {self.directory} is unreadable ({reason})" for bad, reason in failures
            )
            return Restored(step, state, document["meta"], skipped, document["sha256"])
        if failures:
            newest, reason = failures[0]
            raise UserError(
                f"none of the {len(failures)} checkpoints in {self.directory} is readable "
                f"(checkpoint {newest}: {reason}); delete that folder, or choose another --run-dir"
            )
        return None

    def fingerprint(self) -> dict[str, Any] | None:
        """Return the step and the SHA-256 of the newest checkpoint, to compare with `Restored.fingerprint`.

        The result is None if there is no checkpoint. The arrays are not read.
        """
        step = self.latest_step
        if step is None:
            return None
        with _quiet():
            document = self._document.restore(self._folder(step, "document"), args=ocp.args.JsonRestore())
        return {"step": step, "sha256": document["sha256"]}

    @property
    def latest_step(self) -> int | None:
        """Step of the newest checkpoint; None if there is none."""
        return max(self._steps(), default=None)

    def _steps(self) -> set[int]:
        """Return all steps that have a folder, even if Orbax would ignore it, so that damage is reported."""
        return {int(p.name) for p in self.directory.iterdir() if p.name.isdecimal() and p.is_dir()}

    def _read(self, step: int, asked: set[str] | None) -> tuple[dict, list[dict], list[np.ndarray] | None]:
        """Read and verify a checkpoint.

        Any error in the files is raised as it is.

        Args:
            step: Step of the checkpoint.
            asked: Paths of the leaves to read; None for all.

        Returns:
            The document, the description of each leaf that was read, and its array. A checkpoint of the older
            layout has no leaves, and None in place of the arrays.
        """
        with _quiet():
            document = self._document.restore(self._folder(step, "document"), args=ocp.args.JsonRestore())
            if document.keys() == {"meta", "leaves", "sha256"}:
                return document, [], None
            if _digest(document) != document["sha256"]:
                raise ValueError("the checksum of its description does not match")
            leaves = [leaf | {"path": _current_path(leaf["path"])} for leaf in document["leaves"]]
            leaves = [leaf for leaf in leaves if asked is None or leaf["path"] in asked]
            data = [self._read_leaf(step, leaf) for leaf in leaves]
        for leaf, array in zip(leaves, data, strict=True):
            if any(
                _sha256(np.asarray(array[_slices(part)])) != digest for part, digest in leaf["sha256"].items()
            ):
                raise ValueError(f"the checksum of {leaf['path']} does not match")
        return document, leaves, data

    def _read_leaf(self, step: int, leaf: dict) -> np.ndarray:
        # Leaves are read one at a time. If one of several concurrent reads fails, Orbax closes the event loop
        # of the others, and TensorStore prints a traceback for each.
        if 0 in leaf["shape"]:
            return _empty(leaf)
        name = tuple(leaf["name"])
        as_numpy = _nested({name: ocp.RestoreArgs(restore_type=np.ndarray)})
        args = ocp.args.PyTreeRestore(_nested({name: 0}), restore_args=as_numpy, partial_restore=True)
        (array,) = jax.tree.leaves(self._arrays.restore(self._folder(step, "state"), args=args))
        return np.asarray(array)

    def _folder(self, step: int, item: str) -> epath.Path:
        return epath.Path(self.directory) / str(step) / item

    def _check_structure(self, step: int, saved: list[dict], like: PyTree) -> None:
        saved, wanted = (
            [{k: leaf[k] for k in _STRUCTURE} for leaf in side] for side in (saved, _describe(like))
        )
        if saved == wanted:
            return
        saved_leaves, wanted_leaves = ({leaf["path"]: leaf for leaf in side} for side in (saved, wanted))
        paths = [p for p in {**saved_leaves, **wanted_leaves} if saved_leaves.get(p) != wanted_leaves.get(p)]
        there, here = (_brief(side.get(paths[0])) for side in (saved_leaves, wanted_leaves))
        what = f"{paths[0] or 'the state'} is {there} there and {here} here"
        more = f", and {len(paths) - 1} more differ" if len(paths) > 1 else ""
        raise UserError(
            f"checkpoint {step} in {self.directory} holds another state ({what}{more}); "
            "run with the settings it was saved with, or choose another --run-dir"
        )


class Checkpoints(SavedCheckpoints):
    """A folder of checkpoints, which keeps the newest `keep` ones.

    Several processes can save together. Each process writes its shards of arrays that are sharded over
    processes, and the first process writes the arrays that all of them have.

    Example:
        >>> with Checkpoints("runs/demo/checkpoints") as checkpoints:  # doctest: +SKIP
        ...     checkpoints.save(100, (params, opt_state), {"epoch": 1})
        ...     restored = checkpoints.restore_latest((params, opt_state))
    """

    def __init__(self, directory: str | Path, *, keep: int = 2, processes: Processes | None = None):
        """Open the folder, create it if it does not exist, and delete the remains of interrupted saves.

        Args:
            directory: Folder of the checkpoints.
            keep: Number of checkpoints to keep. With 2 or more, there is another one if the newest is
                damaged.
            processes: Processes that save together; by default only this one.

        Raises:
            UserError: The folder cannot be created or opened, or a process does not see it.
        """
        super().__init__(directory, processes=processes)
        together = self._alone if self._processes.count == 1 else ocp.options.MultiprocessingOptions()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            create=False,
            enable_async_checkpointing=False,
            cleanup_tmp_directories=True,
            multiprocessing_options=together,
        )
        handlers = {
            "document": ocp.JsonCheckpointHandler(multiprocessing_options=together),
            "state": ocp.PyTreeCheckpointHandler(multiprocessing_options=together),
        }
        try:
            if self._processes.first:
                self.directory.mkdir(parents=True, exist_ok=True)
            self._processes.agree(None)  # wait until the folder exists
            if not all(seen := self._processes.collect(self.directory.is_dir())):
                raise UserError(
                    f"process {seen.index(False)} does not see {self.directory}: choose a --run-dir in a "
                    "folder that all processes share"
                )
            with _quiet():
                self._manager = ocp.CheckpointManager(self.directory, options=options, item_handlers=handlers)
        except OSError as error:
            raise UserError(
                f"cannot keep checkpoints in {self.directory} ({_reason(error)}); choose another --run-dir"
            ) from error

    def save(self, step: int, state: PyTree, meta: dict) -> None:
        """Save a checkpoint and wait until it is on disk. An older checkpoint of the same step is replaced.

        Args:
            step: Number of training steps that were done.
            state: Pytree of JAX arrays (including typed PRNG keys), NumPy arrays and Python numbers.
            meta: JSON-serializable data that belongs to the state, such as the position in the data.

        Raises:
            TypeError: `meta` is not JSON-serializable, or a leaf of `state` is not an array or a number.
            OSError: The checkpoint cannot be written, for example because the disk is full. Readable
                checkpoints of other steps are kept.
        """
        meta = self._processes.agree(json.loads(json.dumps(meta)))
        leaves = _describe(state)
        data = [_data(leaf) for leaf in jax.tree.leaves(state)]
        parts = self._processes.collect([_own_parts(array, self._processes.first) for array in data])
        for leaf, *of_leaf in zip(leaves, *parts, strict=True):
            leaf["sha256"] = {part: digest for own in of_leaf for part, digest in own.items()}
        document = {"layout": _LAYOUT, "meta": meta, "leaves": leaves}
        digest = document["sha256"] = _digest(document)
        exists = self._processes.agree(step in self._steps())
        if exists and self._intact.get(step) == digest:
            return
        self._check_room(sum(array.nbytes for array in data))
        # Unreadable checkpoints are deleted first, because they would count towards `keep`.
        for old in self._unreadable | ({step} if exists else set()):
            self._delete(old)
        # Orbax accepts neither empty arrays nor an empty tree. The document suffices to restore these.
        arrays = _nested({tuple(leaf["name"]): a for leaf, a in zip(leaves, data, strict=True) if a.size})
        items = {"document": ocp.args.JsonSave(document)}
        if arrays:
            items["state"] = ocp.args.PyTreeSave(arrays)
        with _quiet(), _system_errors():
            self._manager.save(step, args=ocp.args.Composite(**items), force=True)
        self._intact[step] = digest

    def close(self) -> None:
        """Wait for unfinished work and close the folder; call it once, at the end."""
        with _quiet():
            self._manager.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_room(self, nbytes: int) -> None:
        # Checked before writing, because TensorStore prints tracebacks if one of several concurrent writes
        # fails. File systems that cannot report their size report 0.
        disk = shutil.disk_usage(self.directory)
        if self._processes.agree(disk.total > 0 and disk.free < nbytes + _ROOM):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.directory))

    def _delete(self, step: int) -> None:
        with _quiet():
            self._manager.reload()
            self._manager.delete(step)
        self._unreadable.discard(step)
        self._intact.pop(step, None)


# Patterns of names of leaves that older versions wrote, and the current names.
_RENAMED = (
    (r"\.own\b", ".skip_state"),
    (r"\['stack'\]\['layers'\]\[(\d+)\]\['cell'\]", r"['stack']['cells'][\1]"),
    (r"(\['characters'\]\[\d+\])\['forward'\]\['cell'\]", r"\1['rnn']['cells'][0]"),
    (r"(\['characters'\]\[\d+\])\['backward'\]\['cell'\]", r"\1['rnn']['cells'][1]"),
)


# Leaves that older versions wrote and that are no longer used: sums of the accuracies of CRFs in training.
_DROPPED = re.compile(r"\['state'\]\.sums\['(sentence_)?accuracy'\]\.\w+")


def _current_path(path: str) -> str:
    """Return the current path of a leaf from the path in a checkpoint."""
    for pattern, name in _RENAMED:
        path = re.sub(pattern, name, path)
    return path


def _in_order_of(
    like: PyTree, leaves: list[dict], data: list[np.ndarray]
) -> tuple[list[dict], list[np.ndarray]]:
    """Return leaves and their arrays in the order of `like`, which renaming may have changed.

    Leaves that are no longer used are left out, unless `like` contains them.

    Args:
        like: Pytree that is restored.
        leaves: Descriptions of the saved leaves.
        data: Arrays of the saved leaves.
    """
    places = {leaf["path"]: place for place, leaf in enumerate(_describe(like))}
    pairs = [
        (leaf, array)
        for leaf, array in zip(leaves, data, strict=True)
        if leaf["path"] in places or not _DROPPED.fullmatch(leaf["path"])
    ]
    pairs.sort(key=lambda pair: places.get(pair[0]["path"], len(places)))
    return [leaf for leaf, _ in pairs], [array for _, array in pairs]


def _describe(tree: PyTree) -> list[dict]:
    """Return the path, the name in the checkpoint, the shape and the dtype of each leaf.

    Raises:
        TypeError: A leaf is neither an array nor a number.
    """
    described = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not hasattr(leaf, "dtype"):
            if not isinstance(leaf, bool | int | float | complex):
                raise TypeError(f"{jax.tree_util.keystr(path)} is a {type(leaf).__name__}, not an array")
            leaf = np.asarray(leaf)
        described.append(
            {
                "path": jax.tree_util.keystr(path),
                "name": [_file_name(jax.tree_util.keystr((key,), simple=True)) for key in path] or ["state"],
                "shape": list(leaf.shape),
                "dtype": str(leaf.dtype),
            }
        )
    return described


def _file_name(key: str) -> str:
    """Return a key as one part of a path: "/" and "." (with which Orbax joins parts) become %2F and %2E."""
    return quote(key, safe="").replace(".", "%2E") or "%"


def _nested(flat: dict[tuple[str, ...], Any]) -> dict:
    """Return nested dictionaries from values by path."""
    tree: dict = {}
    for (*above, last), value in flat.items():
        folder = tree
        for name in above:
            folder = folder.setdefault(name, {})
        folder[last] = value
    return tree


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _data(leaf: Any) -> np.ndarray | jax.Array:
    """Return the data of a leaf for Orbax, as a NumPy array unless this process has only a part of it."""
    data = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    whole = not isinstance(data, jax.Array) or data.is_fully_addressable or data.is_fully_replicated
    return np.asarray(data) if whole else data


def _empty(leaf: dict) -> np.ndarray:
    # Empty arrays of keys are rebuilt from an empty uint32 array without the axis of the key data.
    key = leaf["dtype"].startswith("key<")
    return np.empty(leaf["shape"], jnp.uint32 if key else jnp.dtype(leaf["dtype"]))


def _own_parts(array: np.ndarray | jax.Array, first: bool) -> dict[str, str]:
    """Return the SHA-256 of each part of an array that this process writes.

    Args:
        array: The array.
        first: Whether this is the first process, which writes NumPy arrays.

    Returns:
        The SHA-256 of each part by its place, such as "0:4,8:16".
    """
    if array.size == 0:
        return {}
    if isinstance(array, np.ndarray):  # all processes have the whole array
        return {_place((slice(None),) * array.ndim, array.shape): _sha256(array)} if first else {}
    shards = [shard for shard in array.addressable_shards if shard.replica_id == 0]
    return {_place(shard.index, array.shape): _sha256(np.asarray(shard.data)) for shard in shards}


def _place(index: tuple[slice, ...], shape: tuple[int, ...]) -> str:
    bounds = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
    return ",".join(f"{start}:{stop}" for start, stop in bounds)


def _slices(place: str) -> tuple[slice, ...]:
    """Invert `_place`: return the slices of a place."""
    return tuple(slice(*map(int, bounds.split(":"))) for bounds in place.split(",") if bounds)


def _sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8)).hexdigest()


def _digest(document: dict) -> str:
    """Return the SHA-256 of a document without its entry `sha256`; it covers those of the arrays."""
    content = {name: part for name, part in document.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _like(data: np.ndarray, like: Any) -> Any:
    """Return the restored data with the type of `like` and, for JAX arrays, on its devices."""
    if isinstance(like, bool | int | float | complex):
        return type(like)(data.item())
    if isinstance(like, np.ndarray | np.generic):
        return np.array(data)
    # An uncommitted array may move to the devices of other operands, but `device_put` with a sharding
    # commits it.
    placed = getattr(like, "committed", True) and getattr(like, "sharding", None) is not None
    if _is_key(like):
        words = jnp.copy(data.reshape(jax.eval_shape(jax.random.key_data, like).shape))
        keys = jax.random.wrap_key_data(words, impl=_key_impl(like))
        return jax.device_put(keys, like.sharding) if placed else keys
    # On a CPU, `device_put` may share the memory of NumPy. The copy makes donation safe.
    return jnp.copy(jax.device_put(data, like.sharding if placed else None))


def _key_impl(like: Any) -> Any:
    # `jax.random.key_impl` accepts arrays and tracers. `eval_shape` makes a tracer of a ShapeDtypeStruct.
    found = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), like)
    return found[0]


def _brief(leaf: dict | None) -> str:
    return f"{leaf['dtype']}[{','.join(map(str, leaf['shape']))}]" if leaf else "absent"


def _reason(error: Exception) -> str:
    """Return the text of an error in one line, cut to 120 characters."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 120 else text[:119] + "…"


def _is_damage(error: Exception) -> bool:
    """Return whether an error is due to a damaged or missing file, not to a failure of the system."""
    number = error.errno if isinstance(error, OSError) else None
    found = re.search(r"os_error_code='(\d+)'", str(error))  # error number in TensorStore's message
    number = int(found[1]) if found else number
    if number is not None:
        return number in _OF_FILES
    return not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error)


@contextlib.contextmanager
def _system_errors() -> Iterator[None]:
    """Convert a `ValueError` of TensorStore whose text contains a system error number to `OSError`."""
    try:
        yield
    except ValueError as error:
        found = re.search(r"os_error_code='(\d+)'", str(error))
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number)) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress log lines and warnings of Orbax, but not errors."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
