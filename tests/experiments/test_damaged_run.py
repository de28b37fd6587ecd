"""Check what comes of a run folder that is removed, or that a stranger has written."""

import json
import shutil

import numpy as np
import pytest
from commands import PTB, assert_user_error, execute, forge, load, succeed, tool
from quick import Quick

from dynskip_jax import load_run
from dynskip_jax.data.vocabularies import TaggerVocabulary
from dynskip_jax.errors import UserError
from dynskip_jax.runs import load as trained
from dynskip_jax.storage.folder import RunDir
from dynskip_jax.storage.manifest import entry_of
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


# Entries of the right syntax in a folder with a fitting manifest: the file, the place, the value.
EDITED = [
    ("config.json", "models", [5]),
    ("config.json", "about", [{"paths": 5}]),
    ("config.json", "settings.model.features", "x"),
    ("config.json", "dataset.fingerprint", 5),
    ("result.json", "rows.0.metrics", {}),
    ("result.json", "rows.0.metrics.dev_perplexity.per_seed", ["x"]),
    *(("result.json", "rows.0.seeds", wrong) for wrong in (10**15, [10**400], [0] * 10**5)),
    ("result.json", "rows.0.model", ".."),
    ("vocabulary.json", "", {"words": "[" * 900 + "]" * 900}),
]


@pytest.mark.parametrize(
    ("name", "place", "value"), EDITED, ids=[f"{n}.{p}={v}"[:60] for n, p, v in EDITED]
)
def test_a_strangers_json(name, place, value, folder, finished_ptb):
    document = load(folder / name)
    if place:
        inner, keys = document, [int(key) if key.isdigit() else key for key in place.split(".")]
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
    forge(folder, **{name.removesuffix(".json"): document if place else value})
    assert_user_error(explain(folder), str(folder))
    succeed(tool("report"), folder, finished_ptb.folder)


TAGGER = TaggerVocabulary(("<unk>", "a"), 1, ("a",), ("O",), True, "keep", 20, (("x",),), "BIO2")


CHANGED = [{"words": [1, 2]}, {"words": "ab"}, {"tags": [None]}, {"num_frequent": -1}]
CHANGED += [
    {"word_length": None},
    {"lowercase": 1},
    {"columns": ["x"]},
    {"kind": "int"},
    {"more": 1},
]


@pytest.mark.parametrize("changed", CHANGED, ids=str)
def test_a_vocabulary_of_anything_but_words(changed, tmp_path):
    """Regression: a tagger's vocabulary of numbers was read."""

    def read(kept):
        content = json.dumps(kept).encode()
        (tmp_path / "vocabulary.json").write_bytes(content)
        run = RunDir(tmp_path)
        run.files = {"vocabulary.json": entry_of(content)}
        return trained._vocabulary(run)

    assert read(TAGGER.to_json()).words == TAGGER.words
    with pytest.raises(UserError, match=r"^[^\n]*vocabulary.json cannot be read[^\n]*$"):
        read(TAGGER.to_json() | changed)
