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

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_processes_agree_and_share_checkpoints(tmp_path):
    for step in (4, 5):  # of one process: an intact checkpoint and a newer one with truncated metadata
        Checkpoints(tmp_path / "by one").save(step, whole_state(), {})
    (tmp_path / "by one" / "5" / "document" / "metadata").write_text("{")
    with socket.create_server(("127.0.0.1", 0)) as server:
        coordinator = f"127.0.0.1:{server.getsockname()[1]}"
    devices = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
    options = dict(env=os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": devices}, text=True)
    options |= dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    command = [sys.executable, shared_checkpoints.__file__, coordinator]
    processes = [subprocess.Popen([*command, str(i), str(tmp_path)], **options) for i in range(2)]
    try:
        texts = [process.communicate(timeout=100) for process in processes]
    finally:
        for process in processes:
            process.kill()
            with process:  # waits, and closes its pipes
                pass
    assert [process.returncode for process in processes] == [0, 0], texts
    said = [json.loads(out[out.index("SAID ") + 5 :].splitlines()[0]) for out, _ in texts]

    assert said[0] == said[1]
    assert said[0]["collected"] == [{"index": 0, "array": []}, {"index": 1, "array": [2.5] * 100}]
    assert said[0]["agreed"] is None
    assert (said[0]["raised"], said[0]["lowered"]) == ([True, False], [False, False])
    assert said[0]["heard in call"] >= 3
    assert [errors.splitlines()[-1] for _, errors in texts] == [
        "error: process 1 has stopped: no data here",
        "error: no data here",
    ]
    # What two processes wrote is read by both and by one, and what one wrote by two.
    assert said[0]["kept"] == ["2", "3"]
    restored = Checkpoints(tmp_path / "by two").restore_latest(whole_state())
    assert (restored.step, restored.meta) == (3, {"saved by": 0})
    expected = digests(whole_state())
    assert said[0]["by two"] == said[0]["by one"] == digests(restored.state) == expected
    assert said[0]["step"] == 4
    (line,) = said[0]["skipped"]
    assert line.startswith(f"checkpoint 5 in {tmp_path / 'by one'} is unreadable (")
    remedy = "choose a --run-dir in a folder that all processes share"
    assert said[0]["not shared"] == f"process 1 does not see FOLDER: {remedy}"
