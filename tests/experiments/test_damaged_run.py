"""Check what comes of a run folder that is removed, and of models of NaNs."""

import shutil

import numpy as np
import pytest
from commands import PTB, assert_user_error, execute, succeed
from quick import Quick

from dynskip_jax import load_run
from dynskip_jax.storage.folder import RunDir
from dynskip_jax.tasks import Learner


@pytest.fixture
def folder(finished_ptb, tmp_path):
    return shutil.copytree(finished_ptb.folder, tmp_path / "run")


def explain(folder):
    return execute(PTB, "explain", "--run-dir", folder, "--text", "a b")


def test_a_model_of_nans_has_no_result_whatever_its_accuracy(tmp_path, monkeypatch):
    """Its accuracy is finite, because a constant answer is sometimes right."""
    evaluate, folder = Learner.evaluate, tmp_path / "run"

    def with_nan(*arguments, **how):
        metrics = evaluate(*arguments, **how)
        return {
            name: value * np.nan if name.endswith("nll") else value
            for name, value in metrics.items()
        }

    monkeypatch.setattr(Learner, "evaluate", with_nan)
    outcome = execute(Quick, "--batch-size", 20, "--devices", 1, "--run-dir", folder)
    assert outcome.status == 2 and "steps were skipped" in outcome.err
    assert not (folder / "result.json").exists()


def test_a_run_folder_of_any_name_is_read_again_or_refused_before_training(
    finished_quick, tmp_path
):
    """Regression: a run in `x[1]` ended with status 0, and could not be read again."""
    folder = tmp_path / "x[1] *?\n{a}%20"
    succeed(Quick, *finished_quick.arguments, "--run-dir", folder)
    assert load_run(folder).seed == 0
    outcome = execute(Quick, *finished_quick.arguments, "--run-dir", tmp_path / "a\\b")
    assert_user_error(outcome, "backslash", "choose another --run-dir")
    assert not (tmp_path / "a\\b").exists() and not (tmp_path / "a").exists()


REMOVED = {
    "in an evaluation": (Learner, "evaluate", 2),
    "while a checkpoint is written": (RunDir, "save", 2),
}


@pytest.mark.parametrize("moment", REMOVED)
def test_a_run_folder_that_is_removed_while_it_trains(
    moment, tmp_path, monkeypatch, finished_quick
):
    """Regression: most were tracebacks."""
    owner, name, number = REMOVED[moment]
    usual, calls, folder = getattr(owner, name), [], tmp_path / "run"

    def remove_then(*arguments, **options):
        calls.append(name)
        if len(calls) == number:
            shutil.rmtree(folder)
        return usual(*arguments, **options)

    monkeypatch.setattr(owner, name, remove_then)
    outcome = execute(Quick, *finished_quick.arguments, "--run-dir", folder)
    error = outcome.err.splitlines(keepends=True)[-1]
    assert_user_error(outcome._replace(err=error), str(folder))
    assert "Traceback" not in outcome.err and not (folder / "result.json").exists()
