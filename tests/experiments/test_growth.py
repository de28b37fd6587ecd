"""Run folders that grow: more epochs, more models; the result is that of a run that was begun so."""

import json
import shutil
import signal

import jax
import numpy as np
import pytest
from commands import assert_user_error, load, records, row_of, settings_of, snapshot

from dynskip_jax.runs.run_dir import RunDir
from experiments import ptb, trained

PTB = ptb.COMMAND


def with_epochs(arguments, epochs):
    """A command line with another number of epochs, for which the last flag counts."""
    return (*arguments, "--epochs", epochs)


@pytest.mark.slow
def test_more_epochs_give_what_a_run_begun_with_as_many_gives(finished_ptb, command, tmp_path):
    """Bit for bit; and until they are trained, the folder has no result."""
    whole, arguments, _ = finished_ptb
    folder = tmp_path / "run"
    assert command(PTB, *with_epochs(arguments, 1), "--run-dir", folder).status == 0
    short = row_of(folder)
    assert (short["epochs"], short["epochs_asked"]) == (1, 1)

    grown = command(PTB, *arguments, "--run-dir", folder)
    assert grown.status == 0, grown.err
    assert "resuming after step 18 (epoch 2)" in grown.out and "finished already" not in grown.out
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    ours, theirs = (row_of(path) for path in (folder, whole))
    assert (ours["epochs"], ours["epochs_asked"]) == (2, 2)
    for name in ("metrics", "best_epoch", "epochs", "epochs_asked", "seeds", "parameters"):
        assert ours[name] == theirs[name]
    one, other = (trained.load(path).params for path in (folder, whole))
    jax.tree.map(np.testing.assert_array_equal, one, other)

    # The folder is now one of two epochs, begun twice.
    config, expected = (load(path / "config.json") for path in (folder, whole))
    first, second = config.pop("about")
    assert first["date"] <= second["date"] and first.keys() == second.keys()
    assert len(expected.pop("about")) == 1
    assert config == expected
    before = snapshot(folder)
    fewer = command(PTB, *with_epochs(arguments, 1), "--run-dir", folder)
    assert_user_error(fewer, "settings.training.epochs was 2 and is now 1")
    assert snapshot(folder) == before


@pytest.mark.slow
def test_a_run_that_grows_and_is_stopped_has_no_result(finished_ptb, command, tmp_path, monkeypatch):
    """Its checkpoints are no longer those of the old one."""
    folder = tmp_path / "run"
    shutil.copytree(finished_ptb.folder, folder)
    log = RunDir.log

    def log_and_terminate(run_dir, record):
        log(run_dir, record)
        signal.raise_signal(signal.SIGTERM)
        monkeypatch.setattr(RunDir, "log", log)

    monkeypatch.setattr(RunDir, "log", log_and_terminate)
    arguments = with_epochs(finished_ptb.arguments, 4)
    assert command(PTB, *arguments, "--run-dir", folder).status == 130
    assert_user_error(command(PTB, "explain", "--run-dir", folder, "--text", "a"), "has not finished")
    resumed = command(PTB, *arguments, "--run-dir", folder)
    assert resumed.status == 0 and "resuming after step 54" in resumed.out
    assert row_of(folder)["epochs"] == 4
    assert [r["epoch"] for r in records(folder) if r["split"] == "dev"] == [1, 2, 3, 4]


def test_a_comparison_gains_models_and_keeps_those_it_has(compared_ptb, command, corpus_folder, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(compared_ptb.folder, folder)
    before = {name: snapshot(folder / name) for name in ("lstm", "dynamic-3")}
    arguments = [a if a != "lstm,dynamic:3" else "fixed:2,lstm,dynamic:3" for a in compared_ptb.arguments]
    grown = command(PTB, *arguments, "--run-dir", folder)
    assert grown.status == 0, grown.err
    assert grown.out.count("finished already") == 2
    assert {name: snapshot(folder / name) for name in before} == before
    config = load(folder / "config.json")
    assert config["models"] == ["fixed:2", "lstm", "dynamic:3"] and len(config["about"]) == 2
    rows = load(folder / "result.json")["rows"]
    assert [row["model"] for row in rows] == config["models"]
    assert rows[1:] == load(compared_ptb.folder / "result.json")["rows"]
    assert list(trained.load_all(folder)) == config["models"]

    # It loses none, and takes none beside another change.
    kept = snapshot(folder)
    fewer = [a if a != "lstm,dynamic:3" else "lstm,fixed:2" for a in compared_ptb.arguments]
    outcome = command(PTB, *fewer, "--run-dir", folder)
    assert_user_error(outcome, 'models was ["fixed:2", "lstm", "dynamic:3"]', json.dumps(["lstm", "fixed:2"]))
    more = [a.replace("fixed:2", "fixed:2,fixed:3") if isinstance(a, str) else a for a in arguments]
    outcome = command(PTB, *more, "--mix", 0.25, "--run-dir", folder)
    assert_user_error(outcome, "settings.agent.mix was 0.5 and is now 0.25")
    assert snapshot(folder) == kept
    assert settings_of(folder)["mix"] == 0.5


def test_a_run_that_cannot_grow_keeps_its_result(finished_ptb, command, tmp_path):
    """What is damaged is found before anything is changed, and the old command still finds the run."""
    folder = tmp_path / "run"
    shutil.copytree(finished_ptb.folder, folder)
    metrics = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text("garbage\n" + metrics)
    before = snapshot(folder)
    arguments = with_epochs(finished_ptb.arguments, 2)
    assert_user_error(command(PTB, *arguments, "--run-dir", folder), "line 1 of", "is not a JSON object")
    assert snapshot(folder) == before
    (folder / "metrics.jsonl").write_text(metrics)
    again = command(PTB, *finished_ptb.arguments, "--run-dir", folder)
    assert again.status == 0 and "finished already" in again.out
