"""Check that files of two runs, or of two times of one run, are never taken for those of one run."""

import os
import shutil

import numpy as np
import pytest
from scripted import NUM_BATCHES, SGD, Scripted, assert_identical, metrics, shared_programs  # noqa: F401

from dynskip_jax.errors import Stopped, UserError
from dynskip_jax.training.checkpoint import Checkpoints
from dynskip_jax.training.folder import RunDir
from dynskip_jax.training.loop import FitSettings, fit

STOPPED = 2 * NUM_BATCHES + 1


def finished(folder, *, seed=0, epochs=2, **options):
    """Train a run, write its result, and return its parameters."""
    run = RunDir.open(folder, {"seed": seed, "epochs": epochs}, may_grow=["epochs"])
    settings = FitSettings((seed,), epochs, SGD, lambda epoch, history: np.ones(1), log_every=1)
    result = fit(Scripted([3, 2, 2.5, 1]), settings, run, **options)
    row = {"model": "m", "parameters": 1, "seeds": [seed], "metrics": {}, "wall_seconds": 1}
    run.write_result({"rows": [row | {"checkpoint": Checkpoints(run.checkpoints).fingerprint()}]})
    return result.params


def unfinished(folder, **options):
    """Train a run that stops in its third epoch."""
    with pytest.raises(Stopped):
        finished(folder, epochs=4, should_stop=lambda step: step == STOPPED, **options)


def assert_refused_and_unchanged(folder, message):
    content = lambda: {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    before = content()
    with pytest.raises(UserError, match=rf"^[^\n]*({message})[^\n]*$"):
        finished(folder, epochs=4)
    assert content() == before


def runs(made, seed):
    """Make two runs; the second one has this seed."""
    return lambda folder, other: (made(folder), made(other, seed=seed))


def times(folder, older):
    """Make a run that has grown, and a copy of it before."""
    finished(folder)
    shutil.copytree(folder, older)
    finished(folder, epochs=3)


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (runs(unfinished, 1), "checkpoints", f"checkpoint {STOPPED} is another run's"),
        (runs(unfinished, 0), "checkpoints", f"checkpoint {STOPPED} is another run's"),  # of equal settings
        (runs(unfinished, 1), "config.json", "a run with other settings .*seed was 1"),
        (runs(unfinished, 0), "config.json", f"checkpoint {STOPPED} is another run's"),
        (runs(unfinished, 1), "metrics.jsonl", f"does not hold the {STOPPED} steps of the checkpoint"),
        (runs(finished, 0), "result.json", "does not hold the settings that the model was trained with"),
        (runs(finished, 0), "checkpoints", "checkpoint 6 is another run's"),
        (times, "checkpoints", "lacks the checkpoint of step 9 .*that of step 6 is another"),
        (times, "metrics.jsonl", "does not hold the records of the result"),
        (runs(finished, 1), "metrics.jsonl", "does not hold the records of the result"),
        (times, "result.json", "does not hold the settings"),
    ],
)
def test_files_of_two_runs_or_times_are_refused(make, name, message, tmp_path):
    """Another run's checkpoints were once taken, and its numbers reported as this run's."""
    folder, other = tmp_path / "run", tmp_path / "other"
    make(folder, other)
    (folder / name).rename(tmp_path / "away")
    (other / name).rename(folder / name)
    assert_refused_and_unchanged(folder, message)


@pytest.mark.parametrize("made", [finished, unfinished])
def test_lost_checkpoints_are_named_before_anything_is_removed(made, tmp_path):
    """The run once began again at epoch 1, without its old result and records."""
    folder = tmp_path / "run"
    made(folder)
    (folder / "checkpoints").rename(tmp_path / "away")
    (folder / "checkpoints").mkdir()
    assert_refused_and_unchanged(folder, r"checkpoint of step 6 .*\(it has none\)|there is no checkpoint")


def test_without_its_newest_checkpoint_or_its_metrics_a_run_goes_on_and_says_so(tmp_path, caplog):
    expected = finished(tmp_path / "whole", epochs=4)
    unfinished(folder := tmp_path / "older checkpoint")
    shutil.rmtree(folder / "checkpoints" / str(STOPPED))
    assert_identical(finished(folder, epochs=4), expected)
    assert metrics(folder) == metrics(tmp_path / "whole")
    unfinished(folder := tmp_path / "no metrics")
    os.remove(folder / "metrics.jsonl")
    assert_identical(finished(folder, epochs=4), expected)
    assert f"the records up to step {STOPPED} are lost" in caplog.text
    assert metrics(folder)[0]["step"] == STOPPED + 1
    finished(folder := tmp_path / "damaged")
    (folder / "checkpoints" / "6" / "document" / "metadata").write_text("{")
    assert_identical(finished(folder, epochs=4), expected)
    assert f"checkpoint 6 in {folder / 'checkpoints'} is unreadable (" in caplog.text
