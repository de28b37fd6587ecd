"""Save training states with Orbax, and restore the newest intact checkpoint."""

import contextlib
import errno
import functools
import hashlib
import json
import logging
import math
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
from dynskip_jax.training.files import check_regular, read_bytes

_STRUCTURE = ("path", "shape", "dtype")  # what must be equal in a checkpoint and the requested state
# Error numbers for a file that is missing or is of another kind than expected.
_OF_FILES = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
_ROOM = 2**20  # allowance for the bytes of a checkpoint in addition to its arrays


class Restored(NamedTuple):
    """Result of `Checkpoints.restore_latest`.

    Attributes:
        step: Step at which the state was saved.
        state: The state, with the requested structure.
        meta: Dictionary that was saved with the state.
        skipped: One line for each newer checkpoint that could not be read.
        fingerprint: Step and SHA-256 (of all arrays and the metadata), which identify the checkpoint.
    """

    step: int
    state: PyTree
    meta: dict
    skipped: tuple[str, ...]
    fingerprint: dict[str, Any]


class Checkpoints:
    """The checkpoints in a folder, of which the newest `keep` are kept.

    Orbax stores the arrays as nested dictionaries with the names of the state. Without this class, Orbax
    reads `<step>/state` as `{"params": {"kernel": array, ...}, ...}`. Items of tuples have the names "0", "1"
    and so on, typed PRNG keys are stored as their uint32 data, and empty arrays are left out.

    A SHA-256 of every array detects checkpoints that were truncated, altered or only partly written. Orbax
    reads some of these without an error (a missing chunk reads as zeros).

    Reading changes nothing in the folder. With several processes, the first one writes, and all of them read
    from the folder, which they share.

    Example:
        >>> checkpoints = Checkpoints("runs/demo/checkpoints")
        >>> checkpoints.save(100, (params, opt_state), {"epoch": 1})  # doctest: +SKIP
        >>> restored = checkpoints.restore_latest((params, opt_state))  # doctest: +SKIP
    """

    def __init__(self, directory: str | Path, *, keep: int = 2, processes: Processes | None = None):
        self.directory = Path(directory).absolute()
        self._keep, self._processes = keep, processes or Processes()
        self._unreadable: set[int] = set()
        # Without these options, Orbax waits for all JAX processes.
        self._alone = ocp.options.MultiprocessingOptions(
            primary_host=(here := jax.process_index()),
            active_processes={here},
            barrier_sync_key_prefix=str(here),
        )
        self._document = ocp.JsonCheckpointHandler(multiprocessing_options=self._alone)
        self._arrays = ocp.PyTreeCheckpointHandler(multiprocessing_options=self._alone)

    def restore_latest(self, like: PyTree, *, partial: bool = False) -> Restored | None:
        """Restore the newest intact checkpoint; the restored values are bitwise equal to the saved ones.

        A system that cannot read a checkpoint now (too little memory, a disk that does not respond) is an
        error, because the file may be intact. Damaged checkpoints are skipped, unless all are damaged.

        Args:
            like: Pytree with the saved structure, of arrays or `jax.ShapeDtypeStruct`s. A restored array has
                the sharding of a committed array or a `ShapeDtypeStruct` with a sharding. NumPy arrays and
                Python numbers keep their type.
            partial: Whether `like` contains only a part of the saved state. The rest is then neither read nor
                verified.

        Returns:
            The checkpoint, whose JAX arrays can be donated; None if nothing has been saved yet.
        """
        self._check_shared()
        wanted = _described(like)
        failures: list[tuple[int, str]] = []
        for step in self._processes.agree(sorted(self._steps(), reverse=True)):
            reason, passing, difference, arrays = None, False, None, []
            try:
                check_regular(self.directory / str(step))
                document = self._read_document(step)
                difference = _difference(document["leaves"], wanted, partial=partial)
                if difference is None:
                    arrays = self._read(step, document, like)
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
            if difference is not None:
                raise UserError(
                    f"checkpoint {step} in {self.directory} holds another state ({difference}); run with the "
                    "settings it was saved with, or choose another --run-dir"
                )
            state = jax.tree.unflatten(jax.tree.structure(like), map(_like, arrays, jax.tree.leaves(like)))
            skipped = tuple(
                f"checkpoint {bad} in {self.directory} is unreadable ({reason})" for bad, reason in failures
            )
            fingerprint = {"step": step, "sha256": document["sha256"]}
            return Restored(step, state, document["meta"], skipped, fingerprint)
        if failures:
            newest, reason = failures[0]
            raise UserError(
                f"none of the {len(failures)} checkpoints in {self.directory} is readable "
                f"(checkpoint {newest}: {reason}); restore one, or choose another --run-dir"
            )
        return None

    def fingerprint(self) -> dict[str, Any] | None:
        """Return the `Restored.fingerprint` of the newest checkpoint, without reading its arrays."""
        step = self.latest_step
        return None if step is None else {"step": step, "sha256": self._read_document(step)["sha256"]}

    @property
    def latest_step(self) -> int | None:
        """Step of the newest checkpoint; None if there is none."""
        return max(self._steps(), default=None)

    def save(self, step: int, state: PyTree, meta: dict) -> None:
        """Save a checkpoint, in place of an older one of the same step, and wait until it is on disk.

        Args:
            step: Number of training steps that were done.
            state: Pytree of arrays (including typed PRNG keys) that every process has as a whole, and Python
                numbers.
            meta: JSON-serializable data that belongs to the state, such as the position in the data.

        Raises:
            TypeError: `meta` is not JSON-serializable, or a leaf of `state` is not an array or a number.
            OSError: The checkpoint cannot be written, for example because the disk is full. Readable
                checkpoints of other steps are kept.
        """
        document = {"meta": json.loads(json.dumps(meta)), "leaves": _described(state)}
        arrays = [np.asarray(_raw(leaf)) for leaf in jax.tree.leaves(state)]
        for leaf, array in zip(document["leaves"], arrays, strict=True):
            leaf["sha256"] = _sha256(array)
        document["sha256"] = _digest(document)
        problem = None
        if self._processes.first:
            try:
                self._write(step, document, _nested(_names(state), arrays))
            except OSError as error:
                problem = error
        if (number := self._processes.agree(problem and (problem.errno or errno.EIO))) is not None:
            raise problem or OSError(number, os.strerror(number), str(self.directory))

    def _write(self, step: int, document: dict, arrays: dict) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        # Checked before writing, because TensorStore prints tracebacks if one of several concurrent writes
        # fails. File systems that cannot report their size report 0.
        disk = shutil.disk_usage(self.directory)
        if disk.total > 0 and disk.free < sum(array.nbytes for array in jax.tree.leaves(arrays)) + _ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.directory))
        for remains in self.directory.glob("*.orbax-checkpoint-tmp*"):
            shutil.rmtree(remains)
        # Unreadable checkpoints are deleted first, because they would count towards `keep`.
        for old in (self._unreadable | {step}) & self._steps():
            shutil.rmtree(self.directory / str(old))
        self._unreadable.clear()
        items = {"document": ocp.args.JsonSave(document)}
        if arrays:
            items["state"] = ocp.args.PyTreeSave(arrays)
        options = ocp.CompositeOptions(multiprocessing_options=self._alone)
        handler = ocp.CompositeCheckpointHandler(
            composite_options=options, document=self._document, state=self._arrays
        )
        with _quiet(), _system_errors():
            orbax = ocp.Checkpointer(handler, multiprocessing_options=self._alone)
            orbax.save(self.directory / str(step), args=ocp.args.Composite(**items))
        for old in sorted(self._steps())[: -self._keep]:
            shutil.rmtree(self.directory / str(old))

    def _check_shared(self) -> None:
        seen = self._processes.collect(self.directory.is_dir())
        if seen[0] and not all(seen):
            raise UserError(
                f"process {seen.index(False)} does not see {self.directory}: choose a --run-dir in a "
                "folder that all processes share"
            )

    def _steps(self) -> set[int]:
        """Return all steps that have a folder, even if Orbax would ignore it, so that damage is reported."""
        if not self.directory.is_dir():
            return set()
        return {int(p.name) for p in self.directory.iterdir() if p.name.isdecimal() and p.is_dir()}

    def _read_document(self, step: int) -> dict:
        document = json.loads(read_bytes(self.directory / str(step) / "document" / "metadata"))
        if _digest(document) != document["sha256"]:
            raise ValueError("the checksum of its description does not match")
        return document

    def _read(self, step: int, document: dict, like: PyTree) -> list[np.ndarray]:
        """Return the verified array of each leaf of `like`; any error in the files is raised as it is."""
        digests = {leaf["path"]: leaf["sha256"] for leaf in document["leaves"]}
        folder = epath.Path(self.directory) / str(step) / "state"
        leaves = list(zip(_described(like), _names(like), map(_spec, jax.tree.leaves(like)), strict=True))
        arrays = []
        with _quiet():
            # Sizes are compared before anything is read, because a small file can claim to be a large array.
            stored = self._arrays.metadata(folder).tree if any(spec.size for *_, spec in leaves) else {}
            for leaf, names, spec in leaves:
                if spec.size and not _is_stored_as(functools.reduce(dict.__getitem__, names, stored), spec):
                    raise ValueError(f"{leaf['path']} is stored in another size")
            for leaf, names, spec in leaves:
                array = self._read_leaf(folder, names) if spec.size else np.empty(spec.shape, spec.dtype)
                if _sha256(array) != digests[leaf["path"]]:
                    raise ValueError(f"the checksum of {leaf['path']} does not match")
                arrays.append(array)
        return arrays

    def _read_leaf(self, folder: epath.Path, names: tuple[str, ...]) -> np.ndarray:
        # Leaves are read one at a time. If one of several concurrent reads fails, Orbax closes the event loop
        # of the others, and TensorStore prints a traceback for each.
        as_numpy = _nested([names], [ocp.RestoreArgs(restore_type=np.ndarray)])
        args = ocp.args.PyTreeRestore(_nested([names], [0]), restore_args=as_numpy, partial_restore=True)
        (array,) = jax.tree.leaves(self._arrays.restore(folder, args=args))
        return np.asarray(array)


def _described(tree: PyTree) -> list[dict]:
    """Return the path, the shape and the dtype of each leaf."""
    described = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not hasattr(leaf, "dtype"):
            if not isinstance(leaf, bool | int | float | complex):
                raise TypeError(f"{jax.tree_util.keystr(path)} is a {type(leaf).__name__}, not an array")
            leaf = np.asarray(leaf)
        values = (jax.tree_util.keystr(path), list(leaf.shape), str(leaf.dtype))
        described.append(dict(zip(_STRUCTURE, values, strict=True)))
    return described


def _difference(saved: list[dict], wanted: list[dict], *, partial: bool) -> str | None:
    """Return a text on how the saved leaves differ from the wanted ones; None if they are equal."""
    there, here = ({leaf["path"]: [leaf[k] for k in _STRUCTURE] for leaf in side} for side in (saved, wanted))
    paths = [path for path in (here if partial else {**there, **here}) if there.get(path) != here.get(path)]
    if not paths:
        return None
    said, found = (
        "absent" if leaf is None else f"{leaf[2]}[{','.join(map(str, leaf[1]))}]"
        for leaf in (there.get(paths[0]), here.get(paths[0]))
    )
    more = f", and {len(paths) - 1} more differ" if len(paths) > 1 else ""
    return f"{paths[0] or 'the state'} is {said} there and {found} here{more}"


def _names(tree: PyTree) -> list[tuple[str, ...]]:
    """Return the names of each leaf for Orbax, with %2F and %2E for "/" and ".", with which it joins them."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    keys = ([jax.tree_util.keystr((key,), simple=True) for key in path] for path in paths)
    return [tuple(quote(k, safe="").replace(".", "%2E") or "%" for k in path) or ("state",) for path in keys]


def _nested(names: list[tuple[str, ...]], values: list[Any]) -> dict:
    """Return nested dictionaries from values by name, without empty arrays, which Orbax does not accept."""
    tree: dict = {}
    for (*above, last), value in zip(names, values, strict=True):
        folder = tree
        for name in above if np.size(value) else ():
            folder = folder.setdefault(name, {})
        if np.size(value):
            folder[last] = value
    return tree


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    """Return the array of numbers that is stored for a leaf."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _spec(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return shape and dtype of `_raw`, also of a `ShapeDtypeStruct`."""
    if _is_key(leaf):
        return jax.eval_shape(jax.random.key_data, leaf)
    return jax.ShapeDtypeStruct(np.shape(leaf), getattr(leaf, "dtype", None) or np.asarray(leaf).dtype)


def _is_stored_as(stored: Any, spec: jax.ShapeDtypeStruct) -> bool:
    """Return whether Orbax's metadata of an array claims this shape, dtype and no larger chunks."""
    chunk = getattr(stored.storage, "chunk_shape", None) or ()
    same = tuple(stored.shape) == spec.shape and np.dtype(stored.dtype) == spec.dtype
    return same and math.prod(chunk) <= spec.size


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
        found = []  # `key_impl` accepts arrays and tracers, but no `ShapeDtypeStruct`
        jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), like)
        keys = jax.random.wrap_key_data(jnp.copy(data), impl=found[0])
        return jax.device_put(keys, like.sharding) if placed else keys
    # On a CPU, `device_put` may share the memory of NumPy. The copy makes donation safe.
    return jnp.copy(jax.device_put(data, like.sharding if placed else None))


def _reason(error: Exception) -> str:
    """Return the text of an error in one line, cut to 120 characters."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 120 else text[:119] + "…"


def _number(error: Exception) -> int | None:
    """Return the number of a system error, also of one in the text of TensorStore's."""
    found = re.search(r"os_error_code='(\d+)'", str(error))
    return int(found[1]) if found else getattr(error, "errno", None)


def _is_damage(error: Exception) -> bool:
    """Return whether an error is due to a damaged or missing file, not to a failure of the system."""
    if (number := _number(error)) is not None:
        return number in _OF_FILES
    return not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error)


@contextlib.contextmanager
def _system_errors() -> Iterator[None]:
    """Convert a `ValueError` of TensorStore whose text contains a system error number to `OSError`."""
    try:
        yield
    except ValueError as error:
        if (number := _number(error)) is None:
            raise
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
