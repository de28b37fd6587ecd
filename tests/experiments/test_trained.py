"""Check that finished runs can be loaded, and that `predict` and `explain` read text with them."""

import io
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import quick
from commands import PTB, assert_user_error, execute, row_of, snapshot, tool
from compiled import compiled

from dynskip_jax.config.experiment import find_experiment
from dynskip_jax.data.vocabularies import ClassVocabulary
from dynskip_jax.errors import UserError
from dynskip_jax.runs.load import load_run
from dynskip_jax.runs.spec import make_spec

REPORT = tool("report")
LINE = "3 1 4 1"


def called(found, inputs):
    """Return the output of one call of a loaded model."""
    return compiled(found.model)(inputs, policy=found.policy, rngs=jax.random.key(0))


# --- load ---


def test_a_loaded_language_model_has_the_perplexity_of_result_json(compared_ptb, corpus_folder):
    usual = load_run(compared_ptb.folder)
    # The last model and the first seed are the default.
    assert (usual.name, usual.seed) == ("dynamic:3", 0)
    for model in ("lstm", "dynamic:3"):
        found = load_run(compared_ptb.folder, model, 1)
        words = (corpus_folder / "test.txt").read_text().replace("\n", " <eos> ").split()
        tokens = found.vocabulary.encode(["<eos>", *words])
        logits = np.asarray(called(found, np.asarray(tokens)[None, :-1]).logits[0], float)
        log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        nll = -log_probs[np.arange(len(words)), tokens[1:]].mean()
        metrics = row_of(compared_ptb.folder / model.replace(":", "-"))["metrics"]
        assert np.exp(nll) == pytest.approx(metrics["test_perplexity"]["per_seed"][1], rel=1e-5)


def test_the_data_of_a_run_is_found_again_named_and_checked(finished_ptb, tmp_path, caplog):
    found = load_run(finished_ptb.folder)
    with caplog.at_level("INFO", logger="dynskip_jax"):
        data = found.data()  # from the folder that the run was trained with
    assert f"reading {found.settings.data.data}, which {finished_ptb.folder} names" in caplog.text
    assert data.fingerprint == found.run.config()["dataset"]["fingerprint"]
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("a b c\n" * 9)
    with pytest.raises(UserError, match="was trained on other data"):
        found.data(str(tmp_path))


# --- predict ---


def expected_lines(finished, lines, seed=0):
    """Return the lines that `predict` should print, from one call of the model."""
    digits = np.array([[int(word) for word in line.split()] for line in lines])
    logits = np.asarray(load_run(finished.folder, seed=seed).model(digits), float)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return [f"{row.argmax()}  ({row.max():.3f})" for row in probabilities]


@pytest.fixture
def predict(finished_quick):
    return lambda *flags, text=None: execute(
        quick.Quick, "predict", "--run-dir", finished_quick.folder, *flags, standard_input=text
    )


def test_predict_writes_a_line_for_each_line_until_an_error(predict, finished_quick):
    lines = [LINE, "0 1 2 3"]
    first, second = expected_lines(finished_quick, lines)
    outcome = predict(text=f"{lines[0]}\n\n{lines[1]}\n1 2 3\n{LINE}\n")
    assert outcome.out == f"{first}\n\n{second}\n"  # one line for each, also for the empty one
    said, error = outcome.err.splitlines(keepends=True)
    assert said == "predictions by lstm, seed 0\n"
    assert_user_error(outcome._replace(err=error), "a text has 4 digits", "'1 2 3")
    assert_user_error(predict(text="\n\n"), "standard input has no text")
    assert_user_error(predict("--format", "words", text=LINE), "--format is for taggers")


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_predict_cuts_lines_of_a_file_where_training_does(predict, finished_quick, end):
    content = io.TextIOWrapper(
        io.BytesIO(f"\ufeff{LINE}{end}{LINE}{end}".encode()), encoding="ascii"
    )
    outcome = predict("--of-seed", 1, text=content)
    assert outcome.out.splitlines() == expected_lines(finished_quick, [LINE] * 2, seed=1)
    assert outcome.err == "predictions by lstm, seed 1\n"


# --- explain ---


def test_explain_writes_through_no_link(compared_ptb, tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.write_text("mine")
    shutil.copytree(compared_ptb.folder, folder)
    explain = (PTB, "explain", "--run-dir", folder, "--text", "a b b c h")
    (picture,) = re.findall(r"picture: (\S+)", execute(*explain).out)
    Path(picture).unlink()
    for link in (picture, f"{picture}.tmp"):
        Path(link).symlink_to(victim)
    execute(*explain)
    assert victim.read_text() == "mine"


def task_of(name, vocabulary=None):
    """Return the task of an experiment without data, which only reads texts."""
    experiment = find_experiment(name)
    settings = experiment.settings()
    return experiment.task_class(make_spec("lstm", settings), settings, None, vocabulary)


@pytest.mark.parametrize(
    ("name", "words"),
    [("imdb", "it's great !"), ("classify", "it's great !"), ("sst", "it 's great !")],
)
def test_typed_texts_are_split_as_those_of_train(name, words):
    vocabulary = ClassVocabulary(("<unk>", *words.split()), ("bad", "good"))
    assert task_of(name, vocabulary).encode("It's GREAT!")[1] == words.split()


BAD = [
    ("finished_quick", PTB, ("generate",), "a run of quick, which has no command generate"),
    ("compared_ptb", quick.Quick, ("predict",), "a run of ptb, which has no command predict"),
    ("finished_quick", quick.Quick, ("explain", "--text", " "), "there is nothing to read"),
    ("finished_quick", quick.Quick, ("predict", "--of-seed", -1), "the seeds 0, 1"),
    # the flag is --of-seed
    ("compared_ptb", PTB, ("generate", "--text", "a zebra"), "zebra"),
    ("compared_ptb", REPORT, ("RUN", "--metrics", "f1"), "there is no metric 'f1': choose dev_"),
    ("compared_ptb", REPORT, ("nowhere",), "none of the folders holds a finished run"),
]


@pytest.mark.parametrize(("run", "experiment", "arguments", "part"), BAD)
def test_what_the_user_can_put_right_is_one_line(run, experiment, arguments, part, request, here):
    folder = request.getfixturevalue(run).folder
    before = snapshot(folder)
    given = [folder if word == "RUN" else word for word in arguments]
    if experiment is not REPORT:
        given[1:1] = "--run-dir", folder
    assert_user_error(execute(experiment, *given, standard_input=LINE), part)
    assert snapshot(folder) == before and not any(here.iterdir())
