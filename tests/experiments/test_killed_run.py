"""Check that a killed run, started again, has the same metrics bit for bit as an undisturbed run."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

COMMAND = [
    *(sys.executable, "-m", "experiments.ptb", "--dataset", "pydoc-topics", "--preset", "small"),
    *("--model", "dynamic:3", "--features", "8", "--num-layers", "1", "--epochs", "3", "--dropout", "0.2"),
]


def start(folder):
    # Use the machine's own number of devices, as users do, and one cache for the runs of a test.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment["JAX_COMPILATION_CACHE_DIR"] = str(folder.parent / "compiled")
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen([*COMMAND, "--run-dir", str(folder)], env=environment, **pipes)


def finish(folder):
    process = start(folder)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    metrics = json.loads((folder / "result.json").read_text())["rows"][0]["metrics"]
    return output, metrics, (folder / "metrics.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_a_killed_run_resumes_bit_for_bit(tmp_path, number):
    _, *whole = finish(tmp_path / "whole")
    folder = tmp_path / "killed"
    process, deadline = start(folder), time.monotonic() + 240
    while not [*folder.glob("checkpoints/[0-9]*")]:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    if number == signal.SIGTERM:
        assert process.returncode == 130 and f"--run-dir {folder}" in errors.strip().splitlines()[-1]
    assert not (folder / "result.json").exists()
    output, *resumed = finish(folder)
    assert "resuming after step" in output and resumed == whole
