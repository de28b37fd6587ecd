"""Check that a run folder is made once, resumed with equal settings, and safe from mistakes and crashes."""

import datetime
import errno
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import jax.numpy as jnp
import numpy as np
import pytest

from dynskip_jax.errors import UserError
from dynskip_jax.training.files import write_atomically
from dynskip_jax.training.folder import RunDir, new_folder

CONFIG = {"model": "dynamic:10", "optimizer": {"rate": 0.1, "betas": (0.9, 0.999)}, "seeds": 3, "data": None}


def user_error(path, config=CONFIG) -> str:
    with pytest.raises(UserError) as error:
        RunDir.open(path, config)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_open_makes_then_resumes(tmp_path):
    run = RunDir.open(tmp_path / "a" / "b", CONFIG)
    assert not run.resumed
    assert run.checkpoints.is_dir() and run.plots.is_dir()
    config = json.loads((run.path / "config.json").read_text())
    assert config == {**CONFIG, "optimizer": {"rate": 0.1, "betas": [0.9, 0.999]}}
    assert RunDir.open(str(run.path), CONFIG).resumed
    assert RunDir.open(run.path, config).resumed


def test_config_holds_what_json_does_not(tmp_path):
    config = {"data": Path("x/y"), "limit": math.inf, "size": np.int64(3), "rates": np.array([1.0, 2.0])}
    RunDir.open(tmp_path, config)
    assert RunDir.open(tmp_path, config).resumed
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "data": "x/y",
        "limit": "Infinity",
        "size": 3,
        "rates": [1.0, 2.0],
    }


def test_other_settings_are_named(tmp_path):
    RunDir.open(tmp_path, CONFIG)
    other = {"model": "lstm", "optimizer": {"rate": 0.2, "betas": (0.9, 0.999)}, "data": None, "new": True}
    message = user_error(tmp_path, other)
    assert 'model was "dynamic:10" and is now "lstm"' in message
    assert "optimizer.rate was 0.1 and is now 0.2" in message
    assert "seeds was 3 and is now not set" in message
    assert "betas" not in message and "new was" not in message
    assert "; and 1 more" in message
    assert "another --run-dir" in message and "the old settings" in message
    assert RunDir.open(tmp_path, CONFIG).resumed  # the old configuration is still there


def test_how_a_run_was_begun_is_kept_and_compared_with_nothing(tmp_path):
    RunDir.open(tmp_path, CONFIG, about={"command": "first", "limit": math.inf})
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("about") == [{"command": "first", "limit": "Infinity"}]
    assert config == json.loads(json.dumps(CONFIG))
    before = (tmp_path / "config.json").read_bytes()
    # Resuming with the same settings leaves the file unchanged.
    assert RunDir.open(tmp_path, CONFIG, about={"command": "again"}).resumed
    assert RunDir.open(tmp_path, CONFIG).resumed
    assert (tmp_path / "config.json").read_bytes() == before


def test_settings_that_may_grow(tmp_path):
    """Numbers may become larger and lists longer. The folder stores the new values and how they were set."""
    may_grow = ("training.epochs", "models")

    def opened(epochs, models, note, **more):
        config = {"training": {"epochs": epochs, "rate": 0.1}, "models": models, **more}
        return RunDir.open(tmp_path, config, about={"note": note}, may_grow=may_grow)

    def grown(*args):
        opened(*args).write_result({"epochs": 0})
        run = opened(*args)
        before = kept()
        assert run.resumed and run.result() == {"epochs": 0}  # the result stays until `go_on` is called
        run.go_on()
        assert run.result() is None and kept() != before

    def kept():
        config = json.loads((tmp_path / "config.json").read_text())
        return config["training"]["epochs"], config["models"], [about["note"] for about in config["about"]]

    opened(3, ["a"], "first")
    grown(5, ["a"], "longer")
    assert kept() == (5, ["a"], ["first", "longer"])
    grown(5, ["b", "a"], "wider")
    assert kept() == (5, ["b", "a"], ["first", "longer", "wider"])
    before = (tmp_path / "config.json").read_bytes()
    refused = [
        (lambda: opened(4, ["b", "a"], "x"), "training.epochs was 5 and is now 4"),
        (lambda: opened(5, ["a"], "x"), r'models was \["b", "a"\] and is now \["a"\]'),
        (lambda: opened(5, ["a", "c"], "x"), "models was"),
        (lambda: opened(5, ["a", "b"], "x"), "models was"),  # the order differs
        (lambda: opened(6, ["b", "a"], "x", extra=1), r"\(extra was not set and is now 1\)"),
        (lambda: opened(True, ["b", "a"], "x"), "training.epochs was 5 and is now true"),
        (lambda: opened(None, ["b", "a"], "x"), "training.epochs was 5 and is now null"),
        (lambda: opened(6, "b", "x"), 'models was .* and is now "b"'),
    ]
    for again, message in refused:
        with pytest.raises(UserError, match=message):
            again()
        assert (tmp_path / "config.json").read_bytes() == before


def test_a_run_of_another_format_is_named_as_such(tmp_path):
    RunDir.open(tmp_path, CONFIG)  # has no format number, as in early versions
    with pytest.raises(UserError, match="a run of format 1, and this version reads and writes format 2"):
        RunDir.open(tmp_path, {**CONFIG, "format": 2})


def test_folder_that_is_not_a_run_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    message = user_error(tmp_path)
    assert str(tmp_path) in message and "choose another --run-dir" in message
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_run_killed_while_writing_its_configuration_starts_again(tmp_path):
    (tmp_path / "config.json.tmp").write_text('{"mod')
    assert not RunDir.open(tmp_path, CONFIG).resumed
    assert RunDir.open(tmp_path, CONFIG).resumed
    assert not (tmp_path / "config.json.tmp").exists()


@pytest.mark.parametrize("text", ["{", "[1]", "\xff"])
def test_broken_configuration(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    assert "config.json does not hold a valid configuration" in user_error(tmp_path)


def test_path_is_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    assert "is a file, not a folder" in user_error(path)
    assert "choose another --run-dir" in user_error(path / "below")


def test_no_permission(tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    message = user_error(tmp_path / "new")
    assert "Permission denied" in message and "choose another --run-dir" in message


def test_log_is_valid_json_and_comes_back(tmp_path):
    run = RunDir.open(tmp_path, CONFIG)
    assert run.records() == []
    run.log({"step": 1, "loss": jnp.float32(0.5), "per_seed": np.array([1.5, np.nan])})
    run.log({"step": 2, "loss": math.inf, "low": -math.inf, "note": "α\nβ"})

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert len([json.loads(line, parse_constant=refuse) for line in lines]) == 2
    first, second = run.records()
    assert first["step"] == 1 and first["loss"] == 0.5
    assert first["per_seed"][0] == 1.5 and math.isnan(first["per_seed"][1])
    assert second == {"step": 2, "loss": math.inf, "low": -math.inf, "note": "α\nβ"}


def test_cut_off_last_line_is_ignored_then_removed(tmp_path):
    run = RunDir.open(tmp_path, CONFIG)
    for step in (1, 2, 3):
        run.log({"step": step})
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-4])
    assert [r["step"] for r in run.records()] == [1, 2]
    run.rewind(2)
    run.log({"step": 3})
    assert [r["step"] for r in run.records()] == [1, 2, 3]


def test_broken_line_in_the_middle_is_named(tmp_path):
    run = RunDir.open(tmp_path, CONFIG)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"line 2 of .*metrics\.jsonl is not a JSON object; delete that line"):
        run.records()


def test_rewind_drops_what_came_after_the_checkpoint(tmp_path):
    run = RunDir.open(tmp_path, CONFIG)
    run.rewind(0)  # nothing logged yet
    assert not (tmp_path / "metrics.jsonl").exists()
    records = [
        {"step": 1, "x": math.nan},
        {"note": "no step"},
        {"step": 5},
        {"step": 6},
        {"step": 5, "dev": 1},
    ]
    for record in records:
        run.log(record)
    run.rewind(5)
    kept = RunDir.open(tmp_path, CONFIG).records()
    assert math.isnan(kept[0].pop("x"))
    assert kept == [{"step": 1}, {"note": "no step"}, {"step": 5}, {"step": 5, "dev": 1}]


def test_result_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    run = RunDir.open(tmp_path, CONFIG)
    assert run.result() is None
    run.write_result({"accuracy": {"mean": 0.9, "std": math.nan}})
    assert math.isnan(run.result()["accuracy"]["std"])

    def crash(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="No space"):
        run.write_result({"accuracy": {"mean": 0.1}})
    assert run.result()["accuracy"]["mean"] == 0.9


def test_a_result_is_withdrawn_where_the_run_goes_on(tmp_path):
    run = RunDir.open(tmp_path, CONFIG)
    run.go_on()  # there is no result yet
    run.write_result({"accuracy": 1})
    run.go_on()
    assert run.result() is None and not (tmp_path / "result.json").exists()
    part = RunDir.open(tmp_path / "part", CONFIG, within=run)
    for each in (run, part):
        each.write_result({"accuracy": 1})
    part.go_on()
    assert run.result() is None and part.result() is None


def test_result_that_is_not_json(tmp_path):
    run = RunDir.open(tmp_path, CONFIG)
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(UserError, match=r"result\.json is not a JSON object; delete it"):
        run.result()


def test_a_new_folder_is_nobody_elses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    now = datetime.datetime(2024, 3, 9, 7, 5, 1)
    made = [new_folder("ptb", "dynamic:10", now) for _ in range(3)]
    assert made[0] == Path("runs/ptb/dynamic-10-20240309-070501") and made[0].is_dir()
    assert [path.name[-2:] for path in made[1:]] == ["-2", "-3"]
    assert new_folder("ptb", "a/../b c", now).parent == Path("runs/ptb")
    with ThreadPoolExecutor(4) as pool:
        names = list(pool.map(lambda _: new_folder("ptb", "lstm", now), range(20)))
    assert len(set(names)) == 20
    (tmp_path / "runs" / "sst").write_text("a file")
    with pytest.raises(UserError, match="choose another --run-dir"):
        new_folder("sst", "lstm", now)


def test_a_setting_that_is_newer_than_the_run_has_its_default_there(tmp_path):
    old, new = {"settings": {"a": 1}}, {"settings": {"a": 1, "later": 0.5}}
    RunDir.open(tmp_path, old)._lock.release()
    run = RunDir.open(tmp_path, new, defaults={"settings": {"a": 3, "later": 0.5}})
    assert run.resumed
    run._lock.release()
    with pytest.raises(UserError, match=r"settings.later was 0.7 and is now 0.5"):
        RunDir.open(tmp_path, new, defaults={"settings": {"a": 3, "later": 0.7}})


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_used_without_them(number, tmp_path, monkeypatch):
    def acquire(self):
        raise OSError(number, "no locks")

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    assert not RunDir.open(tmp_path, CONFIG).resumed
    assert RunDir.open(tmp_path, CONFIG).resumed


def test_a_folder_that_cannot_be_opened_is_written_all_the_same(tmp_path, monkeypatch):
    open_file = os.open

    def no_folders(path, *flags):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "folders cannot be opened")
        return open_file(path, *flags)

    monkeypatch.setattr(os, "open", no_folders)
    write_atomically(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "text"


def test_a_folder_in_which_another_process_runs_is_left_alone(tmp_path):
    """Two runs in one folder once deleted each other's checkpoints."""
    script = (
        "import sys; from dynskip_jax.training.folder import RunDir; "
        "run = RunDir.open(sys.argv[1], {}); print('here', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline() == "here\n"
        before = sorted(path.name for path in (tmp_path / "run").iterdir())
        with pytest.raises(UserError, match=r"another process is running in .*: wait for it, stop it"):
            RunDir.open(tmp_path / "run", {})
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before
        other.kill()
    # The system releases the lock of a killed process. One process may open the same run repeatedly.
    for _ in range(2):
        assert RunDir.open(tmp_path / "run", {}).resumed


def test_a_path_that_the_system_does_not_take_is_said_in_one_line():
    with pytest.raises(UserError, match="cannot use the run folder") as error:
        RunDir.open("a\0b", {})
    assert "\n" not in str(error.value)
