"""Check that files of two runs, or of two times of one, are never taken for one run's."""

import json
import os
import shutil

import numpy as np
import pytest
from scripted import NUM_BATCHES, SGD, Scripted, assert_identical, metrics, shared_programs  # noqa: F401

from dynskip_jax.errors import Stopped, UserError
from dynskip_jax.training import checkpoint
from dynskip_jax.training.checkpoint import Checkpoints
from dynskip_jax.training.files import append_line
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
        # Of equal settings.
        (
            runs(unfinished, 0),
            "checkpoints",
            f"checkpoint {STOPPED} is another run's",
        ),
        (runs(unfinished, 1), "config.json", "a run with other settings .*seed was 1"),
        (runs(unfinished, 0), "config.json", f"checkpoint {STOPPED} is another run's"),
        (
            runs(unfinished, 1),
            "metrics.jsonl",
            f"does not hold the {STOPPED} steps of the checkpoint",
        ),
        (
            runs(finished, 0),
            "result.json",
            "does not hold the settings that the model was trained with",
        ),
        (runs(finished, 0), "checkpoints", "checkpoint 6 is another run's"),
        (times, "checkpoints", "lacks the checkpoint of step 9 .*that of step 6 is another"),
        (times, "metrics.jsonl", "does not hold the records of the result"),
        (runs(finished, 1), "metrics.jsonl", "does not hold the records of the result"),
        (times, "result.json", "does not hold the settings"),
    ],
)
def test_files_of_two_runs_or_times_are_refused(make, name, message, tmp_path):
    """Another run's checkpoints were once taken, and its numbers reported as this run's."""
    folder = tmp_path / "run"
    other = tmp_path / "other"
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
    assert_refused_and_unchanged(
        folder, r"checkpoint of step 6 .*\(it has none\)|there is no checkpoint"
    )


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


# Entries of a checkpoint's progress, with a right checksum, and the entry that is named.
PROGRESS = [
    ({}, "epoch, batch, step, seconds, history, best_epoch, best_value"),
    ({"step": "7"}, "step"),
    ({"step": 6}, "step"),
    ({"epoch": -5}, "epoch"),
    ({"epoch": 1}, "history"),
    ({"seconds": 1e400}, "seconds"),
    ({"history": [[1], []]}, "history"),
    ({"best_epoch": []}, "best_epoch"),
    ({"best_epoch": [9]}, "best_epoch"),
    ({"best_value": [None]}, "best_value"),
    ({"run": None}, "is another run's"),
]


@pytest.mark.parametrize(("changed", "named"), PROGRESS, ids=str)
def test_a_checkpoint_without_the_progress_of_this_run_is_refused(changed, named, tmp_path):
    """Regression: a stranger's was a KeyError or a TypeError."""
    unfinished(tmp_path)
    path = tmp_path / "checkpoints" / str(STOPPED) / "document" / "metadata"
    document = json.loads(path.read_text())
    document["meta"] = document["meta"] | changed if changed else {}
    document["sha256"] = checkpoint._digest(document)
    path.write_text(json.dumps(document))
    assert_refused_and_unchanged(tmp_path, rf"checkpoint {STOPPED} .*{named}")


# --- Files that others change while a run trains ---


def edit(name, old, new):
    def change(folder, other):
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return change


def take(name):
    return lambda folder, other: shutil.copy(other / name, folder / name)


def remove(name):
    return lambda folder, other: os.remove(folder / name)


WHILE_IT_TRAINS = {
    "a setting": (
        edit("config.json", '"seed": 0', '"seed": 9'),
        r"config.json .*seed was 0 and is now 9",
    ),
    "a growing setting": (
        edit("config.json", '"epochs": 2', '"epochs": 3'),
        "epochs was 2 and is now 3",
    ),
    "no settings": (edit("config.json", "{", "["), "does not hold a valid configuration"),
    "another run's settings": (take("config.json"), "was replaced by that of another run"),
    "a number in the records": (
        edit("metrics.jsonl", "0.", "1."),
        "metrics.jsonl was changed or removed",
    ),
    "another run's records": (take("metrics.jsonl"), "metrics.jsonl was changed or removed"),
    "a record more": (
        lambda folder, other: append_line(folder / "metrics.jsonl", "{}"),
        "metrics.jsonl was",
    ),
    "no records": (remove("metrics.jsonl"), "metrics.jsonl was changed or removed"),
}


LAST = 2 * NUM_BATCHES  # after it nothing is saved but the result


@pytest.mark.parametrize(
    ("name", "step"),
    [
        *((name, NUM_BATCHES + 1) for name in WHILE_IT_TRAINS),
        ("a setting", LAST),
        ("no records", LAST),
    ],
)
def test_files_that_are_changed_while_a_run_trains_are_found(name, step, tmp_path):
    """Regression: settings edited after the first checkpoint became those of the result."""
    folder = tmp_path / "run"
    other = tmp_path / "other"
    expected = finished(other, seed=0 if name == "no records" else 1)
    change, message = WHILE_IT_TRAINS[name]

    def change_then(now):
        if now == step:
            shutil.copy(folder / "config.json", tmp_path / "config.json")
            change(folder, other)

    with pytest.raises(UserError, match=rf"^[^\n]*{message}[^\n]*$"):
        finished(folder, should_stop=change_then)
    assert not (folder / "result.json").exists()
    if name == "no records":  # as the message says, the run goes on without them
        (folder / "metrics.jsonl").unlink(missing_ok=True)
        assert_identical(finished(folder), expected)
    if "setting" in name:
        shutil.copy(tmp_path / "config.json", folder / "config.json")
        finished(folder)
        assert metrics(folder)[-1]["epoch"] == 2
