"""Save training states with Orbax, and restore the newest intact checkpoint."""

import errno
import hashlib
import json
import logging
import math
import os
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from jax.tree_util import keystr
from jaxtyping import PyTree

from dynskip_jax.devices.processes import Processes
from dynskip_jax.errors import UserError
from dynskip_jax.training.files import check_regular, is_of, parse_json, read_bytes, without_dots

# Error numbers for a file that is missing or is of another kind than expected.
_OF_FILES = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
_KEEP = 2  # number of checkpoints in a folder
_ROOM = 2**20  # allowance for the bytes of a checkpoint in addition to its arrays
_STEP = re.compile(r"0|[1-9][0-9]{0,17}")  # name of a checkpoint's folder
_MOST_VALUES = 2_000_000  # of a description
_DOCUMENT = {
    "meta": dict,
    "leaves": [{"path": str, "shape": [int], "dtype": str, "sha256": str}],
    "sha256": str,
}


class Restored(NamedTuple):
    """Result of `Checkpoints.restore_latest`."""

    state: PyTree  # with the requested structure
    meta: dict  # what was saved with the state
    fingerprint: dict[str, Any]  # step and SHA-256 of all arrays and the metadata
    skipped: tuple[str, ...]  # one line for each newer checkpoint that could not be read


class _OtherState(UserError):
    """A checkpoint is intact, but holds other arrays than those that are wanted."""


class Checkpoints:
    """The newest two checkpoints of a run; all processes share the folder, the first one writes.

    Orbax alone reads `<step>/state` as nested dictionaries and lists with the names of the state;
    typed PRNG keys are stored as their uint32 data, and empty arrays as None. A SHA-256 of every
    array detects damage that Orbax reads without an error (a missing chunk reads as zeros). Reading
    changes nothing in the folder.
    """

    def __init__(self, directory: str | Path, *, processes: Processes | None = None):
        self.directory = without_dots(Path(directory).absolute())
        self._processes = processes or Processes()
        self._unreadable: set[int] = set()
        # Without these options, Orbax waits for all JAX processes.
        here = jax.process_index()
        self._alone = ocp.options.MultiprocessingOptions(
            primary_host=here, active_processes={here}, barrier_sync_key_prefix=str(here)
        )

    def restore_latest(self, like: PyTree, *, partial: bool = False) -> Restored | None:
        """Restore the newest intact checkpoint, bit for bit; None if nothing has been saved yet.

        A system that cannot read a checkpoint now (too little memory, a disk that does not respond)
        is an error, because the file may be intact. Damaged checkpoints are skipped, unless all are
        damaged.

        `like` contains JAX arrays, or `jax.ShapeDtypeStruct`s if there are no PRNG keys, in the
        saved structure. With `partial` it is only a part of the saved state, and the rest is not
        read.
        """
        seen = self._processes.collect(self.directory.is_dir())
        if seen[0] and not all(seen):
            raise UserError(
                f"process {seen.index(False)} does not see {self.directory}: "
                "choose a --run-dir in a folder that all processes share"
            )
        skipped = []
        for step in self._processes.agree(sorted(self._steps(), reverse=True)):
            restored = ()
            reason = None
            is_passing = False
            try:
                restored = self._read(step, like, partial=partial)
            except _OtherState:
                raise
            # A damaged file can cause any error in Orbax, TensorStore or JSON.
            except Exception as error:
                reason = " ".join(str(error).split())[:120] or type(error).__name__
                is_passing = not _is_damage(error)
            outcomes = self._processes.collect((reason, is_passing))
            reason = next((reason for reason, _ in outcomes if reason is not None), None)
            if reason is None:
                return Restored(*restored, tuple(skipped))
            if any(is_passing for _, is_passing in outcomes):
                raise UserError(
                    f"checkpoint {step} in {self.directory} cannot be read now ({reason}): "
                    "nothing was changed; mend that, and run the same command again"
                )
            self._unreadable.add(step)
            skipped.append(f"checkpoint {step} in {self.directory} is unreadable ({reason})")
        if skipped:
            raise UserError(
                f"none of the {len(skipped)} checkpoints is readable ({skipped[0]}); "
                "restore one, or choose another --run-dir"
            )
        return None

    def fingerprint(self) -> dict[str, Any] | None:
        """Return the newest fingerprint, None if there is none; SHA-256 is empty if damaged."""
        if not (steps := self._steps()):
            return None
        try:
            sha256 = self._read_document(max(steps))["sha256"]
        except Exception as error:
            if not _is_damage(error):
                raise
            sha256 = ""
        return {"step": max(steps), "sha256": sha256}

    def save(self, step: int, state: PyTree, meta: dict) -> dict[str, Any]:
        """Save a checkpoint in place of one of the same step, and wait until it is on disk.

        Every process has the whole `state`, arrays and typed PRNG keys; `meta` is
        JSON-serializable. If it cannot be written, readable checkpoints of other steps are kept.
        Return its fingerprint.
        """
        document = {"meta": json.loads(json.dumps(meta)), "leaves": _described(state)}
        arrays = jax.tree.map(lambda leaf: np.asarray(_raw(leaf)), state)
        for leaf, array in zip(document["leaves"], jax.tree.leaves(arrays), strict=True):
            leaf["sha256"] = _sha256(array)
        document["sha256"] = _digest(document)
        number = None
        if self._processes.first:
            try:
                # Orbax does not accept empty arrays.
                stored = jax.tree.map(lambda each: each if each.size else None, arrays)
                self._write(step, document, stored)
            # TensorStore's ValueErrors contain the system's number.
            except (OSError, ValueError) as error:
                if (number := _number(error)) is None:
                    raise
        if (number := self._processes.agree(number)) is not None:
            raise OSError(number, os.strerror(number), str(self.directory))
        return {"step": step, "sha256": document["sha256"]}

    def _write(self, step: int, document: dict, arrays: PyTree) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        # Checked before writing, because TensorStore prints tracebacks if one of several concurrent
        # writes fails. File systems that cannot report their size report 0.
        disk = shutil.disk_usage(self.directory)
        if (
            disk.total > 0
            and disk.free < sum(array.nbytes for array in jax.tree.leaves(arrays)) + _ROOM
        ):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for remains in self.directory.glob("*.orbax-checkpoint-tmp*"):
            shutil.rmtree(remains)
        # Unreadable checkpoints are deleted first, because they would count towards `_KEEP`.
        for old in (self._unreadable | {step}) & self._steps():
            shutil.rmtree(self.directory / str(old))
        self._unreadable.clear()
        items = {"document": ocp.args.JsonSave(document)}
        if jax.tree.leaves(arrays):
            items["state"] = ocp.args.PyTreeSave(arrays)
        handler = ocp.CompositeCheckpointHandler(
            composite_options=ocp.CompositeOptions(multiprocessing_options=self._alone),
            document=ocp.JsonCheckpointHandler(multiprocessing_options=self._alone),
            state=ocp.PyTreeCheckpointHandler(use_zarr3=False, multiprocessing_options=self._alone),
        )
        orbax = ocp.Checkpointer(handler, multiprocessing_options=self._alone)
        logger = logging.getLogger("absl")
        level = logger.level
        # Orbax would log the traceback of an error that it also raises.
        logger.setLevel(logging.CRITICAL)
        try:
            orbax.save(self.directory / str(step), args=ocp.args.Composite(**items))
        finally:
            logger.setLevel(level)
        for old in sorted(self._steps())[:-_KEEP]:
            shutil.rmtree(self.directory / str(old))

    def _steps(self) -> set[int]:
        """Return all steps that have a folder, also those that Orbax would ignore as damaged."""
        folders = (path for path in self.directory.glob("*") if path.is_dir())
        names = [path.name for path in folders if path.name.isdecimal()]
        for name in names:
            # Python also reads leading zeros and the digits of other scripts.
            if not _STEP.fullmatch(name):
                problem = "is not named as a checkpoint (a step, without leading zeros)"
                raise UserError(f"{self.directory / name} {problem}: remove it, or rename it")
        return set(map(int, names))

    def _read_document(self, step: int) -> dict:
        path = self.directory / str(step) / "document" / "metadata"
        document = parse_json(read_bytes(path), _MOST_VALUES)
        if not is_of(_DOCUMENT, document):
            raise ValueError("its description is not as this version writes it")
        if _digest(document) != document["sha256"]:
            raise ValueError("the checksum of its description does not match")
        return document

    def _read(self, step: int, like: PyTree, *, partial: bool) -> tuple[PyTree, dict, dict]:
        """Return the verified state, the metadata and the fingerprint of a checkpoint."""
        folder = self.directory / str(step)
        check_regular(folder)
        document = self._read_document(step)
        difference = _difference(document["leaves"], _described(like), partial=partial)
        if difference is not None:
            problem = f"holds other arrays than the model ({difference})"
            raise _OtherState(
                f"checkpoint {step} in {self.directory} {problem}: "
                "use the settings and the version it was saved with, or choose another --run-dir"
            )
        digests = {leaf["path"]: leaf["sha256"] for leaf in document["leaves"]}
        specs = jax.eval_shape(lambda tree: jax.tree.map(_raw, tree), like)
        arrays = []
        for path, spec in jax.tree_util.tree_leaves_with_path(specs):
            array = np.empty(spec.shape, spec.dtype)
            if spec.size:
                array = _read_array(
                    folder / "state", keystr(path, simple=True, separator="."), spec
                )
            if _sha256(array) != digests[keystr(path)]:
                raise ValueError(f"the checksum of {keystr(path)} does not match")
            arrays.append(array)
        state = jax.tree.map(_restored, jax.tree.unflatten(jax.tree.structure(like), arrays), like)
        return state, document["meta"], {"step": step, "sha256": document["sha256"]}


def _read_array(folder: Path, name: str, spec: jax.ShapeDtypeStruct) -> np.ndarray:
    """Return an array of Orbax after a look at its size, which a small file can claim to be large.

    Orbax reads arrays concurrently. If one of them cannot be read, the others print tracebacks.
    """
    files = {
        "driver": "ocdbt",
        "base": {"driver": "file", "path": f"{folder}/"},
        "path": f"{name}/",
    }
    stored = tensorstore.open({"driver": "zarr", "kvstore": files}, open=True, read=True).result()
    chunk = stored.chunk_layout.read_chunk.shape or ()
    is_as_wanted = stored.shape == spec.shape and stored.dtype.numpy_dtype == spec.dtype
    if not is_as_wanted or math.prod(chunk) > spec.size:
        raise ValueError(f"{name} is stored in another size")
    return stored.read().result()


def _described(tree: PyTree) -> list[dict]:
    """Return the path, the shape and the dtype of each leaf."""
    return [
        {"path": keystr(path), "shape": list(leaf.shape), "dtype": str(leaf.dtype)}
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _forms(leaves: list[dict]) -> dict[str, str]:
    """Return the type and shape of each leaf, such as `float32[3, 4]`, by its path."""
    return {leaf["path"]: f"{leaf['dtype']}{leaf['shape']}" for leaf in leaves}


def _difference(saved: list[dict], wanted: list[dict], *, partial: bool) -> str | None:
    """Return a text on how the saved leaves differ from the wanted ones; None if they are equal.

    With `partial`, the saved leaves below other entries than those of the wanted tree do not count.
    """
    there = _forms(saved)
    here = _forms(wanted)
    if partial:
        entries = {_first_entry(path) for path in here}
        there = {path: form for path, form in there.items() if _first_entry(path) in entries}
    differences = {
        "too many": [f"{path} {form}" for path, form in there.items() if path not in here],
        "missing": [f"{path} {form}" for path, form in here.items() if path not in there],
        "different": [
            f"{path or 'the state'} is {there[path]} there and {form} here"
            for path, form in here.items()
            if there.get(path, form) != form
        ],
    }
    texts = []
    for name, found in differences.items():
        if found:
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            texts.append(f"{name}: {', '.join(found[:3])}{more}")
    return "; ".join(texts) or None


def _first_entry(path: str) -> str:
    """Return the first entry of the path of a leaf, such as `['best']`."""
    return path.partition("]")[0]


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    """Return the array of numbers that is stored for a leaf."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _restored(data: np.ndarray, like: Any) -> jax.Array:
    """Return the restored data, as PRNG keys if `like` is; a copy, which a CPU may donate."""
    array = jnp.copy(jnp.asarray(data))
    if _is_key(like):
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(like))
    return array


def _sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8)).hexdigest()


def _digest(document: dict) -> str:
    """Return the SHA-256 of a document without its entry `sha256`."""
    content = {name: part for name, part in document.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _number(error: Exception) -> int | None:
    """Return the number of a system error, also of one in the text of TensorStore's."""
    found = re.search(r"os_error_code='(\d+)'", str(error))
    if found:
        return int(found[1])
    return getattr(error, "errno", None)


def _is_damage(error: Exception) -> bool:
    """Return whether an error is due to a damaged or missing file, and not to the system."""
    if (number := _number(error)) is not None:
        return number in _OF_FILES
    return not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error)
