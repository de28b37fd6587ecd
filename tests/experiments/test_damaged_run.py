"""Check that a finished run is refused if its files differ from those of its result."""

import hashlib
import json
import shutil

import numpy as np
import orbax.checkpoint
import pytest
from commands import PTB, assert_user_error, execute, load, row_of, succeed, tool, write_result
from quick import Quick

from dynskip_jax import load_run, trained
from dynskip_jax.analysis import plots
from dynskip_jax.data.vocabularies import TaggerVocabulary
from dynskip_jax.errors import UserError
from dynskip_jax.tasks import Learner
from dynskip_jax.training.folder import RunDir


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
    assert_user_error(
        explain(folder), "vocabulary.json", "not the file that the model was trained with"
    )


def test_a_newest_checkpoint_that_is_missing_or_under_another_ones_name(folder):
    """This happens after an incomplete copy. An older checkpoint was once loaded without a
    message.
    """
    older, newest = sorted((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))
    shutil.rmtree(newest)
    assert_user_error(
        explain(folder), f"lacks the checkpoint of step {newest.name}", f"step {older.name}"
    )
    older.rename(newest)
    assert_user_error(explain(folder), "restore it")


@pytest.mark.parametrize(
    ("name", "old"), [("config.json", '"init_scale": '), ("result.json", '"mean": ')]
)
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
        return {
            name: value * np.nan if name.endswith("nll") else value
            for name, value in metrics.items()
        }

    monkeypatch.setattr(Learner, "evaluate", with_nan)
    outcome = execute(Quick, "--batch-size", 20, "--devices", 1, "--run-dir", folder)
    assert outcome.status == 2 and "steps were skipped" in outcome.err
    assert not (folder / "result.json").exists()


REMOVED = {
    "with a record": (RunDir, "log", 1, "no checkpoint yet"),
    "in an evaluation": (Learner, "evaluate", 2, "/checkpoints/3"),
    # It is complete.
    "while a checkpoint is written": (
        orbax.checkpoint.Checkpointer,
        "save",
        2,
        "/checkpoints/6",
    ),
    "while its models are drawn": (plots, "learning_curves", 1, "/checkpoints/6"),
    "before its result": (RunDir, "write_result", 1, "/checkpoints/6"),
}


@pytest.mark.parametrize("moment", REMOVED)
def test_a_run_folder_that_is_removed_while_it_trains(
    moment, tmp_path, monkeypatch, finished_quick
):
    """Regression: most were tracebacks, and none said how far the run had come."""
    owner, name, number, last = REMOVED[moment]
    usual, calls, folder = getattr(owner, name), [], tmp_path / "run"

    def remove_then(*arguments, **options):
        calls.append(name)
        if len(calls) == number:
            shutil.rmtree(folder)
        return usual(*arguments, **options)

    monkeypatch.setattr(owner, name, remove_then)
    outcome = execute(Quick, *finished_quick.arguments, "--run-dir", folder)
    error = outcome.err.splitlines(keepends=True)[-1]
    assert_user_error(outcome._replace(err=error), "was removed", last)
    assert "Traceback" not in outcome.err and not (folder / "result.json").exists()


# --- Metrics of a finished run ---

OTHER_METRICS = {
    "another run's": lambda path, other: shutil.copy(other / "metrics.jsonl", path),
    "edited": lambda path, other: path.write_text(path.read_text().replace("0.", "0.9", 1)),
    "without their last line": lambda path, other: path.write_text(
        path.read_text().rpartition('{"step"')[0]
    ),
    "deleted": lambda path, other: path.unlink(),
    "nested too deep": lambda path, other: path.write_text("[" * 900 + "]" * 900 + "\n"),
}


@pytest.mark.parametrize("name", OTHER_METRICS)
def test_metrics_that_are_not_those_of_the_finished_run(
    name, finished_quick, swept_quick, tmp_path
):
    """Regression: another run's were returned as this run's, and deleted ones were not missed."""
    folder = shutil.copytree(finished_quick.folder, tmp_path / "run")
    OTHER_METRICS[name](folder / "metrics.jsonl", swept_quick.folder / "lstm")
    parts = (f"{folder}/metrics.jsonl does not hold the records of the result", "restore it")
    assert_user_error(execute(Quick, "explain", "--run-dir", folder, "--text", "1 2 3 4"), *parts)
    assert_user_error(execute(Quick, *finished_quick.arguments, "--run-dir", folder), *parts)
    assert f"{parts[0]}" in succeed(tool("report"), folder, finished_quick.folder).out
    with pytest.raises(UserError, match="does not hold the records"):
        load_run(folder)
    # The remedy: without both files, the same command writes the result again.
    (folder / "result.json").unlink()
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    again = succeed(Quick, *finished_quick.arguments, "--run-dir", folder)
    assert "records up to step 6 are lost" in again.out
    assert row_of(folder)["metrics"] == row_of(finished_quick.folder)["metrics"]


def test_a_run_of_an_older_version_is_read(finished_quick, tmp_path):
    """Its result has no digest of its metrics."""
    folder = shutil.copytree(finished_quick.folder, tmp_path / "run")
    result = load(folder / "result.json")
    del result["metrics_sha256"]
    write_result(folder, result)
    succeed(Quick, "explain", "--run-dir", folder, "--text", "1 2 3 4")
    assert "left out" not in succeed(tool("report"), folder, finished_quick.folder).out
    assert len(load_run(folder).metrics) == len(load_run(finished_quick.folder).metrics)
    succeed(Quick, *finished_quick.arguments, "--epochs", 3, "--run-dir", folder)


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


@pytest.mark.parametrize(
    ("name", "place", "value"), EDITED, ids=[f"{n}.{p}={v}"[:60] for n, p, v in EDITED]
)
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
    # Rewritten; not needed for a table.
    if again.status or (name != "vocabulary.json" and value != [7]):
        assert_user_error(again, str(folder))
    succeed(tool("report"), folder, finished_ptb.folder)


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"a": ' + "[" * 900 + "]" * 900 + "}"], ids=["open", "closed"]
)
@pytest.mark.parametrize("name", ["config.json", "result.json", "vocabulary.json", "metrics.jsonl"])
def test_json_nested_too_deep(name, text, folder, finished_ptb):
    """Regression: 900 levels, which Python's parser reads, were a RecursionError afterwards."""
    (folder / name).write_text(f"{text}\n")
    assert_user_error(explain(folder), str(folder))
    if name != "vocabulary.json":  # training rewrites it, and `report` does not read it
        again = execute(PTB, *finished_ptb.arguments, "--epochs", 3, "--run-dir", folder)
        assert_user_error(again, str(folder))
        assert str(folder) in succeed(tool("report"), finished_ptb.folder, folder).out


@pytest.mark.parametrize("setting", ["run.model", "model.transition"])
def test_a_name_of_a_model_that_is_nested_too_deep(setting, finished_quick, tmp_path):
    """Regression: 3,000 minus signs were a RecursionError, also in `report`, which leaves such a
    run out.
    """
    folder, name = (
        shutil.copytree(finished_quick.folder, tmp_path / "run"),
        f"quick:Linear({'-' * 3000}3)",
    )
    config, result = load(folder / "config.json"), load(folder / "result.json")
    if setting == "run.model":
        config["model"] = result["rows"][0]["model"] = name
    else:
        config["settings"]["model"]["transition"] = name
    (folder / "config.json").write_text(json.dumps(config))
    write_result(folder, result)
    assert_user_error(
        execute(Quick, "explain", "--run-dir", folder, "--text", "1 2 3 4"), str(folder)
    )
    succeed(tool("report"), finished_quick.folder, folder)


TAGGER = TaggerVocabulary(("<unk>", "a"), 1, ("a",), ("O",), True, "keep", 20, (("x",),), "BIO2")


@pytest.mark.parametrize(
    "changed",
    [
        *(
            {"words": [1, 2]},
            {"words": "ab"},
            {"words": [["a"]]},
            {"tags": [None]},
            {"characters": [1]},
        ),
        *({"num_frequent": "1"}, {"num_frequent": -1}, {"word_length": 2.5}, {"word_length": None}),
        *(
            {"lowercase": 1},
            {"digits": "ten"},
            {"columns": [[1]]},
            {"columns": ["x"]},
            {"scheme": "BMES"},
        ),
        *({"kind": "int"}, {"kind": [1]}, {"more": 1}),
    ],
    ids=str,
)
def test_a_vocabulary_of_anything_but_words(changed, tmp_path):
    """Regression: a tagger's vocabulary of numbers was read."""

    def read(kept):
        content = json.dumps(kept).encode()
        (tmp_path / "vocabulary.json").write_bytes(content)
        return trained._vocabulary(RunDir(tmp_path), hashlib.sha256(content).hexdigest())

    assert read(TAGGER.to_json()).words == TAGGER.words
    with pytest.raises(UserError, match=r"^[^\n]*vocabulary.json cannot be read[^\n]*$"):
        read(TAGGER.to_json() | changed)
