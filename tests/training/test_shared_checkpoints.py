"""Check that two processes agree, write checkpoints together, and read one process's, and vice versa."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

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
    for step in (4, 5):
        Checkpoints(folder / "by one").save(step, whole_state(), {})
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
    assert first["collected"] == [{"index": 0, "array": []}, {"index": 1, "array": [2.5] * 100}]
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


def test_what_two_processes_wrote_is_read_by_both_and_by_one(outcomes, folder):
    for said, _ in outcomes:
        assert said["kept"] == ["2", "3"]
        assert said["by two"] == digests(whole_state())
    restored = Checkpoints(folder / "by two").restore_latest(whole_state())
    assert (restored.step, restored.meta) == (3, {"saved by": 0})
    assert digests(restored.state) == digests(whole_state())


def test_what_one_process_wrote_is_read_by_two(outcomes, folder):
    for said, _ in outcomes:
        assert said["step"] == 4
        (line,) = said["skipped"]
        assert line.startswith(f"checkpoint 5 in {folder / 'by one'} is unreadable (")
        assert said["by one"] == digests(whole_state())


def test_folder_that_one_process_does_not_see(outcomes, folder):
    for index, (said, _) in enumerate(outcomes):
        seen = folder / ("by one" if index == 0 else "not 1")
        assert said["not shared"] == (
            f"process 1 does not see {seen}: choose a --run-dir in a folder that all processes share"
        )
