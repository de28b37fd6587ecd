"""Check that a finished run is refused if its files differ from those of its result."""

import json
import shutil

import numpy as np
import pytest
from commands import PTB, assert_user_error, execute, load, succeed, tool, write_result
from quick import Quick

from dynskip_jax.tasks import Learner


@pytest.fixture
def folder(finished_ptb, tmp_path):
    return shutil.copytree(finished_ptb.folder, tmp_path / "run")


def explain(folder):
    return execute(PTB, "explain", "--run-dir", folder, "--text", "a b")


def test_two_words_exchanged_in_the_vocabulary(folder):
    """`explain` once printed a wrong perplexity, with exit status 0."""
    path = folder / "vocabulary.json"
    vocabulary = json.loads(path.read_text())
    words = next(value for value in vocabulary.values() if isinstance(value, list))
    words[1], words[2] = words[2], words[1]
    path.write_text(json.dumps(vocabulary))
    assert_user_error(explain(folder), "vocabulary.json", "not the file that the model was trained with")


def test_a_newest_checkpoint_that_is_missing_or_under_another_ones_name(folder):
    """This happens after an incomplete copy. An older checkpoint was once loaded without a message."""
    older, newest = sorted((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))
    shutil.rmtree(newest)
    assert_user_error(explain(folder), f"lacks the checkpoint of step {newest.name}", f"step {older.name}")
    older.rename(newest)
    assert_user_error(explain(folder), "restore it")


@pytest.mark.parametrize(("name", "old"), [("config.json", '"init_scale": '), ("result.json", '"mean": ')])
def test_a_digit_changed_in_settings_or_results(folder, name, old):
    """A changed setting of the model once changed the predictions, with exit status 0."""
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, f"{old}1", 1))
    assert_user_error(explain(folder), name, "restore it")


def test_a_model_of_nans_has_no_result_whatever_its_accuracy(tmp_path, monkeypatch):
    """Its accuracy is finite, because a constant answer is sometimes right."""
    evaluate, folder = Learner.evaluate, tmp_path / "run"

    def with_nan(*arguments, **how):
        metrics = evaluate(*arguments, **how)
        return {name: value * np.nan if name.endswith("nll") else value for name, value in metrics.items()}

    monkeypatch.setattr(Learner, "evaluate", with_nan)
    outcome = execute(Quick, "--batch-size", 20, "--devices", 1, "--run-dir", folder)
    assert outcome.status == 2 and "steps were skipped" in outcome.err
    assert not (folder / "result.json").exists()


# Edits that leave the JSON syntax valid: the file, the path of the entry, and an invalid value.
EDITED = [
    ("config.json", "experiment", ["ptb"]),
    ("config.json", "models", [5]),
    ("config.json", "about", [{"paths": 5}]),
    ("config.json", "settings", 5),
    ("config.json", "settings.model.features", "x"),
    ("config.json", "settings.training.learning_rate", {"a": 1}),
    ("config.json", "settings.run.seeds", "two"),
    ("config.json", "dataset.fingerprint", 5),
    ("result.json", "rows", []),
    ("result.json", "rows.0.metrics.dev_perplexity", {}),
    ("result.json", "rows.0.metrics.dev_perplexity.per_seed", ["x"]),
    ("result.json", "rows.0.seeds", [7]),
    *(("result.json", "rows.0.seeds", wrong) for wrong in (10**15, [10**400], [0] * 10**5)),
    ("result.json", "rows.0.model", ".."),
    ("result.json", "rows.0.selected", 5),
    ("result.json", "rows.0.checkpoint", {"step": 1}),
    ("vocabulary.json", "", 5),
]


@pytest.mark.parametrize(("name", "place", "value"), EDITED, ids=[f"{n}.{p}={v}"[:60] for n, p, v in EDITED])
def test_json_of_the_right_syntax_edited_by_hand(name, place, value, folder, finished_ptb):
    document = load(folder / name)
    if place:
        inner, keys = document, [int(key) if key.isdigit() else key for key in place.split(".")]
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
    if name != "result.json":
        (folder / name).write_text(json.dumps(document if place else value))
    write_result(folder, document if name == "result.json" else load(folder / "result.json"))
    assert_user_error(explain(folder), str(folder))
    again = execute(PTB, *finished_ptb.arguments, "--run-dir", folder)
    if again.status or (name != "vocabulary.json" and value != [7]):  # rewritten; not needed for a table
        assert_user_error(again, str(folder))
    succeed(tool("report"), folder, finished_ptb.folder)


@pytest.mark.parametrize("name", ["config.json", "result.json", "vocabulary.json", "metrics.jsonl"])
def test_json_nested_too_deep(name, folder, finished_ptb):
    (folder / name).write_text("[" * 200_000 + "\n")
    if name != "metrics.jsonl":
        assert_user_error(explain(folder), str(folder))
    again = execute(PTB, *finished_ptb.arguments, "--epochs", 3, "--run-dir", folder)
    if name != "vocabulary.json":  # training rewrites it
        assert_user_error(again, str(folder))
