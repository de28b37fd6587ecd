"""Check that two processes with two devices each train as one does, also after stops, kills and errors."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import dynskip_jax
from dynskip_jax.experiment import find_experiment

SMALL = (
    *("--model", "dynamic:3", "--preset", "small", "--features", "8", "--agent-features", "4"),
    *("--num-steps", "5", "--batch-size", "4", "--dropout", "0.2", "--epochs", "3"),
)
FLAGS = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(Path(dynskip_jax.__file__).parents[1]),
    "XLA_FLAGS": FLAGS,
    "JAX_ENABLE_COMPILATION_CACHE": "false",
}


class Processes:
    """The processes of one run."""

    def __init__(self, *arguments, count=2, **changes):
        with socket.create_server(("127.0.0.1", 0)) as server:
            coordinator = f"127.0.0.1:{server.getsockname()[1]}"
        self.processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "experiments.ptb", *map(str, arguments)),
                    *("--coordinator", coordinator, "--process", f"{index}/{count}"),
                    *map(str, changes.get(f"process_{index}", ())),
                ],
                env=ENVIRONMENT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for index in range(count)
        ]

    def outcomes(self, seconds=120):
        """Wait for all processes, and return the (exit status, output, errors) of each."""
        deadline = time.monotonic() + seconds
        try:
            pairs = [p.communicate(timeout=max(0.1, deadline - time.monotonic())) for p in self.processes]
        finally:
            for process in self.processes:
                process.kill()
        assert not any("Traceback" in text for pair in pairs for text in pair)
        return [(p.returncode, *pair) for p, pair in zip(self.processes, pairs, strict=True)]


def own_lines(text):
    """Return the lines of a text, except JAX's on its connections and the one on the search for processes."""
    jax_or_start = ("[Gloo]", "looking for the other processes: 127.0.0.1:")
    return [line for line in text.splitlines() if not line.startswith(jax_or_start)]


def wait_for(condition, processes, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes.processes)
        time.sleep(0.01)


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same_result(folder, expected):
    one, other = (json.loads((path / "result.json").read_text())["rows"][0] for path in (folder, expected))
    assert one["metrics"].keys() == other["metrics"].keys()
    for name, metric in one["metrics"].items():
        np.testing.assert_allclose(metric["per_seed"], other["metrics"][name]["per_seed"], rtol=1e-4)
    for record, wanted in zip(records(folder), records(expected), strict=True):
        for name, value in wanted.items():
            if isinstance(value, str):
                assert record[name] == value
            else:  # fractions of each k are nested lists
                np.testing.assert_allclose(record[name], value, rtol=1e-4)


@pytest.fixture(scope="module")
def one_process(command, corpus_folder, tmp_path_factory):
    """Train the same run in one process, and return (arguments, folder)."""
    folder = tmp_path_factory.mktemp("one") / "run"
    arguments = ("--data", corpus_folder, *SMALL)
    outcome = command(find_experiment("ptb"), *arguments, "--run-dir", folder)
    assert outcome.status == 0, outcome.err
    return arguments, folder


@pytest.mark.slow
def test_two_processes_train_as_one_does(one_process, tmp_path):
    arguments, folder = one_process
    first, second = Processes(*arguments, "--run-dir", tmp_path / "run").outcomes()
    assert (first[0], second[0]) == (0, 0), (first[2], second[2])
    assert "4 of 4 cpu device(s), 2 processes" in first[1]
    assert "test perplexity" in first[1]
    assert own_lines(second[1]) == []
    assert own_lines(second[2]) == ["process 1 waits for process 0, which evaluates dynamic:3 and draws"]
    assert_same_result(tmp_path / "run", folder)
    assert len(json.loads((tmp_path / "run" / "result.json").read_text())["rows"][0]["devices"]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--seeds", 4), ("--compare", "lstm,dynamic:3")], ids=lambda o: o[0])
def test_processes_with_seeds_of_their_own_and_several_models(options, command, corpus_folder, tmp_path):
    arguments = [a for a in ("--data", corpus_folder, *SMALL) if a not in ("--model", "dynamic:3")]
    if options[0] == "--seeds":
        arguments += ["--model", "dynamic:3"]
    assert command(find_experiment("ptb"), *arguments, *options, "--run-dir", tmp_path / "one").status == 0
    first, second = Processes(*arguments, *options, "--run-dir", tmp_path / "two").outcomes()
    assert (first[0], second[0]) == (0, 0), (first[2], second[2])
    for folder in ("",) if options[0] == "--seeds" else ("lstm", "dynamic-3"):
        assert_same_result(tmp_path / "two" / folder, tmp_path / "one" / folder)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_lost_process_ends_the_other_and_the_same_command_goes_on(victim, one_process, tmp_path):
    arguments, folder = one_process
    checkpoints = tmp_path / "run" / "checkpoints"
    long = [*arguments, "--run-dir", tmp_path / "run", "--heartbeat-seconds", 10]
    run = Processes(*long)
    wait_for(lambda: checkpoints.exists() and any(p.name.isdigit() for p in checkpoints.iterdir()), run)
    run.processes[victim].kill()
    killed = time.monotonic()
    status, _, errors = run.outcomes()[1 - victim]
    assert time.monotonic() - killed < 30
    # If a collective fails first, the error is one line. If JAX detects the lost process first, it aborts.
    if status == 2:
        assert errors.splitlines()[-1].startswith("error: what all processes do together has failed")
    else:
        assert status == -signal.SIGABRT and "JAX distributed service detected fatal errors" in errors
    assert not (tmp_path / "run" / "result.json").exists()

    first, second = Processes(*long).outcomes()
    assert (first[0], second[0]) == (0, 0), (first[2], second[2])
    assert "resuming after step" in first[1]
    assert_same_result(tmp_path / "run", folder)


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "number"), [(0, signal.SIGTERM), (1, signal.SIGTERM), (1, signal.SIGINT)])
def test_all_processes_stop_where_one_is_asked_to(asked, number, one_process, tmp_path):
    arguments, folder = one_process
    checkpoints = tmp_path / "run" / "checkpoints"
    run = Processes(*arguments, "--run-dir", tmp_path / "run")
    wait_for(lambda: checkpoints.exists() and any(p.name.isdigit() for p in checkpoints.iterdir()), run)
    run.processes[asked].send_signal(number)
    first, second = run.outcomes()
    assert (first[0], second[0]) == (130, 130), (first[2], second[2])
    assert "progress is saved" in first[2].splitlines()[-1]

    # One process resumes the run that two processes began.
    alone = subprocess.run(
        [sys.executable, "-m", "experiments.ptb", *map(str, arguments), "--run-dir", tmp_path / "run"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert alone.returncode == 0, alone.stderr
    assert "resuming after step" in alone.stdout
    assert_same_result(tmp_path / "run", folder)


@pytest.mark.slow
def test_folder_of_another_run_ends_all_processes_with_one_line(one_process):
    arguments, folder = one_process
    outcomes = Processes(*arguments, "--features", 9, "--run-dir", folder).outcomes()
    for (status, _, errors), start in zip(
        outcomes, ("error: ", "error: process 0 has stopped: "), strict=True
    ):
        (line,) = own_lines(errors)
        assert status == 2 and line.startswith(start) and "other settings" in line


@pytest.mark.slow
def test_data_that_one_process_does_not_have_ends_both(one_process, tmp_path):
    arguments, _ = one_process
    missing = ("--data", tmp_path / "nothing")
    first, second = Processes(*arguments, "--run-dir", tmp_path / "run", process_1=missing).outcomes()
    starts = ("error: process 1 has stopped: ", "error: ")
    for (status, _, errors), start in zip((first, second), starts, strict=True):
        (line,) = own_lines(errors)
        assert status == 2 and line.startswith(start) and "does not exist" in line


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--coordinator", "127.0.0.1:9"), ("together",)),
        (("--process", "0/2"), ("together",)),
        (("--coordinator", "nowhere", "--process", "0/2"), ("HOST:PORT", "nowhere")),
        (("--coordinator", "a:9", "--process", "2/2"), ("--process", "0 and 1")),
        (("--coordinator", "a:9", "--process", "0/0"), ("at least 1",)),
        (
            ("--coordinator", "a:9", "--process", "0/2", "--parallel", "pmap"),
            ("--parallel pmap", "one process"),
        ),
        (("--coordinator", "auto", "--process", "0/1"), ("--coordinator auto", "leave --process out")),
    ],
)
def test_flags_that_do_not_go_together(arguments, parts, command, corpus_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = command(find_experiment("ptb"), "--data", corpus_folder, *SMALL, *arguments)
    assert outcome.status == 2
    assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
    assert all(part in outcome.err for part in parts)
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_one_process_of_one_needs_no_others(command, corpus_folder, tmp_path):
    one = ("--coordinator", "127.0.0.1:9", "--process", "0/1")
    arguments = ("--data", corpus_folder, *SMALL, "--epochs", 1, *one, "--run-dir", tmp_path / "run")
    assert command(find_experiment("ptb"), *arguments).status == 0
