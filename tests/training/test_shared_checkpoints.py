"""Check that two processes agree, write checkpoints together, and read one process's, and vice versa."""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import shared_checkpoints
from shared_checkpoints import digests, whole_state

from dynskip_jax.training.checkpoint import Checkpoints

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder from one process: an intact checkpoint and a newer one with truncated metadata."""
    folder = tmp_path_factory.mktemp("shared")
    with Checkpoints(folder / "by one") as checkpoints:
        checkpoints.save(4, whole_state(), {})
        checkpoints.save(5, whole_state(), {})
    (folder / "by one" / "5" / "document" / "metadata").write_text("{")
    return folder


@pytest.fixture(scope="module")
def outcomes(folder):
    """Run the two processes; return the results and the standard error of each."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        coordinator = f"127.0.0.1:{server.getsockname()[1]}"
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0",
    }
    command = [sys.executable, shared_checkpoints.__file__, coordinator]
    options = dict(env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    processes = [subprocess.Popen([*command, str(i), str(folder)], **options) for i in range(2)]
    try:
        texts = [process.communicate(timeout=100) for process in processes]
    finally:
        for process in processes:
            process.kill()
            with process:  # waits, and closes its pipes
                pass
    assert [process.returncode for process in processes] == [0, 0], texts
    said = [next(line for line in out.splitlines() if line.startswith("SAID ")) for out, _ in texts]
    return [(json.loads(line[5:]), errors) for line, (_, errors) in zip(said, texts, strict=True)]


def test_processes_agree(outcomes):
    (first, _), (second, _) = outcomes
    assert first["collected"] == [{"index": 0, "array": []}, {"index": 1, "array": [2.5] * 1000}]
    assert first["agreed"] is None
    assert (first["raised"], first["lowered"]) == ([True, False], [False, False])
    assert first["heard in call"] >= 3
    for name in ("collected", "agreed", "raised", "lowered", "heard in call"):
        assert second[name] == first[name]


def test_one_that_stops_says_why_to_the_other(outcomes):
    assert [errors.splitlines()[-1] for _, errors in outcomes] == [
        "error: process 1 has stopped: no data here",
        "error: no data here",
    ]


def test_what_two_processes_wrote_is_read_by_both_by_one_and_by_orbax(outcomes, folder):
    for said, _ in outcomes:
        assert said["kept"] == ["2", "3"]
        assert said["by two"] == digests(whole_state())
    with Checkpoints(folder / "by two") as checkpoints:
        restored = checkpoints.restore_latest(whole_state())
    assert (restored.step, restored.meta) == (3, {"saved by": 0})
    assert digests(restored.state) == digests(whole_state())
    written = list((folder / "by two" / "3" / "state").glob("ocdbt.process_*/d/*"))
    assert {path.parts[-3] for path in written} == {"ocdbt.process_0", "ocdbt.process_1"}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as orbax:
        as_numpy = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in digests(whole_state())}
        del as_numpy["empty"]
        read = orbax.restore(folder / "by two" / "3" / "state", restore_args=as_numpy)
    np.testing.assert_array_equal(read["divided"], whole_state()["divided"])
    np.testing.assert_array_equal(read["keys"], jax.random.key_data(whole_state()["keys"]))


def test_what_one_process_wrote_is_read_by_two(outcomes, folder):
    for said, _ in outcomes:
        assert said["step"] == 4
        (line,) = said["skipped"]
        assert line.startswith(f"checkpoint 5 in {folder / 'by one'} is unreadable (")
        assert said["by one"] == digests(whole_state())


def test_folder_that_one_process_does_not_see(outcomes, folder):
    for index, (said, _) in enumerate(outcomes):
        seen = folder / ("missing" if index == 0 else "not 1")
        assert said["not shared"] == (
            f"process 1 does not see {seen}: choose a --run-dir in a folder that all processes share"
        )


@pytest.mark.parametrize("writer", [0, 1])
def test_damage_to_what_either_process_wrote_is_noticed(writer, outcomes, folder, tmp_path):
    copy = shutil.copytree(folder / "by two", tmp_path / "copy")
    files = (copy / "3" / "state" / f"ocdbt.process_{writer}" / "d").iterdir()
    path = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    assert len(data) > 1000  # arrays, not metadata
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with Checkpoints(copy) as checkpoints:
        restored = checkpoints.restore_latest(whole_state())
    assert restored.step == 2 and len(restored.skipped) == 1


def test_each_process_vouches_for_its_own_parts(outcomes, folder):
    leaves = json.loads((folder / "by two" / "3" / "document" / "metadata").read_text())["leaves"]
    (divided,) = [leaf["sha256"] for leaf in leaves if leaf["name"] == ["divided"]]
    rows = np.split(np.asarray(whole_state()["divided"]), 4)
    places = ("0:2,0:1000", "2:4,0:1000", "4:6,0:1000", "6:8,0:1000")
    digests = [hashlib.sha256(part.tobytes()).hexdigest() for part in rows]
    assert divided == dict(zip(places, digests, strict=True))
