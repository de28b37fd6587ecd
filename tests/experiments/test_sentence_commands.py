"""Check the commands for IMDB, SST-5 and SICK on texts small enough for a test."""

import gzip
import io
import json
import sys
from functools import partial

import jax
import numpy as np
import pytest
from commands import experiment_in, row_of, run_code

from dynskip_jax import functional as F
from dynskip_jax import load_run
from dynskip_jax.data import Vocabulary, corpora
from dynskip_jax.errors import UserError
from dynskip_jax.experiments import imdb, sick, sst
from dynskip_jax.experiments.build import make_fit_settings, make_learner
from dynskip_jax.experiments.cli import main
from dynskip_jax.experiments.model_spec import make_spec
from dynskip_jax.experiments.provenance import run_config
from dynskip_jax.experiments.settings import continued, resolve
from dynskip_jax.experiments.sick import SICK
from dynskip_jax.experiments.sst import SST
from dynskip_jax.experiments.train import with_width_of_vectors
from dynskip_jax.tasks import Forward, Learner
from dynskip_jax.trained import Trained

GOOD, BAD = ["fine", "great", "lovely"], ["awful", "bad", "dull"]
REST = ["a", "film", "the", "it", "was", "with"]
SMALL = (
    *("--features", 4, "--embedding-features", 3),
    *("--epochs", 1, "--buckets", 1, "--devices", 1),
)


def text_of(rng, label, length=5):
    words = [*rng.choice(REST, length), rng.choice((BAD, GOOD)[label])]
    return " ".join(rng.permutation(words))


def run(command, experiment, *arguments):
    outcome = command(partial(main, experiment_in(experiment)), *arguments)
    assert outcome.status == 0, outcome.err
    return outcome


def predict(command, experiment, folder, text, *more):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(text))
        return run(command, experiment, "predict", "--run-dir", folder, *more).out.split("\n")[:-1]


@pytest.fixture(scope="module")
def imdb_folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("imdb"), np.random.default_rng(0)
    for split in ("train", "test"):
        with gzip.open(folder / f"{split}.jsonl.gz", "wt") as file:
            for number in range(30):
                label = int(number >= 15)
                text = f"{text_of(rng, label, 2 + number % 5)}!<br />"
                file.write(json.dumps({"text": text, "label": label}) + "\n")
    return folder


OF_SKIP_RNN = ("--update-bias", -1, "--update-cost", 0.01, "--batch-size", 8, "--max-length", 6)
OF_SKIPPERS = ("--read-steps", 2, "--max-jump", 3, *OF_SKIP_RNN)


@pytest.fixture(scope="module")
def skipper(command, imdb_folder, tmp_path_factory):
    """Train a Skip RNN, and return the run folder and the outcome."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    arguments = ("--data", imdb_folder, "--model", "skip_rnn", *SMALL, *OF_SKIP_RNN)
    return folder, run(command, imdb, *arguments, "--run-dir", folder)


@pytest.fixture(scope="module")
def skippers(command, imdb_folder, tmp_path_factory):
    """Compare a Skip RNN and an LSTM-Jump, and return the run folder and the outcome."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    arguments = ("--data", imdb_folder, "--compare", "skip_rnn,lstm_jump", *SMALL, *OF_SKIPPERS)
    return folder, run(command, imdb, *arguments, "--run-dir", folder)


def test_a_skipper_is_scored_by_what_it_reads_too(skipper):
    folder, outcome = skipper
    assert "words read" in outcome.out and "texts cropped: " in outcome.out
    assert "paper:" not in outcome.out and "Published rows are left out" in outcome.out
    metrics = row_of(folder)["metrics"]
    assert 0 < metrics["test_read_fraction"]["mean"] < 1
    assert 0 <= metrics["test_accuracy"]["mean"] <= 1
    learner = load_run(folder).learner
    assert (learner.objective.update_cost, learner.skips[0].update_bias) == (0.01, -1)


@pytest.mark.slow
def test_skippers_are_compared_by_what_they_read(skippers):
    folder, _ = skippers
    for row in json.loads((folder / "result.json").read_text())["rows"]:
        assert 0 < row["metrics"]["test_read_fraction"]["mean"] < 1
        assert 0 <= row["metrics"]["test_accuracy"]["mean"] <= 1
    jump = load_run(folder, "lstm_jump").learner
    assert (jump.skips[0].max_jump, jump.skips[0].read_steps) == (3, 2)


def test_reviews_are_predicted_line_by_line(command, skipper):
    folder, _ = skipper
    long = "a film " * 5000
    lines = predict(command, imdb, folder, f"A great film!\n\n<br />\n{long}\nunheard-of words\n")
    assert [line.split("  ")[0] in corpora.IMDB_LABELS for line in lines] == [True, False, False, True, True]
    assert lines[1] == lines[2] == ""
    for line in (lines[0], lines[3]):
        assert 0.5 <= float(line.split("(")[1].rstrip(")")) <= 1
    # Cropped words do not affect the prediction.
    assert lines[3] == predict(command, imdb, folder, "a film a film a film and more\n")[0]


@pytest.mark.slow
def test_what_was_read_is_drawn(command, skippers):
    folder, _ = skippers
    outcome = run(command, imdb, "explain", "--run-dir", folder, "--text", "It was a great film, unseen")
    for name in ("skip_rnn", "lstm_jump"):
        (picture,) = (folder / "plots").glob(f"explain-{name}-seed-0-*.png")
        assert picture.stat().st_size > 1000
    assert outcome.out.count("not know ,: read as <unk>") == 1


def test_input_that_is_not_text_is_one_line(command, skipper, tmp_path):
    folder, _ = skipper
    (tmp_path / "texts").write_bytes(b"a film\ncaf\xe9\n")
    arguments = ("predict", "--run-dir", folder, "--input", tmp_path / "texts")
    outcome = command(partial(main, imdb.IMDB), *arguments)
    assert outcome.status == 2 and outcome.err.splitlines()[0] == "predictions by skip_rnn, seed 0"
    assert "line 2: no UTF-8" in outcome.err
    assert outcome.out.count("\n") == 1  # the prediction for the line before


def test_data_that_is_not_there_is_one_line(command, tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "is_reachable", lambda url: False)
    for experiment in (imdb, sst, sick):
        outcome = command(partial(main, experiment_in(experiment)), "--run-dir", tmp_path / "run")
        assert outcome.status == 2 and outcome.err.count("\n") == 1, outcome.err
        assert "--data DIR" in outcome.err
        assert not (tmp_path / "run").exists()


def test_bigrams_beat_guessing(command, imdb_folder):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    outcome = run(command, imdb, "bigrams", "--data", imdb_folder, "--inverse-penalty", "1,10")
    # Each review contains a word that determines its class. The first row has dev and test, the second test.
    shares = [
        [float(cell.rstrip("%")) for cell in line.split() if cell.endswith("%")]
        for line in outcome.out.splitlines()
        if "train" in line
    ]
    assert [len(row) for row in shares] == [2, 1]
    assert min(shares[0][1], shares[1][0]) > 80


# --- SST-5 ---


def tree(rng, label):
    words = text_of(rng, int(label > 2), 3).split()
    text = f"({label} {words[0]})"
    for word in words[1:]:
        text = f"({label} {text} (2 {word}))"
    return text


@pytest.fixture(scope="module")
def sst_folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("sst"), np.random.default_rng(1)
    for name, size in (("train", 12), ("dev", 10), ("test", 10)):
        lines = [tree(rng, int(label)) for label in rng.integers(5, size=size)]
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.slow
def test_the_papers_way_on_phrases_from_given_vectors(command, sst_folder, tmp_path):
    """An untied LSTM trains with DropConnect, AR, TAR and averaged SGD.

    The given word vectors are read, and stay unchanged.
    """
    (tmp_path / "vectors.txt").write_text("great 0.5 -0.5 0.25\nbad 1 2 3\n")
    arguments = ("--data", sst_folder, "--preset", "paper", "--transition", "ulstm", "--model", "fixed:2")
    more = ("--phrases", "--average", "always", "--embeddings", tmp_path / "vectors.txt")
    more += ("--no-train-embeddings", *SMALL, "--run-dir", tmp_path / "run")
    outcome = run(command, sst, *arguments, *more, "--dropout-weights", 0.5)
    assert "(train 84, dev 10, test 10" in outcome.out
    (tmp_path / "vectors.txt").unlink()  # a finished run does not need the file
    trained = load_run(tmp_path / "run")
    table = np.asarray(trained.model.embedding.embedding[...])
    np.testing.assert_array_equal(table[trained.vocabulary.index["bad"]], [1, 2, 3])
    assert trained.learner.skips[0].max_skip == 2
    (line,) = predict(command, sst, tmp_path / "run", "A film that isn't great\n")
    assert line.split("  ")[0] in SST.labels


def test_vectors_are_trained_unless_they_are_given(command, sst_folder):
    arguments = ("--data", sst_folder, "--no-train-embeddings")
    outcome = command(partial(main, sst.SST), *arguments)
    assert outcome.status == 2 and "--embeddings FILE" in outcome.err


def test_embeddings_have_the_width_of_the_file(tmp_path):
    (tmp_path / "vectors.txt").write_text("great 1 2 3\nbad 1 2 3\n")
    for given, width in (({}, 3), ({"embedding_features": 7}, 7)):
        given = {"embeddings": str(tmp_path / "vectors.txt")} | given
        resolved = resolve(sst.SST.settings_type, sst.SST.presets, "small", given)
        assert with_width_of_vectors(resolved.settings, resolved).model.embedding_features == width


def untrained(experiment, model="dynamic:3", **given):
    """Return a small model that reads in both directions, with random parameters."""
    sizes = {"features": 4, "embedding_features": 3, "bidirectional": True}
    settings = resolve(experiment.settings_type, experiment.presets, "small", sizes | given).settings
    made, vocabulary = experiment(settings), Vocabulary(("<unk>", *REST))
    spec, rng = make_spec(model, settings), np.random.default_rng(0)
    learner = make_learner(made, spec, None, vocabulary)
    params = jax.tree.map(
        lambda leaf: rng.normal(size=(1, *leaf.shape)).astype(leaf.dtype), learner.abstract_params()
    )
    return Trained(None, made, vocabulary, spec, learner, params)


def reading_of(monkeypatch, finished, text, *actions):
    """Return the reading of a text in which the layer of each direction chooses the k of `actions`."""
    zeros = np.zeros(len(actions[0]))
    decisions = tuple(F.Decision(np.array(action), zeros, zeros) for action in actions)
    found = Forward(np.log([0.25, 0.75]), decisions)
    monkeypatch.setattr(Learner, "read", lambda *_: (found, 1))
    return finished.read(text)


def test_the_choices_of_both_directions_are_read(monkeypatch):
    reading = reading_of(monkeypatch, untrained(SST), "it was a film", [1, 2, 1, 3], [3, 1, 1, 2])
    assert (reading.skips, reading.backward) == ([1, 2, 1, 3], [3, 1, 1, 2])
    assert reading.is_of_predictions and reading.probabilities[-1] == pytest.approx(0.75)


@pytest.mark.slow
def test_both_directions_are_explained_and_drawn(command, sst_folder, tmp_path):
    folder = tmp_path / "run"
    arguments = ("--data", sst_folder, "--model", "dynamic:3", "--mix", "0.1,0.9", "--seeds", 2)
    run(command, sst, *arguments, *SMALL, "--agent-features", 2, "--run-dir", folder)
    pictures = {path.name for path in (folder / "plots").glob("skips_by_position*")}
    assert pictures == {"skips_by_position_forward.png", "skips_by_position_backward.png"}
    page = tmp_path / "page.html"
    outcome = run(command, sst, "explain", "--run-dir", folder, "--text", "it was great", "--html", page)
    assert "dynamic:3, forward:\n" in outcome.out and "dynamic:3, backward:\n" in outcome.out
    assert "perplexity" not in outcome.out
    assert page.read_text().count('"of": "prediction"') == 2
    names = run_code("own_analysis.md", "run_dirs", run_dir=folder, text="it was a great film")
    assert names["top"] == {"forward": 0, "backward": 1}
    assert all((decision.action == 1).all() for decision in names["always_1"].decisions)
    selected = names["trained"].policy.mix
    np.testing.assert_array_equal(names["learner"].policy().mix, [selected])
    assert names["scores"]["dev_accuracy"].shape == (1,)


# --- SICK ---


def test_a_skip_without_an_agent_shows_its_choices_if_there_are_any(monkeypatch):
    """An own skip whose `decide` returns k has no agent. A fixed k is no choice."""
    found = untrained(SST, "fixed:3")
    assert reading_of(monkeypatch, found, "it was a film", [3] * 4, [3] * 4).skips == [0] * 4
    reading = reading_of(monkeypatch, found, "it was a film", [1, 2, 1, 3], [3] * 4)
    assert (reading.skips, reading.backward) == ([1, 2, 1, 3], None)


def test_choices_that_reach_into_the_other_sentence_are_shown_as_leaving_the_text(monkeypatch):
    finished = untrained(SICK, similarity_features=2)
    reading = reading_of(monkeypatch, finished, "it was\ta film", [1, 3, 2, 1], [1, 2, 1, 3])
    assert reading.skips == [1, 3, 3, 1]
    assert reading.backward == [1, 3, 1, 3]


@pytest.mark.slow
def test_pairs_are_rated_and_explained(command, tmp_path):
    rng = np.random.default_rng(2)
    for name in ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"):
        rows = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"]
        for number in range(12):
            pair = [text_of(rng, int(label), 3) for label in rng.integers(2, size=2)]
            rows.append("\t".join([str(number), *pair, f"{rng.uniform(1, 5):.1f}", "NEUTRAL"]))
        (tmp_path / name).write_text("\r\n".join(rows) + "\r\n")
    folder = tmp_path / "run"
    arguments = ("--data", tmp_path, "--model", "dynamic:9", *SMALL, "--batch-size", 4)
    outcome = run(command, sick, *arguments, "--run-dir", folder, "--similarity-features", 5)
    assert "test MSE" in outcome.out
    metrics = json.loads((folder / "result.json").read_text())["rows"][0]["metrics"]
    assert {"test_pearson", "test_spearman", "test_mse", "test_pearson_averaged"} <= metrics.keys()
    lines = predict(command, sick, folder, "a great film\tthe film was fine\n\na\tb\n")
    assert lines[1] == "" and all(1 <= float(line) <= 5 for line in (lines[0], lines[2]))
    trained = load_run(folder)
    found = trained.experiment.read(trained, "it was a film with\tit was a film with")
    # Skips from the second sentence end in that sentence or before the text.
    for t in range(5, 10):
        assert found.skips[t] <= t - 5 or found.skips[t] == t + 1
    run(command, sick, "explain", "--run-dir", folder)
    outcome = command(partial(main, sick.SICK), "explain", "--run-dir", folder, "--text", "one alone")
    assert outcome.status == 2 and "apart by a tab" in outcome.err


def test_vectors_count_by_content_and_not_by_path(sst_folder, tmp_path):
    """A run can resume with a moved file of vectors, but not with other vectors."""

    def fingerprint(name, numbers):
        (tmp_path / name).write_text(f"bad {numbers}\n")
        given = {"data": str(sst_folder), "embeddings": str(tmp_path / name), "embedding_features": 3}
        experiment = SST(resolve(SST.settings_type, SST.presets, "small", given).settings)
        config = run_config(experiment, "lstm", experiment.load_data())
        assert str(tmp_path) not in json.dumps(config)
        return config["dataset"]["fingerprint"]

    assert fingerprint("a.txt", "1 2 3") == fingerprint("b.txt", "1 2 3") != fingerprint("c.txt", "1 2 4")


def test_words_of_dev_that_have_vectors_are_known(tmp_path):
    """A run older than the setting `known_by_vectors` keeps its vocabulary, which lacks such words."""
    for split, word in (("train", "fine"), ("dev", "Great"), ("test", "dull")):
        (tmp_path / f"{split}.txt").write_text(f"(4 (2 a) (4 {word}))\n" * 2)
    (tmp_path / "vectors.txt").write_text("great 1 2 3\nfine 4 5 6\n")
    given = {"data": str(tmp_path), "embeddings": str(tmp_path / "vectors.txt"), "embedding_features": 3}
    resolved = resolve(SST.settings_type, SST.presets, "small", given)
    experiment = SST(resolved.settings)
    data = experiment.load_data()
    assert data.vocabulary.tokens == ("<unk>", "a", "fine", "great")
    assert experiment._vectors(data.vocabulary).table[3].tolist() == [1, 2, 3]
    assert experiment.rare_words(data) == {"unknown_rate": 0.5, "num_frequent": 3}
    config = resolved.settings.to_config()
    del config["data"]["known_by_vectors"]
    older = SST(continued(resolved, config))
    assert older.load_data().vocabulary.tokens == ("<unk>", "a", "fine")


# --- Presets ---


def test_output_gates_may_be_fixed_at_1():
    def made(transition, **given):
        values = {"transition": transition, **given}
        return SICK(resolve(sick.SICK.settings_type, sick.SICK.presets, "small", values).settings)

    def learner_of(experiment):
        vocabulary = Vocabulary(("<unk>", "a"))
        return make_learner(experiment, make_spec("lstm", experiment.settings), None, vocabulary)

    sizes = [
        sum(leaf.size for leaf in jax.tree.leaves(learner.abstract_params()["stack"]))
        for learner in (learner_of(made("plstm", **given)) for given in ({}, {"output_gate": False}))
    ]
    assert sizes[0] - sizes[1] == (100 + 150 + 1) * 150
    with pytest.raises(UserError, match="no output gate"):
        learner_of(made("gru", output_gate=False))


@pytest.mark.parametrize("experiment", [imdb, sst, sick], ids=lambda module: experiment_in(module).name)
def test_presets_name_settings_and_build_what_they_say(experiment):
    command, vocabulary = experiment_in(experiment), Vocabulary(("<unk>", "a"))
    for preset, values in command.presets.items():
        given = {"preset": preset, "max_skip": None}
        if values.get("train_embeddings") is False:
            given["embeddings"] = "vectors.txt"
        settings = resolve(command.settings_type, command.presets, preset, given).settings
        made = command(settings)
        models = ("lstm", "dynamic:3", "skip_rnn", "lstm_jump", "attention:3")
        for model in models if preset == command.default_preset({}) else models[1:2]:
            learner = make_learner(made, make_spec(model, made.settings), None, vocabulary)
            assert (
                make_fit_settings(made, make_spec(model, made.settings), learner).epochs
                == settings.training.epochs
            )
            assert len(learner.skips) == settings.model.num_layers * (1 + settings.model.bidirectional)
    shapes = jax.tree.leaves(learner.abstract_params()["embedding"])
    assert shapes[0].shape == (2, settings.model.embedding_features)
