"""Check that a run folder can gain epochs and models, with the same result as a run begun with them."""

import json
import shutil
import signal

import jax
import numpy as np
import pytest
import quick
from commands import COMMANDS, SMALL_NUMBERS, assert_user_error, load, records, row_of, settings_of, snapshot

from dynskip_jax.trained import load_models, load_run
from dynskip_jax.training.folder import RunDir


def with_epochs(arguments, epochs):
    """Return a command line with another number of epochs; the last --epochs flag counts."""
    return (*arguments, "--epochs", epochs)


def test_more_epochs_give_what_a_run_begun_with_as_many_gives(finished_quick, command, tmp_path):
    """Metrics and parameters are equal bit for bit.

    A later command with fewer epochs is refused.
    """
    whole, arguments, _ = finished_quick
    folder = tmp_path / "run"
    assert command(quick.Quick, *with_epochs(arguments, 1), "--run-dir", folder).status == 0
    short = row_of(folder)
    assert (short["epochs"], short["epochs_asked"]) == (1, 1)

    grown = command(quick.Quick, *arguments, "--run-dir", folder)
    assert grown.status == 0, grown.err
    assert "resuming after step 3 (epoch 2)" in grown.out and "finished already" not in grown.out
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    ours, theirs = (row_of(path) for path in (folder, whole))
    assert (ours["epochs"], ours["epochs_asked"]) == (2, 2)
    for name in ("metrics", "best_epoch", "epochs", "epochs_asked", "seeds", "parameters"):
        assert ours[name] == theirs[name]
    one, other = (load_run(path).params for path in (folder, whole))
    jax.tree.map(np.testing.assert_array_equal, one, other)

    # The folder is now that of a run of two epochs, begun twice.
    config, expected = (load(path / "config.json") for path in (folder, whole))
    first, second = config.pop("about")
    assert first["date"] <= second["date"] and first.keys() == second.keys()
    assert len(expected.pop("about")) == 1
    assert config.pop("run") != expected.pop("run")
    assert config == expected
    before = snapshot(folder)
    fewer = command(quick.Quick, *with_epochs(arguments, 1), "--run-dir", folder)
    assert_user_error(fewer, "settings.training.epochs was 2 and is now 1")
    assert snapshot(folder) == before


def test_a_run_that_grows_and_is_stopped_has_no_result(finished_quick, command, tmp_path, monkeypatch):
    """Its checkpoints no longer belong to the old result."""
    folder = tmp_path / "run"
    shutil.copytree(finished_quick.folder, folder)
    log = RunDir.log

    def log_and_terminate(run_dir, record):
        log(run_dir, record)
        signal.raise_signal(signal.SIGTERM)
        monkeypatch.setattr(RunDir, "log", log)

    monkeypatch.setattr(RunDir, "log", log_and_terminate)
    arguments = with_epochs(finished_quick.arguments, 4)
    assert command(quick.Quick, *arguments, "--run-dir", folder).status == 130
    explained = command(quick.Quick, "explain", "--run-dir", folder, "--text", "1 2 3 4")
    assert_user_error(explained, "has not finished")
    resumed = command(quick.Quick, *arguments, "--run-dir", folder)
    assert resumed.status == 0 and "resuming after step 9" in resumed.out
    assert row_of(folder)["epochs"] == 4
    assert [r["epoch"] for r in records(folder) if r["split"] == "dev"] == [1, 2, 3, 4]


def test_a_comparison_gains_models_and_keeps_those_it_has(swept_quick, command, tmp_path):
    """A command that drops a model, or adds one together with another change, is refused."""
    folder, given = shutil.copytree(swept_quick.folder, tmp_path / "run"), swept_quick.arguments
    first, starts = load(folder / "result.json")["rows"], len(load(folder / "config.json")["about"])
    before = {name: snapshot(folder / name) for name in ("lstm", "fixed-2")}
    more = (*given, "--compare", "fixed:3,lstm,fixed:2")
    grown = command(quick.Quick, *more, "--run-dir", folder)
    assert grown.status == 0, grown.err
    assert grown.out.count("finished already") == 2
    assert {name: snapshot(folder / name) for name in before} == before
    config = load(folder / "config.json")
    assert config["models"] == ["fixed:3", "lstm", "fixed:2"] and len(config["about"]) == starts + 1
    rows = load(folder / "result.json")["rows"]
    assert [row["model"] for row in rows] == config["models"]
    assert rows[1:] == first
    assert list(load_models(folder)) == config["models"]

    kept = snapshot(folder)
    outcome = command(quick.Quick, *given, "--compare", "lstm,fixed:3", "--run-dir", folder)
    assert_user_error(outcome, 'models was ["fixed:3", "lstm", "fixed:2"]', json.dumps(["lstm", "fixed:3"]))
    both = (*given, "--compare", "fixed:4,fixed:3,lstm,fixed:2", "--clip", 0.25)
    outcome = command(quick.Quick, *both, "--run-dir", folder)
    assert_user_error(outcome, "settings.training.clip was null and is now 0.25")
    assert snapshot(folder) == kept
    assert settings_of(folder)["clip"] is None


def test_a_run_that_cannot_grow_keeps_its_result(finished_quick, command, tmp_path):
    """Damage is found before anything is changed, and the command finds the finished run after a repair."""
    folder = tmp_path / "run"
    shutil.copytree(finished_quick.folder, folder)
    metrics = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text("garbage\n" + metrics)
    before = snapshot(folder)
    arguments = with_epochs(finished_quick.arguments, 3)
    damaged = command(quick.Quick, *arguments, "--run-dir", folder)
    assert_user_error(damaged, "line 1 of", "is not a JSON object")
    assert snapshot(folder) == before
    (folder / "metrics.jsonl").write_text(metrics)
    again = command(quick.Quick, *finished_quick.arguments, "--run-dir", folder)
    assert again.status == 0 and "finished already" in again.out


@pytest.mark.slow
def test_a_schedule_over_all_epochs_does_not_grow(tmp_path, small_number_prediction, command):
    """The error names the schedule's flag.

    With more epochs, the entropy coefficient of the trained epochs would have been different.
    """
    folder, scheduled = tmp_path / "run", ("--entropy-coef", 0.1, "--entropy-coef-final", 0)
    arguments = (*SMALL_NUMBERS, *scheduled, "--epochs", 1, "--run-dir", folder)
    assert command(COMMANDS["number_prediction"], *arguments).status == 0
    before = snapshot(folder)
    outcome = command(COMMANDS["number_prediction"], *with_epochs(arguments, 2))
    assert_user_error(outcome, "settings.training.epochs was 1 and is now 2", "--run-dir")
    assert snapshot(folder) == before


def test_a_corpus_folder_that_was_renamed(finished_ptb, corpus_folder, command, tmp_path):
    """A renamed folder with the same data is accepted; other data is refused."""
    folder = shutil.copytree(finished_ptb.folder, tmp_path / "run")
    renamed = shutil.copytree(corpus_folder, tmp_path / "renamed")
    arguments = [renamed if part == corpus_folder else part for part in finished_ptb.arguments]
    outcome = command(COMMANDS["ptb"], *arguments, "--run-dir", folder)
    assert outcome.status == 0 and "finished already" in outcome.out, outcome.err
    (renamed / "valid.txt").write_text("a b c d\n")
    other = command(COMMANDS["ptb"], *arguments, "--run-dir", folder)
    assert_user_error(other, "dataset.fingerprint was")
