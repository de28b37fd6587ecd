"""Checkpoints: saving a training state with Orbax and restoring the newest one that is intact."""

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

_STRUCTURE = ("path", "shape", "dtype")  # what has to agree between a checkpoint and the state asked for
_LAYOUT = "named"  # of the document; what the versions before named arrays wrote has none
# What the system says of a file that is missing, or that another kind of file has taken the place of.
_OF_FILES = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
_ROOM = 2**20  # bytes that a checkpoint may take on disk beyond those of its arrays


class Restored(NamedTuple):
    """What `Checkpoints.restore_latest` found.

    Fields: `step` is the step the state was saved at; `state` has the structure that was asked for; `meta` is
    the dictionary saved with it; `skipped` has one line per newer checkpoint that could not be read; `sha256`
    covers all arrays and the metadata.
    """

    step: int
    state: PyTree
    meta: dict
    skipped: tuple[str, ...]
    sha256: str

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Step and SHA-256, which no other checkpoint of the run has."""
        return {"step": self.step, "sha256": self.sha256}


class SavedCheckpoints:
    """The checkpoints in a folder that is there, to read them: nothing in it is written or cleared.

    Orbax stores the arrays, as nested dictionaries that are named as the state is: opened with Orbax alone,
    `<step>/state` reads `{"params": {"kernel": array, ...}, ...}`, items of tuples being named "0", "1", ...;
    typed PRNG keys are their words, and empty arrays are left out. On top of it, a SHA-256 of every array
    tells an intact checkpoint from one that was truncated, altered or only half written: Orbax reads some of
    these without complaint (a missing chunk reads as zeros).

    Several processes read together, in one folder that all of them see: each reads whole arrays; by how many
    processes they were written does not matter.

    Example:
        >>> SavedCheckpoints("runs/demo/checkpoints").restore_latest((params, opt_state))  # doctest: +SKIP
    """

    def __init__(self, directory: str | Path, *, processes: Processes | None = None):
        """Remembers the folder, and whose it is.

        Arguments:
            directory: the folder.
            processes: those that read together; by default this one reads for itself.
        """
        self.directory = Path(directory).absolute()
        self._unreadable: set[int] = set()
        self._intact: dict[int, str] = {}  # step: digest, of those that this object saved or restored
        self._processes = processes or Processes()
        # Orbax would otherwise wait for all processes that JAX knows. To read, no process waits for another.
        self._alone = ocp.options.MultiprocessingOptions(
            primary_host=jax.process_index(), active_processes={jax.process_index()}
        )
        self._document = ocp.JsonCheckpointHandler(multiprocessing_options=self._alone)
        self._arrays = ocp.PyTreeCheckpointHandler(multiprocessing_options=self._alone)

    def restore_latest(self, like: PyTree, *, partial: bool = False) -> Restored | None:
        """Restores the newest checkpoint that is intact, bit by bit as it was saved.

        Arguments:
            like: a pytree of the saved structure, of arrays or `jax.ShapeDtypeStruct`s. Where a leaf is a
                committed JAX array, or a structure with a sharding, the restored array is placed likewise.
            partial: `like` holds some of what was saved, and the rest is neither read nor verified.

        Returns:
            The step, the state, the metadata and a line for each newer checkpoint that had to be skipped;
            None if nothing has been saved yet. JAX arrays are copies that JAX owns, so they can be donated;
            leaves that are NumPy arrays or Python numbers in `like` come back as such.

        Raises:
            UserError: there are checkpoints but none can be read; the system failed to read one (too little
                memory, a disk that does not answer), which says nothing about the file; or the newest intact
                one holds a state of another structure, shape or dtype, or was written by a version that
                numbered the arrays.
        """
        asked = {leaf["path"] for leaf in _describe(like)} if partial else None
        failures: list[tuple[int, str]] = []
        for step in self._processes.agree(sorted(self._steps(), reverse=True)):
            reason, passing = None, False
            try:
                document, leaves, data = self._read(step, asked)
            except Exception as error:  # whatever a damaged file provokes in Orbax, TensorStore or JSON
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
        """Return step and SHA-256 of the newest checkpoint, to be held against `Restored.fingerprint`."""
        step = self.latest_step
        if step is None:
            return None
        with _quiet():
            document = self._document.restore(self._folder(step, "document"), args=ocp.args.JsonRestore())
        return {"step": step, "sha256": document["sha256"]}

    @property
    def latest_step(self) -> int | None:
        """The step of the newest checkpoint; None where there is none."""
        return max(self._steps(), default=None)

    def _steps(self) -> set[int]:
        """The steps that have a folder, whatever Orbax thinks of it: only what is seen can be reported."""
        return {int(p.name) for p in self.directory.iterdir() if p.name.isdecimal() and p.is_dir()}

    def _read(self, step: int, asked: set[str] | None) -> tuple[dict, list[dict], list[np.ndarray] | None]:
        """The document of a checkpoint, and the leaves that are asked for with their arrays, verified.

        None asks for all of them. Raises whatever is wrong. Of a checkpoint of the older layout there are no
        arrays.
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
        # One at a time: when one of several concurrent reads fails, Orbax closes its event loop under the
        # others, and TensorStore prints a traceback for each.
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
    """A folder of checkpoints, of which the newest `keep` are kept.

    Several processes save together, too: each writes its own parts of arrays that are divided among them, and
    the first one those that all of them have.

    Example:
        >>> with Checkpoints("runs/demo/checkpoints") as checkpoints:  # doctest: +SKIP
        ...     checkpoints.save(100, (params, opt_state), {"epoch": 1})
        ...     restored = checkpoints.restore_latest((params, opt_state))
    """

    def __init__(self, directory: str | Path, *, keep: int = 2, processes: Processes | None = None):
        """Opens the folder, creates it if it is not there, and clears what interrupted saves left in it.

        Arguments:
            directory: the folder.
            keep: how many checkpoints to keep. With 2 or more, one stays when the newest turns out corrupt.
            processes: those that save together; by default this one saves for itself.

        Raises:
            UserError: the folder cannot be created or opened, or a process does not see it.
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
            self._processes.agree(None)  # made
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
        """Saves a checkpoint; it is on disk when this returns. An older one of the same step is replaced.

        Arguments:
            step: the number of training steps done.
            state: any pytree of JAX arrays (typed PRNG keys too), NumPy arrays and Python numbers.
            meta: what belongs to the state and fits into JSON, such as the position in the data.

        Raises:
            TypeError: `meta` does not fit into JSON, or a leaf of `state` is not an array or a number.
            OSError: it cannot be written, for instance because the disk is full; those saved before stay.
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
        # Checkpoints that could not be read go first: they would take the place of good ones in `keep`.
        for old in self._unreadable | ({step} if exists else set()):
            self._delete(old)
        # Orbax takes neither empty arrays nor an empty tree; the description above is all they need.
        arrays = _nested({tuple(leaf["name"]): a for leaf, a in zip(leaves, data, strict=True) if a.size})
        items = {"document": ocp.args.JsonSave(document)}
        if arrays:
            items["state"] = ocp.args.PyTreeSave(arrays)
        with _quiet(), _system_errors():
            self._manager.save(step, args=ocp.args.Composite(**items), force=True)
        self._intact[step] = digest

    def close(self) -> None:
        """Waits and lets go of the folder; call it once, at the end."""
        with _quiet():
            self._manager.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_room(self, nbytes: int) -> None:
        # Asked beforehand: when one of several concurrent writes fails, TensorStore prints tracebacks. A file
        # system that does not know its size says 0.
        disk = shutil.disk_usage(self.directory)
        if self._processes.agree(disk.total > 0 and disk.free < nbytes + _ROOM):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.directory))

    def _delete(self, step: int) -> None:
        with _quiet():
            self._manager.reload()
            self._manager.delete(step)
        self._unreadable.discard(step)
        self._intact.pop(step, None)


# Names of leaves in checkpoints that earlier versions wrote, and what they are called now.
_RENAMED = (
    (r"\.own\b", ".skip_state"),
    (r"\['stack'\]\['layers'\]\[(\d+)\]\['cell'\]", r"['stack']['cells'][\1]"),
    (r"(\['characters'\]\[\d+\])\['forward'\]\['cell'\]", r"\1['rnn']['cells'][0]"),
    (r"(\['characters'\]\[\d+\])\['backward'\]\['cell'\]", r"\1['rnn']['cells'][1]"),
)


# Leaves that earlier versions wrote and nothing needs any more: what training of a CRF counted.
_DROPPED = re.compile(r"\['state'\]\.sums\['(sentence_)?accuracy'\]\.\w+")


def _current_path(path: str) -> str:
    """Return the path under which a leaf is known today."""
    for pattern, name in _RENAMED:
        path = re.sub(pattern, name, path)
    return path


def _in_order_of(
    like: PyTree, leaves: list[dict], data: list[np.ndarray]
) -> tuple[list[dict], list[np.ndarray]]:
    """Return leaves and their arrays in the order of `like`, where a renamed leaf changed its place.

    Leaves that nothing needs any more are left out, unless `like` has them.
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
    """Path, name in the checkpoint, shape and dtype of each leaf."""
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
    """A key as one part of a path: "/", and "." with which Orbax joins them, become %2F, %2E."""
    return quote(key, safe="").replace(".", "%2E") or "%"


def _nested(flat: dict[tuple[str, ...], Any]) -> dict:
    """Nested dictionaries, from values under their paths."""
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
    """What Orbax is to write: NumPy, unless this process has a part of the array only."""
    data = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    whole = not isinstance(data, jax.Array) or data.is_fully_addressable or data.is_fully_replicated
    return np.asarray(data) if whole else data


def _empty(leaf: dict) -> np.ndarray:
    # The data of an empty array of keys is an empty uint32 array; its last axis is not needed to rebuild it.
    key = leaf["dtype"].startswith("key<")
    return np.empty(leaf["shape"], jnp.uint32 if key else jnp.dtype(leaf["dtype"]))


def _own_parts(array: np.ndarray | jax.Array, first: bool) -> dict[str, str]:
    """The SHA-256 of each part of an array that this process writes, under its place as in "0:4,8:16"."""
    if array.size == 0:
        return {}
    if isinstance(array, np.ndarray):  # all processes have it
        return {_place((slice(None),) * array.ndim, array.shape): _sha256(array)} if first else {}
    shards = [shard for shard in array.addressable_shards if shard.replica_id == 0]
    return {_place(shard.index, array.shape): _sha256(np.asarray(shard.data)) for shard in shards}


def _place(index: tuple[slice, ...], shape: tuple[int, ...]) -> str:
    bounds = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
    return ",".join(f"{start}:{stop}" for start, stop in bounds)


def _slices(place: str) -> tuple[slice, ...]:
    """The inverse of `_place`."""
    return tuple(slice(*map(int, bounds.split(":"))) for bounds in place.split(",") if bounds)


def _sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8)).hexdigest()


def _digest(document: dict) -> str:
    """The SHA-256 of a document, which holds those of the arrays; its own left out."""
    content = {name: part for name, part in document.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _like(data: np.ndarray, like: Any) -> Any:
    """The restored data as the kind of leaf that `like` is, where `like` is."""
    if isinstance(like, bool | int | float | complex):
        return type(like)(data.item())
    if isinstance(like, np.ndarray | np.generic):
        return np.array(data)
    # An uncommitted array follows the arrays it meets; placing it explicitly would pin it.
    placed = getattr(like, "committed", True) and getattr(like, "sharding", None) is not None
    if _is_key(like):
        words = jnp.copy(data.reshape(jax.eval_shape(jax.random.key_data, like).shape))
        keys = jax.random.wrap_key_data(words, impl=_key_impl(like))
        return jax.device_put(keys, like.sharding) if placed else keys
    # On a CPU device_put may share NumPy's memory; the copy is what makes donation safe.
    return jnp.copy(jax.device_put(data, like.sharding if placed else None))


def _key_impl(like: Any) -> Any:
    # `jax.random.key_impl` takes arrays and tracers; this way it takes a ShapeDtypeStruct too.
    found = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), like)
    return found[0]


def _brief(leaf: dict | None) -> str:
    return f"{leaf['dtype']}[{','.join(map(str, leaf['shape']))}]" if leaf else "absent"


def _reason(error: Exception) -> str:
    """The first line of an error's text, cut to a length that fits into a one-line message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 120 else text[:119] + "…"


def _is_damage(error: Exception) -> bool:
    """Return whether an error tells of a damaged or missing file, not of a system that failed to read it."""
    number = error.errno if isinstance(error, OSError) else None
    found = re.search(r"os_error_code='(\d+)'", str(error))  # what the system told TensorStore
    number = int(found[1]) if found else number
    if number is not None:
        return number in _OF_FILES
    return not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error)


@contextlib.contextmanager
def _system_errors() -> Iterator[None]:
    """Raises as an `OSError` what the system told TensorStore, which says it in a ValueError's text."""
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
    """Keeps Orbax's log lines and warnings away from the training output; errors are still raised."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
