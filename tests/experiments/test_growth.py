"""Check that a run folder can gain epochs and models, with the same result as a run begun with
them.
"""

import json
import re
import shutil
import signal

import jax
import numpy as np
import pytest
import quick
from commands import PTB, assert_user_error, execute, load, records, row_of, snapshot, succeed

from dynskip_jax.runs import pictures
from dynskip_jax.runs.load import load_models, load_run
from dynskip_jax.storage.folder import RunDir
from dynskip_jax.tasks.learner import Learner


@pytest.fixture
def folder(finished_quick, tmp_path):
    return shutil.copytree(finished_quick.folder, tmp_path / "run")


def test_more_epochs_give_what_a_run_begun_with_as_many_gives(finished_quick, tmp_path):
    whole, arguments, _ = finished_quick
    folder = tmp_path / "run"
    succeed(quick.Quick, *arguments, "--epochs", 1, "--run-dir", folder)
    assert (row_of(folder)["epochs"], row_of(folder)["epochs_asked"]) == (1, 1)
    grown = succeed(quick.Quick, *arguments, "--run-dir", folder)
    assert "resuming after step 3 (epoch 2)" in grown.out and "finished already" not in grown.out
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    for name in ("metrics", "best_epoch", "epochs", "epochs_asked", "seeds", "parameters"):
        assert row_of(folder)[name] == row_of(whole)[name]
    one, other = (load_run(path).params for path in (folder, whole))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    # The folder is now that of a run of two epochs, begun twice.
    config, expected = (load(path / "config.json") for path in (folder, whole))
    first, second = config.pop("about")
    assert first["date"] <= second["date"] and first.keys() == second.keys()
    assert len(expected.pop("about")) == 1
    assert config == expected
    before = snapshot(folder)
    fewer = execute(quick.Quick, *arguments, "--epochs", 1, "--run-dir", folder)
    assert_user_error(fewer, "settings.training.epochs was 2 and is now 1")
    assert snapshot(folder) == before


def test_a_run_that_grows_and_is_stopped_has_no_result(finished_quick, folder, monkeypatch):
    log, arguments = RunDir.log, (*finished_quick.arguments, "--epochs", 4, "--run-dir", folder)

    def log_and_terminate(run_dir, record):
        log(run_dir, record)
        signal.raise_signal(signal.SIGTERM)
        monkeypatch.setattr(RunDir, "log", log)

    monkeypatch.setattr(RunDir, "log", log_and_terminate)
    assert execute(quick.Quick, *arguments).status == 130
    explained = execute(quick.Quick, "explain", "--run-dir", folder, "--text", "1 2 3 4")
    assert_user_error(explained, "has not finished")
    resumed = succeed(quick.Quick, *arguments)
    assert "resuming after step 9" in resumed.out
    assert row_of(folder)["epochs"] == 4
    assert [r["epoch"] for r in records(folder) if r["split"] == "dev"] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("place", "number"), [("evaluate", signal.SIGINT), ("draw", signal.SIGTERM)], ids=str
)
def test_a_signal_in_the_final_evaluation_stops_in_one_line(
    number, place, finished_quick, tmp_path, monkeypatch
):
    """Regression: Ctrl-C ended at once with a traceback or without a word, and SIGTERM silently."""
    arguments = (*finished_quick.arguments, "--compare", "lstm,fixed:2", "--run-dir", tmp_path)
    owner, name = {"evaluate": (Learner, "evaluate"), "draw": (pictures, "draw_positions")}[place]
    usual = getattr(owner, name)

    def and_signal(*given, **options):
        if place == "draw" or given[2] == "test":
            signal.raise_signal(number)
            monkeypatch.setattr(owner, name, usual)
        return usual(*given, **options)

    monkeypatch.setattr(owner, name, and_signal)
    stopped = execute(quick.Quick, *arguments)
    where = "before fixed:2" if place == "draw" else "in the evaluation of lstm"
    assert stopped.status == 130 and "Traceback" not in stopped.out + stopped.err
    assert re.search(
        rf"^stopped {where}.*; the same command with --run-dir {tmp_path} goes on$",
        stopped.err.splitlines()[-1],
    )
    trained = records(tmp_path / "lstm")
    again = succeed(quick.Quick, *arguments)
    assert ("lstm: finished already" in again.out) == (place == "draw")
    assert records(tmp_path / "lstm") == trained  # it is evaluated again, not trained
    assert row_of(tmp_path / "lstm")["metrics"] == row_of(finished_quick.folder)["metrics"]
    assert row_of(tmp_path / "fixed-2")["epochs"] == 2


def test_a_comparison_gains_models_and_keeps_those_it_has(swept_quick, tmp_path):
    folder, given = shutil.copytree(swept_quick.folder, tmp_path / "run"), swept_quick.arguments
    first, starts = load(folder / "result.json")["rows"], len(load(folder / "config.json")["about"])
    before = {name: snapshot(folder / name) for name in ("lstm", "fixed-2")}
    grown = succeed(quick.Quick, *given, "--compare", "fixed:3,lstm,fixed:2", "--run-dir", folder)
    assert grown.out.count("finished already") == 2
    assert {name: snapshot(folder / name) for name in before} == before
    config, rows = load(folder / "config.json"), load(folder / "result.json")["rows"]
    assert config["models"] == ["fixed:3", "lstm", "fixed:2"] and len(config["about"]) == starts + 1
    assert [row["model"] for row in rows] == config["models"] == list(load_models(folder))
    assert rows[1:] == first
    kept = snapshot(folder)
    outcome = execute(quick.Quick, *given, "--compare", "lstm,fixed:3", "--run-dir", folder)
    assert_user_error(
        outcome, 'models was ["fixed:3", "lstm", "fixed:2"]', json.dumps(["lstm", "fixed:3"])
    )
    both = ("--compare", "fixed:4,fixed:3,lstm,fixed:2", "--clip", 0.25, "--run-dir", folder)
    outcome = execute(quick.Quick, *given, *both)
    assert_user_error(outcome, "settings.training.clip was null and is now 0.25")
    assert snapshot(folder) == kept


def test_what_may_not_grow(finished_quick, tmp_path):
    """A schedule over all epochs does not: trained epochs would have had another."""
    arguments = (*finished_quick.arguments, "--run-dir", tmp_path / "run")
    scheduled = ("--model", "dynamic:2", "--entropy-coef", 0.1, "--entropy-coef-final", 0)
    first = succeed(quick.Quick, *arguments, *scheduled, "--epochs", 9, "--patience", 1)
    assert re.search(r"stopped after epoch \d: no better dev accuracy for 1 epochs", first.out)
    refused = execute(quick.Quick, *arguments, *scheduled, "--epochs", 10, "--patience", 8)
    assert_user_error(refused, "training.epochs was 9 and is now 10", "patience was 1")


def test_a_corpus_folder_that_was_renamed(finished_ptb, corpus_folder, tmp_path):
    folder = shutil.copytree(finished_ptb.folder, tmp_path / "run")
    renamed = shutil.copytree(corpus_folder, tmp_path / "renamed")
    arguments = [renamed if part == corpus_folder else part for part in finished_ptb.arguments]
    outcome = succeed(PTB, *arguments, "--run-dir", folder)
    assert "finished already" in outcome.out
    (renamed / "valid.txt").write_text("a b c d\n")
    other = execute(PTB, *arguments, "--run-dir", folder)
    assert_user_error(other, f"{folder} was trained on other data: ")
