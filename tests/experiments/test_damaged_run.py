"""A finished run whose files are not those that its result was computed with is refused, not read."""

import json
import shutil

import numpy as np
import pytest
from commands import COMMANDS, SMALL_NUMBERS, assert_user_error, execute, load

from dynskip_jax.tasks import Learner

PTB = COMMANDS["ptb"]


@pytest.fixture
def folder(finished_ptb, tmp_path):
    return shutil.copytree(finished_ptb.folder, tmp_path / "run")


def explain(folder):
    return execute(PTB, "explain", "--run-dir", folder, "--text", "a b")


def test_two_words_exchanged_in_the_vocabulary(folder):
    """The perplexity of `explain` was another one, with exit status 0."""
    path = folder / "vocabulary.json"
    kept = json.loads(path.read_text())
    words = (
        next(value for value in kept.values() if isinstance(value, list)) if isinstance(kept, dict) else kept
    )
    words[1], words[2] = words[2], words[1]
    path.write_text(json.dumps(kept))
    assert_user_error(explain(folder), "vocabulary.json is not the file that the model was trained with")


def steps(folder):
    return sorted((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))


def test_a_newest_checkpoint_that_is_missing(folder):
    """As after an incomplete copy: an older one was loaded in silence."""
    older, newest = steps(folder)
    shutil.rmtree(newest)
    assert_user_error(explain(folder), f"lacks the checkpoint of step {newest.name}", f"step {older.name}")


def test_a_checkpoint_under_another_ones_name(folder):
    older, newest = steps(folder)
    shutil.rmtree(newest)
    older.rename(newest)
    assert_user_error(explain(folder), "restore it")


def test_a_result_of_an_older_version_is_still_read(folder):
    path = folder / "result.json"
    result = load(path)
    for name in ("checkpoint", "vocabulary_sha256"):
        assert result["rows"][0].pop(name)
    path.write_text(json.dumps(result))
    assert explain(folder).status == 0


def test_a_model_of_nans_has_no_result_whatever_its_accuracy(small_number_prediction, tmp_path, monkeypatch):
    """The same answer always is right now and then."""
    evaluate = Learner.evaluate

    def with_nan(*arguments, **how):
        metrics = evaluate(*arguments, **how)
        return {name: value * np.nan if name.endswith("nll") else value for name, value in metrics.items()}

    monkeypatch.setattr(Learner, "evaluate", with_nan)

    folder = tmp_path / "run"
    outcome = execute(
        COMMANDS["number_prediction"], "--model", "lstm", *SMALL_NUMBERS, "--epochs", 1, "--run-dir", folder
    )
    assert outcome.status == 2 and "steps were skipped" in outcome.err
    assert not (folder / "result.json").exists()
