"""Run one of the two processes of test_shared_checkpoints; print what it received and read as JSON."""

import hashlib
import itertools
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from dynskip_jax.devices.parallel import ShardedJit
from dynskip_jax.devices.processes import connect
from dynskip_jax.errors import UserError
from dynskip_jax.training.checkpoint import Checkpoints


def whole_state() -> dict:
    """Return the state as a single process has it."""
    return {
        "divided": jnp.arange(8000.0).reshape(8, 1000).at[0, 0].set(-0.0),
        "keys": jax.random.split(jax.random.key(3), (2, 4)),
        "replicated": jnp.arange(5, dtype=jnp.bfloat16),
        "own": jnp.float32(7.0),
        "empty": jnp.zeros((0, 2)),
    }


def digests(tree: dict) -> dict:
    """Return the SHA-256 digest of each leaf: equal if the bits are, and short enough for a pipe's buffer."""
    plain = {name: jax.random.key_data(leaf) if name == "keys" else leaf for name, leaf in tree.items()}
    return {name: hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest() for name, leaf in plain.items()}


def main(coordinator: str, index: int, folder: Path) -> None:
    """Run process `index` of two with the checkpoints in `folder`, and print its results as JSON."""
    said = {}
    with connect(coordinator, index, 2, heartbeat_seconds=30) as processes:
        said["collected"] = processes.collect({"index": processes.index, "array": np.full(100 * index, 2.5)})
        said["agreed"] = processes.agree(None if processes.first else "of the second")
        said["raised"] = processes.anyone(index == 1, False, now=True)
        said["lowered"] = processes.anyone(False, False, now=True)
        calls = (n for n in itertools.count() if processes.anyone(False, index == 1 and n == 3)[1])
        said["heard in call"] = next(calls)
        parallel = ShardedJit(tuple(jax.devices()), (1, jax.device_count()), processes)
        # The update leaves arrays that are divided among the devices of both processes.
        spec, rest = P(None, "data"), whole_state()
        parts = {name: rest.pop(name) for name in ("divided", "keys")}
        state = rest | parallel.whole(parallel.place(parts, spec), spec)
        checkpoints = Checkpoints(folder / "by two", processes=processes)
        for step in (1, 2, 3):
            checkpoints.save(step, state, {"saved by": index})
        said["kept"] = sorted(path.name for path in checkpoints.directory.iterdir())
        said["by two"] = digests(checkpoints.restore_latest(whole_state()).state)
        restored = Checkpoints(folder / "by one", processes=processes).restore_latest(whole_state())
        said |= {"step": restored.step, "skipped": restored.skipped, "by one": digests(restored.state)}
        try:
            there = folder / ("by one" if index == 0 else f"not {index}")
            Checkpoints(there, processes=processes).restore_latest(whole_state())
        except UserError as error:
            said["not shared"] = str(error).replace(str(there), "FOLDER")
        print("SAID " + json.dumps(said), flush=True)
        if index == 1:
            raise UserError("no data here")
        processes.agree(None)


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
