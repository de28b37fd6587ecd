"""Check that a run folder is made once, resumed, and safe from mistakes and strangers."""

import datetime
import errno
import json
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import filelock
import jax.numpy as jnp
import numpy as np
import pytest

from dynskip_jax.errors import UserError
from dynskip_jax.training import files
from dynskip_jax.training.files import FORMAT, write_atomically
from dynskip_jax.training.folder import RunDir, check_usable, new_folder
from dynskip_jax.training.results import runs_of_models

CONFIG = {
    "model": "dynamic:10",
    "optimizer": {"rate": 0.1, "betas": (0.9, 0.999)},
    "seeds": 3,
    "dataset": {"name": "x", "fingerprint": "f"},
}


def user_error(call, *arguments, **options) -> str:
    with pytest.raises(UserError) as error:
        call(*arguments, **options)
    assert "\n" not in str(error.value) and len(str(error.value)) < 700
    return str(error.value)


# --- Settings ---


def test_open_makes_then_resumes_and_changes_nothing(tmp_path):
    odd = {
        "path": Path("x/y"),
        "limit": math.inf,
        "size": np.int64(3),
        "rates": np.array([1.0, 2.0]),
    }
    run = RunDir.open(tmp_path / "a" / "b", CONFIG | odd, about={"command": "first"})
    assert run.checkpoints.is_dir() and run.plots.is_dir()
    odd = {"path": "x/y", "limit": "Infinity", "size": 3, "rates": [1.0, 2.0]}
    before = (run.path / "config.json").read_bytes()
    config = json.loads(before)
    assert config.pop("format") == FORMAT and len(config.pop("run")) == 32
    assert config == json.loads(json.dumps(CONFIG)) | odd | {"about": [{"command": "first"}]}
    again = RunDir.open(str(run.path), CONFIG | odd, about={"command": "again"})
    assert (run.path / "config.json").read_bytes() == before
    assert again.identity == run.identity != RunDir.open(tmp_path / "other", CONFIG | odd).identity


def test_other_settings_are_named(tmp_path):
    assert "no name in UTF-8" in user_error(RunDir, Path("x\udcff"))
    RunDir.open(tmp_path, CONFIG)
    other = {
        "optimizer": {"rate": 0.2, "betas": (0.9, 0.999)},
        "dataset": {"name": "y", "fingerprint": "f"},
    }
    message = user_error(
        RunDir.open, tmp_path / "absent" / "..", other | {"model": "lstm", "new": True}
    )
    assert 'model was "dynamic:10" and is now "lstm"' in message
    assert (
        "optimizer.rate was 0.1 and is now 0.2; seeds was 3 and is now not set; and 1 more"
        in message
    )
    assert "beta" not in message and "dataset" not in message
    RunDir.open(tmp_path, CONFIG)  # the old configuration is still there


def test_settings_that_may_grow(tmp_path):
    """Numbers may become larger and lists longer."""

    def opened(epochs, models, **more):
        config = {"training": {"epochs": epochs, "rate": 0.1}, "models": models, **more}
        return RunDir.open(tmp_path, config, may_grow=("training.epochs", "models", "absent"))

    opened(3, ["a"]).write_result({"epochs": 3})
    run = opened(5, ["b", "a"])
    assert run.result() == {"epochs": 3}  # the result stays until `go_on` is called
    run.go_on()
    assert run.result() is None
    for arguments, message in (
        ((4, ["b", "a"]), "training.epochs was 5 and is now 4"),
        ((5, ["a", "c"]), "models was"),
        ((5, ["a", "b"]), "models was"),  # the order differs
        ((True, ["b", "a"]), "training.epochs was 5 and is now true"),
        ((6, "b"), 'models was ["b", "a"] and is now "b"'),
    ):
        assert message in user_error(opened, *arguments)
    assert "(absent was not set and is now 1)" in user_error(opened, 6, ["b", "a"], absent=1)


# --- Records and results ---


def test_log_is_valid_json_and_comes_back(tmp_path):
    run = RunDir.open(tmp_path, CONFIG)
    assert run.records() == []
    run.log({"step": 1, "loss": jnp.float32(0.5), "per_seed": np.array([1.5, np.nan])})
    run.log({"step": 2, "loss": math.inf, "low": -math.inf, "note": "α\nβ"})
    for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        json.loads(line, parse_constant=pytest.fail)
    first, second = run.records()
    assert math.isnan(first["per_seed"].pop())
    assert first == {"step": 1, "loss": 0.5, "per_seed": [1.5]}
    assert second == {"step": 2, "loss": math.inf, "low": -math.inf, "note": "α\nβ"}


def test_rewind_drops_what_came_after_the_checkpoint_and_a_line_cut_off(tmp_path):
    run = RunDir.open(tmp_path, CONFIG)
    path = tmp_path / "metrics.jsonl"
    run.rewind(0)  # nothing logged yet
    assert not path.exists()
    for record in ({"step": 1, "x": math.nan}, {"note": "no step"}, {"step": 5}):
        run.log(record)
    digest = run.digest_of_metrics()
    for step in (6, 7):
        run.log({"step": step})
    path.write_bytes(path.read_bytes()[:-4])
    assert [record.get("step") for record in run.records()] == [1, None, 5, 6]
    run.rewind(5, digest)
    run.log({"step": 6})
    assert [record.get("step") for record in run.records()] == [1, None, 5, 6]


@pytest.mark.parametrize(
    "line",
    [
        *('{"st', "5", "[]", '{"step": null}', '{"step": "1"}', '{"step": [1]}', '{"step": -1}'),
        *('{"step": 1, "epoch": "x"}', '{"split": 3}', "\udcff"),
        *("[" * 10**5, '{"a":' * 900 + "1" + "}" * 900),
    ],
    ids=lambda line: line[:20],
)
def test_a_line_that_is_no_record_is_named(line, tmp_path):
    """Regression: a step that is no number was a TypeError, 900 nested lists a RecursionError."""
    run = RunDir.open(tmp_path, CONFIG)
    content = f'{{"step": 1}}\n{line}\n{{"step": 3}}\n'.encode(errors="surrogateescape")
    (tmp_path / "metrics.jsonl").write_bytes(content)
    for call in (run.records, lambda: run.rewind(3)):
        assert "line 2 of" in user_error(call)


LARGE = {
    "config.json": lambda: '{"format": 4, ' + ", ".join(f'"k{i}": 0' for i in range(300_000)) + "}",
    "result.json": lambda: '{"a": [' + "[],[]," * 10**6 + "0]}",
    "metrics.jsonl": lambda: ('{"a": [' + "0," * 10**6 + "0]}\n") * 3,
    "metrics.jsonl, lines": lambda: "{}\n" * 10_001,
}


@pytest.mark.parametrize("case", LARGE)
def test_json_of_too_many_values_is_refused_before_it_is_parsed(case, tmp_path, monkeypatch):
    """Regression: files of 39 and 242 megabytes took over 90 seconds."""
    monkeypatch.setattr("dynskip_jax.training.metrics_file._MOST_LOGGED", 2_500_000)
    monkeypatch.setattr("dynskip_jax.training.metrics_file._MOST_LINES", 10_000)
    run = RunDir.open(tmp_path, CONFIG)
    name = case.partition(",")[0]
    (tmp_path / name).write_text(LARGE[case]())
    read = {"config.json": run.config, "result.json": run.result, "metrics.jsonl": run.records}[
        name
    ]
    began = time.process_time()
    assert name in user_error(read)
    assert time.process_time() - began < 10


def test_result_is_written_whole_or_not_at_all_and_withdrawn_where_the_run_goes_on(
    tmp_path, monkeypatch
):
    run = RunDir.open(tmp_path, CONFIG)
    run.go_on()  # there is no result yet
    assert run.result() is None
    run.write_result({"accuracy": {"mean": 0.9, "std": math.nan}})
    assert math.isnan(run.result()["accuracy"]["std"])
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
        run.write_result({"accuracy": {"mean": 0.1}})
    assert run.result()["accuracy"]["mean"] == 0.9
    part = RunDir.open(tmp_path / "part", CONFIG, within=run)
    part.write_result({"accuracy": 1})
    part.go_on()
    assert run.result() is None and part.result() is None


# --- What is not a run, or a stranger's ---


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (dict(format=FORMAT - 1), f"a run of format {FORMAT - 1}, and this version"),
        (dict(format="x" * 10**6), "a run of format xxxx"),
        (dict(models=[".."]), "does not hold a valid configuration"),
        (dict(models=["a"] * 10**5), "does not hold a valid configuration"),
        (b"\xff", "does not hold a valid configuration"),
        (bytes(999), "has more than 998 bytes"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_configurations_that_are_not_ours_are_refused(entries, message, tmp_path, monkeypatch):
    RunDir.open(tmp_path, CONFIG)
    path = tmp_path / "config.json"
    if isinstance(entries, bytes):
        monkeypatch.setattr("dynskip_jax.training.files.read_bytes.__defaults__", (998,))
        path.write_bytes(entries)
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    assert message in user_error(RunDir.open, tmp_path, CONFIG)
    assert message in user_error(RunDir(tmp_path).config)


@pytest.mark.parametrize(
    "name", ["config.json", "config.json.tmp", "result.json", ".lock", "plots", "x"]
)
@pytest.mark.parametrize("kind", ["link", "pipe", "device"])
def test_what_is_not_a_file_is_refused_and_nothing_outside_changed(kind, name, tmp_path):
    """A link could name any file of the user; a pipe and /dev/zero have no end."""
    run = RunDir.open(tmp_path / "run", CONFIG)
    victim = tmp_path / "victim"
    run._lock.release()
    victim.mkdir() if name == "plots" else victim.write_text("precious")
    (run.path / name).exists() and (run.path / name).rename(tmp_path / "away")
    target = "/dev/zero" if kind == "device" else victim
    os.mkfifo(run.path / name) if kind == "pipe" else (run.path / name).symlink_to(target)
    assert "holds only its own files" in user_error(RunDir.open, run.path, CONFIG)
    if name != "config.json" or kind == "link":
        assert "holds only its own files" in user_error(runs_of_models, run.path)
    assert victim.is_dir() or victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["file", "file.tmp"])
def test_a_file_is_never_written_through_a_link(name, tmp_path):
    victim = tmp_path / "victim"
    folder = tmp_path / "run"
    victim.write_text("precious")
    folder.mkdir()
    (folder / name).symlink_to(victim)
    write_atomically(folder / "file", "text")
    assert not (folder / "file").is_symlink() and (folder / "file").read_text() == "text"
    (folder / "log").symlink_to(victim)
    for call in (
        lambda: files.append_line(folder / "log", "x"),
        lambda: files.read_bytes(folder / "log"),
    ):
        assert "is no regular file" in user_error(call)
    assert victim.read_text() == "precious"


def test_folder_that_is_not_a_run_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    message = user_error(RunDir.open, tmp_path, CONFIG)
    assert str(tmp_path) in message and "choose another --run-dir" in message
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for path in (
        tmp_path / "thesis.tex",
        tmp_path / "thesis.tex" / "below",
        tmp_path / "link",
        "a\0b",
    ):
        assert "choose another --run-dir" in user_error(RunDir.open, path, CONFIG)


def test_a_folder_that_cannot_be_used_is_refused_before_work_begins(tmp_path, monkeypatch):
    """Regression: data were read for a minute first."""
    (tmp_path / "thesis.tex").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name in ("thesis.tex", "thesis.tex/below/it", "link", "."):
        assert "choose another --run-dir" in user_error(check_usable, tmp_path / name)
    check_usable(tmp_path / "new" / "run")
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    denied = user_error(check_usable, tmp_path / "new" / "run")
    assert "(Permission denied); choose another --run-dir" in denied


def test_run_killed_while_writing_its_configuration_starts_again(tmp_path):
    (tmp_path / "config.json.tmp").write_text('{"mod')
    assert RunDir.open(tmp_path, CONFIG).identity == RunDir.open(tmp_path, CONFIG).identity
    assert not (tmp_path / "config.json.tmp").exists()


def test_a_new_folder_is_nobody_elses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    now = datetime.datetime(2024, 3, 9, 7, 5, 1)
    assert new_folder("ptb", "a/../b c", now).parent == Path("runs/ptb")
    with ThreadPoolExecutor(4) as pool:
        made = {*pool.map(lambda _: new_folder("ptb", "dynamic:10", now), range(20))}
    ends = ("", *(f"-{number}" for number in range(2, 21)))
    assert made == {Path(f"runs/ptb/dynamic-10-20240309-070501{end}") for end in ends}
    (tmp_path / "runs" / "sst").write_text("a file")
    assert "choose another --run-dir" in user_error(new_folder, "sst", "lstm", now)


# --- Two processes ---


OTHER = """
import errno, filelock, sys
from dynskip_jax.training.folder import RunDir

def acquire(self):
    raise OSError(errno.ENOLCK, "no locks")

if sys.argv[2] == "False":
    filelock.FileLock.acquire = acquire
run = RunDir.open(sys.argv[1], {}); print("here", flush=True); sys.stdin.read()
"""


@pytest.mark.parametrize("locks", [True, False])
def test_a_folder_in_which_another_process_runs_is_left_alone(locks, tmp_path, monkeypatch):
    """Two runs in one folder once deleted each other's checkpoints, also without locks."""
    if not locks:
        monkeypatch.setattr(
            filelock.FileLock, "acquire", Mock(side_effect=OSError(errno.ENOLCK, "no locks"))
        )
    folder = tmp_path / "run"
    command = [sys.executable, "-c", OTHER, str(folder), str(locks)]
    for end in ("kill", "close"):
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout.readline() == "here\n"
            before = sorted(path.name for path in folder.iterdir())
            assert " running in " in user_error(RunDir.open, folder, {})
            assert sorted(path.name for path in folder.iterdir()) == before
            other.kill() if end == "kill" else other.stdin.close()
        if end == "kill":  # newer versions of filelock notice that the process is gone
            (folder / ".running").unlink(missing_ok=True)
    # One process, repeatedly.
    assert RunDir.open(folder, {}).identity == RunDir.open(folder, {}).identity
