"""Check the event files that the flag --tensorboard writes while a run trains."""

import signal
import sys

import pytest
import quick
from commands import assert_user_error, events_in, execute, records, snapshot, succeed

from dynskip_jax.training.folder import RunDir


def test_points_are_written_while_training_and_once_each(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    folder, log = tmp_path / "run", RunDir.log
    arguments = ("--seeds", 2, "--epochs", 3, "--devices", 1, "--tensorboard", "--run-dir", folder)

    def points():
        return [(step, name) for step, name, _ in events_in(folder / "tensorboard" / "seed-1")]

    def logged():
        others = ("step", "epoch", "examples", "split")
        return [(record["step"], name) for record in records(folder) for name in record if name not in others]

    def log_and_stop(run_dir, record):
        log(run_dir, record)
        if record["split"] == "dev" and record["epoch"] == 2:
            written = points()  # at least the first epoch's: the library writes in another thread
            assert written == logged()[: len(written)] and written[-1][0] >= records(folder)[0]["step"]
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)  # the second one stops at once: nothing is saved

    monkeypatch.setattr(RunDir, "log", log_and_stop)
    assert execute(quick.Quick, *arguments).status == 130
    monkeypatch.setattr(RunDir, "log", log)
    before = points()
    succeed(quick.Quick, *arguments)
    after = points()
    assert len(after) > len(before) and after == logged()


def test_without_the_library_nothing_is_trained(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    outcome = execute(quick.Quick, "--tensorboard", "--run-dir", tmp_path / "run")
    assert_user_error(outcome, 'pip install -e ".[tensorboard]"')
    assert not snapshot(tmp_path)
