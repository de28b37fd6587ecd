"""Check that a run folder is made once, resumed, and safe from mistakes and strangers."""

import datetime
import json
import math
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import jax.numpy as jnp
import numpy as np
import pytest

from dynskip_jax.errors import UserError
from dynskip_jax.storage.files import check_new, write_atomically
from dynskip_jax.storage.folder import RunDir, check_usable, new_folder
from dynskip_jax.storage.manifest import read_manifest

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
    assert config == json.loads(json.dumps(CONFIG)) | odd | {"about": [{"command": "first"}]}
    RunDir.open(str(run.path), CONFIG | odd, about={"command": "again"})
    assert (run.path / "config.json").read_bytes() == before


def test_other_settings_are_named(tmp_path):
    for path in ("x\udcff", "x\\y/z"):
        assert "choose another --run-dir" in user_error(RunDir.open, tmp_path / path, CONFIG)
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

    opened(3, ["a"]).write_result({"rows": []})
    run = opened(5, ["b", "a"])
    assert run.result() == {"rows": []}  # the result stays until `go_on` is called
    run.go_on()
    assert run.result() is None and RunDir.read(tmp_path).result() is None
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


def test_what_came_after_the_checkpoint_is_dropped(tmp_path):
    run = RunDir.open(tmp_path, CONFIG)
    path = tmp_path / "metrics.jsonl"
    run.go_on()  # nothing is logged yet
    for record in ({"step": 1, "x": math.nan}, {"note": "no step"}, {"step": 5}):
        run.log(record)
    run.save(5, {"w": jnp.ones(2)}, {})
    for step in (6, 7):
        run.log({"step": step})
    path.write_bytes(path.read_bytes()[:-4])
    (run.checkpoints / "7").mkdir()  # of a process that was killed
    again = RunDir.open(tmp_path, CONFIG)
    assert [record.get("step") for record in again.records()] == [1, None, 5, 6]
    again.go_on()
    again.log({"step": 6})
    assert [record.get("step") for record in again.records()] == [1, None, 5, 6]
    again.save(6, {"w": jnp.ones(2)}, {})
    assert [folder.name for folder in run.checkpoints.iterdir()] == ["6"]
    assert RunDir.read(tmp_path).checkpoint == run.checkpoints / "6"


def test_a_result_is_written_whole_or_not_at_all_and_withdrawn_where_the_run_goes_on(
    tmp_path, monkeypatch
):
    run = RunDir.open(tmp_path, CONFIG)
    assert run.result() is None
    run.write_result({"rows": [], "spread": math.nan})
    assert math.isnan(run.result()["spread"])
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
        run.write_result({"rows": [], "spread": 0})
    assert math.isnan(RunDir.read(tmp_path).result()["spread"])
    run.go_on()
    assert run.result() is None
    assert not RunDir.read(tmp_path).is_finished


# --- What differs from the manifest ---


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of a finished run of two records and one checkpoint."""
    run = RunDir.open(tmp_path_factory.mktemp("finished"), CONFIG)
    run.go_on()
    run.keep("vocabulary.json", "{}")
    run.log({"step": 1})
    run.log({"step": 2})
    run.save(2, {"w": jnp.arange(1, 50), "b": jnp.zeros(3)}, {"step": 2})
    run.write_result({"rows": []})
    return run.path


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "removed": os.remove,
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
    "flipped": flip,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_differs_is_named(damage, finished, tmp_path):
    names = list(read_manifest(finished))
    assert {name.partition("/")[0] for name in names} == {
        *("checkpoints", "config.json", "metrics.jsonl", "result.json", "vocabulary.json")
    }
    for name in names:
        folder = shutil.copytree(finished, tmp_path / "run", dirs_exist_ok=True)
        if (folder / name).stat().st_size == 0:
            continue
        DAMAGES[damage](folder / name)
        for read in (RunDir.read, lambda path: RunDir.open(path, CONFIG)):
            assert str(folder / name) in user_error(read, folder)


def test_a_file_that_was_added_to_a_checkpoint_is_named(finished, tmp_path):
    """A part of an array that has no file reads as zeros."""
    folder = shutil.copytree(finished, tmp_path / "run")
    added = folder / "checkpoints" / "2" / "state" / "w" / "1"
    added.write_bytes(b"x")
    assert f"{added} is no file of the run" in user_error(RunDir.read, folder)


def test_a_folder_without_its_manifest_is_no_run(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "manifest.json").unlink()
    for read in (RunDir.read, lambda path: RunDir.open(path, CONFIG)):
        assert "no manifest.json" in user_error(read, folder)
    (folder / "config.json").write_text('{"format": 4, "model": "lstm"}')
    for read in (RunDir.read, lambda path: RunDir.open(path, CONFIG)):
        assert "holds a run of format 4" in user_error(read, folder)
        assert "commit 9f0b6f26 reads it" in user_error(read, folder)


@pytest.mark.parametrize(
    "manifest",
    [
        *("", "5", "[", "[" * 10**5, '{"a":' * 900 + "1" + "}" * 900, "{}", '{"files": {}}'),
        '{"format": 5, "files": {"config.json": 5}}',
        '{"format": 5, "files": {"config.json": {"bytes": 1}}}',
        '{"format": 6, "files": {}}',
    ],
    ids=lambda text: text[:60],
)
def test_a_manifest_that_is_none_is_refused(manifest, finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "manifest.json").write_text(manifest)
    assert str(folder) in user_error(RunDir.read, folder)


# --- What is not a run ---


@pytest.mark.parametrize("name", ["file", "file.tmp"])
def test_a_file_is_never_written_through_a_link(name, tmp_path):
    victim = tmp_path / "victim"
    folder = tmp_path / "run"
    victim.write_text("precious")
    folder.mkdir()
    (folder / name).symlink_to(victim)
    write_atomically(folder / "file", "text")
    assert not (folder / "file").is_symlink() and (folder / "file").read_text() == "text"
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


def test_a_folder_that_cannot_be_used_is_refused_before_work_begins(tmp_path):
    """Regression: data were read for a minute first."""
    (tmp_path / "thesis.tex").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name in ("thesis.tex", "link", "."):
        assert "choose another --run-dir" in user_error(check_usable, tmp_path / name)
    check_usable(tmp_path / "new" / "run")
    assert not (tmp_path / "new").exists()


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
import sys
from dynskip_jax.storage.folder import RunDir
run = RunDir.open(sys.argv[1], {}); print("here", flush=True); sys.stdin.read()
"""


def test_a_folder_in_which_another_process_runs_is_left_alone(tmp_path):
    """Two runs in one folder once deleted each other's checkpoints."""
    folder = tmp_path / "run"
    command = [sys.executable, "-c", OTHER, str(folder)]
    for end in ("kill", "close"):
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout.readline() == "here\n"
            before = sorted(path.name for path in folder.iterdir())
            assert " running in " in user_error(RunDir.open, folder, {})
            assert sorted(path.name for path in folder.iterdir()) == before
            other.kill() if end == "kill" else other.stdin.close()
    for _ in range(2):  # one process, repeatedly
        RunDir.open(folder, {})


def test_what_cannot_be_a_new_file_is_refused(tmp_path):
    """Regression: `--html .` was a traceback."""
    check_new(tmp_path / "page.html")
    refused = {".": "exists", "/": "exists", "absent/page.html": "not exist"}
    for name, part in refused.items():
        with pytest.raises(UserError, match=part):
            check_new(Path(name))
