"""Save the arrays of a training state with Orbax, and restore them bit for bit."""

import logging
import os
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from jax.tree_util import keystr, tree_leaves_with_path
from jaxtyping import PyTree

from dynskip_jax.errors import UserError


def save(folder: Path, state: PyTree) -> None:
    """Write arrays and typed PRNG keys into a new folder, and wait until they are on disk.

    Orbax alone reads them, as nested dictionaries and lists with the names of the state. PRNG keys
    are stored as their uint32 data, and empty arrays, which Orbax does not take, as None.
    """
    arrays = jax.tree.map(lambda leaf: np.asarray(_raw(leaf)), state)
    stored = jax.tree.map(lambda array: array if array.size else None, arrays)
    if not jax.tree.leaves(stored):
        folder.mkdir()
        return
    # Without these options, Orbax waits for all JAX processes. OCDBT is off, because it merges
    # files that it looks for with a pattern, which fails in a folder such as `x[1]`.
    here = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=str(here)
    )
    handler = ocp.PyTreeCheckpointHandler(
        use_ocdbt=False, use_zarr3=False, multiprocessing_options=alone
    )
    orbax = ocp.Checkpointer(handler, multiprocessing_options=alone)
    logger = logging.getLogger("absl")
    level = logger.level
    # Orbax warns that there is nothing to merge, and logs the errors that it raises.
    logger.setLevel(logging.CRITICAL)
    try:
        orbax.save(folder.resolve(), args=ocp.args.PyTreeSave(stored))
    except ValueError as error:
        # TensorStore's errors contain the system's number.
        found = re.search(r"os_error_code='(\d+)'", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(folder)) from error
    finally:
        logger.setLevel(level)


def restore(folder: Path, like: PyTree, *, partial: bool = False) -> PyTree:
    """Return the arrays in a folder, which must be exactly those of `like`.

    `like` contains JAX arrays, or `jax.ShapeDtypeStruct`s if there are no PRNG keys, in the saved
    structure. With `partial` it is only a part of the saved state, by the first entries of the
    paths, and the rest is not read.
    """
    specs = jax.eval_shape(lambda tree: jax.tree.map(_raw, tree), like)
    wanted = {_name(path): spec for path, spec in tree_leaves_with_path(specs)}
    stored = {path.name for path in folder.iterdir() if (path / ".zarray").exists()}
    if partial:
        entries = {_first_entry(name) for name in wanted}
        stored = {name for name in stored if _first_entry(name) in entries}
    named = {name for name, spec in wanted.items() if spec.size}
    different = [f"there is {name}" for name in sorted(stored - named)]
    different += [f"{name} is missing" for name in sorted(named - stored)]
    arrays = []
    for name, spec in wanted.items():
        array = np.empty(spec.shape, spec.dtype)
        if name in stored and spec.size:
            array = _read_array(folder / name, spec)
        if array is None:
            different.append(f"{name} is not {spec.dtype}{list(spec.shape)}")
        arrays.append(array)
    if different:
        raise UserError(
            f"{folder} holds other arrays than the model ({'; '.join(different[:3])}): "
            "use the settings and the version it was saved with, or choose another --run-dir"
        )
    return jax.tree.map(_restored, jax.tree.unflatten(jax.tree.structure(like), arrays), like)


def _read_array(folder: Path, spec: jax.ShapeDtypeStruct) -> np.ndarray | None:
    """Return an array, or None if it has another shape or dtype."""
    files = {"driver": "file", "path": f"{folder.resolve()}/"}
    try:
        found = tensorstore.open({"driver": "zarr", "kvstore": files}, open=True, read=True)
        stored = found.result()
        if stored.shape != spec.shape or stored.dtype.numpy_dtype != spec.dtype:
            return None
        return stored.read().result()
    except ValueError as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{folder} cannot be read ({reason}): restore it") from error


def _name(path: tuple) -> str:
    """Return the name of a leaf's file, as Orbax builds it from the path of the leaf."""
    return keystr(path, simple=True, separator=".")


def _first_entry(name: str) -> str:
    return name.partition(".")[0]


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
