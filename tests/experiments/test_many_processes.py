"""Check runs of one process and of two, with two devices each, also after stops, kills and
errors.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from commands import PTB, finished_run, records, row_of

import dynskip_jax

SMALL = (
    *("--preset", "small", "--features", 8, "--agent-features", 4, "--num-layers", 1),
    *("--num-steps", 5, "--batch-size", 4, "--dropout", 0.2, "--epochs", 3),
)
FLAGS = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(Path(dynskip_jax.__file__).parents[1]),
    "XLA_FLAGS": FLAGS,
    "JAX_ENABLE_COMPILATION_CACHE": "false",
}


def start(*arguments):
    command = [sys.executable, "-m", "experiments.ptb", *map(str, arguments)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen(command, env=ENVIRONMENT, **pipes)


def start_two(*arguments, second=()):
    """Start both processes of a run; `second` are further arguments of the second one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        joined = (*arguments, "--coordinator", f"127.0.0.1:{server.getsockname()[1]}", "--process")
    return start(*joined, "0/2"), start(*joined, "1/2", *second)


def outcomes(*processes, seconds=120):
    """Wait for all processes, and return the (exit status, output, errors) of each."""
    deadline = time.monotonic() + seconds
    try:
        pairs = [p.communicate(timeout=max(0.1, deadline - time.monotonic())) for p in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any("Traceback" in text for pair in pairs for text in pair)
    return [(p.returncode, *pair) for p, pair in zip(processes, pairs, strict=True)]


def finish(*arguments):
    """Run both processes, which succeed, and return the (output, errors) of each."""
    both = outcomes(*start_two(*arguments))
    assert [status for status, *_ in both] == [0, 0], both
    return [texts for _, *texts in both]


def own_lines(text):
    """Return the lines of a text, except JAX's on its connections and the one on the search for
    processes.
    """
    jax_or_start = ("[Gloo]", "looking for the other processes: 127.0.0.1:")
    return [line for line in text.splitlines() if not line.startswith(jax_or_start)]


def wait_for_checkpoint(folder, processes, seconds=200):
    deadline = time.monotonic() + seconds
    manifest = folder / "manifest.json"
    while not manifest.exists() or "checkpoints/" not in manifest.read_text():
        assert time.monotonic() < deadline and all(process.poll() is None for process in processes)
        time.sleep(0.01)


def assert_same_result(folder, expected):
    one, other = row_of(folder)["metrics"], row_of(expected)["metrics"]
    assert one.keys() == other.keys()
    for name, metric in one.items():
        np.testing.assert_allclose(metric["per_seed"], other[name]["per_seed"], rtol=1e-4)
    for record, wanted in zip(records(folder), records(expected), strict=True):
        for name, value in wanted.items():
            if isinstance(value, str):
                assert record[name] == value
            else:  # fractions of each k are nested lists
                np.testing.assert_allclose(record[name], value, rtol=1e-4)


@pytest.fixture(scope="module")
def one_process(corpus_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one") / "run"
    return finished_run(PTB, folder, "--data", corpus_folder, "--model", "dynamic:3", *SMALL)


@pytest.mark.slow
def test_two_processes_train_as_one_does(one_process, tmp_path):
    folder, arguments, _ = one_process
    first, second = finish(*arguments, "--run-dir", tmp_path / "run")
    assert "4 of 4 cpu device(s), 2 process(es)" in first[0] and own_lines(second[0]) == []
    assert own_lines(second[1]) == [
        "process 1 waits for process 0, which evaluates dynamic:3 and draws"
    ]
    assert_same_result(tmp_path / "run", folder)
    assert len(row_of(tmp_path / "run")["devices"]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_lost_process_ends_the_other_and_the_same_command_goes_on(victim, one_process, tmp_path):
    folder, arguments, _ = one_process
    long = (*arguments, "--run-dir", tmp_path / "run")
    run = start_two(*long)
    wait_for_checkpoint(tmp_path / "run", run)
    run[victim].kill()
    killed = time.monotonic()
    status, _, errors = outcomes(*run)[1 - victim]
    assert time.monotonic() - killed < 90
    # If a collective fails first, the error is one line. If JAX detects the lost process first, it
    # aborts.
    if status == 2:
        assert errors.splitlines()[-1].startswith(
            "error: what all processes do together has failed"
        )
    else:
        assert (
            status == -signal.SIGABRT and "JAX distributed service detected fatal errors" in errors
        )
    assert not (tmp_path / "run" / "result.json").exists()
    first, _ = finish(*long)
    assert "resuming after step" in first[0]
    assert_same_result(tmp_path / "run", folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_a_killed_run_resumes_bit_for_bit(number, one_process, tmp_path):
    whole, killed = (
        (*one_process.arguments, "--epochs", 9, "--run-dir", tmp_path / n) for n in "ab"
    )
    run = start(*killed)
    wait_for_checkpoint(tmp_path / "b", [run])
    run.send_signal(number)
    ((status, _, errors),) = outcomes(run)
    assert status == -number or (
        status == 130 and f"--run-dir {tmp_path / 'b'}" in errors.splitlines()[-1]
    )
    assert not (tmp_path / "b" / "result.json").exists()
    resumed, _ = outcomes(start(*killed), start(*whole), seconds=300)
    assert resumed[0] == 0 and "resuming after step" in resumed[1], resumed
    assert row_of(tmp_path / "a")["metrics"] == row_of(tmp_path / "b")["metrics"]
    assert records(tmp_path / "a") == records(tmp_path / "b")
