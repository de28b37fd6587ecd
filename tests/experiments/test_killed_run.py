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
    # Use the machine's own number of devices, as users do.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    # The runs of a test share a cache, so that they run the same compiled programs.
    environment["JAX_COMPILATION_CACHE_DIR"] = str(folder.parent / "compiled")
    command = [*COMMAND, "--run-dir", str(folder)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(folder):
    process = start(folder)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    metrics = json.loads((folder / "result.json").read_text())["rows"][0]["metrics"]
    return output, metrics, (folder / "metrics.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_a_killed_run_resumes_bit_for_bit(tmp_path, number):
    _, metrics, log = finish(tmp_path / "whole")

    process = start(tmp_path / "killed")
    checkpoints = tmp_path / "killed" / "checkpoints"
    deadline = time.monotonic() + 240
    while not (checkpoints.exists() and any(entry.name.isdigit() for entry in checkpoints.iterdir())):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    if number == signal.SIGTERM:
        assert process.returncode == 130
        assert f"--run-dir {tmp_path / 'killed'}" in errors.strip().splitlines()[-1]
    assert not (tmp_path / "killed" / "result.json").exists()

    output, resumed_metrics, resumed_log = finish(tmp_path / "killed")
    assert "resuming after step" in output
    assert resumed_metrics == metrics
    assert resumed_log == log
