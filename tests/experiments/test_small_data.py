"""Check small data: presets make enough updates, runs say why they end, and tiny tasks are
solved.
"""

import random
import re

import numpy as np
import pytest
from commands import row_of, succeed

from dynskip_jax.cli.main import read_training
from dynskip_jax.config.experiment import find_experiment
from dynskip_jax.config.settings import replace
from dynskip_jax.config.small_data import RELAXED_UPDATES, fit_to_size
from dynskip_jax.runs import train as run


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("classify", 160),
        ("code", 130_000),
        ("conll2003", 27),
        ("ptb", 3_000),
        ("sick", 100),
        ("sst", 200),
    ],
)
def test_presets_make_enough_updates(name, size):
    experiment = find_experiment(name)
    resolved, _ = read_training(experiment, [])
    usual = resolved.settings.training
    fitted = fit_to_size(resolved, size, experiment.least_updates)
    found = fitted.settings.training
    batches = size // (found.batch_size * getattr(found, "num_steps", 1))
    assert found.epochs * batches >= experiment.least_updates and fitted.notes
    assert fitted.sources["epochs"] == f"{resolved.sources['epochs']}, for small data"
    assert found.patience * usual.epochs == usual.patience * found.epochs


@pytest.mark.parametrize("flags", [[], ["--epochs", "4"], ["--length", "21"]], ids=str)
@pytest.mark.parametrize("size", [300, 2_000, 10_000])
def test_relaxed_choices_have_enough_updates(flags, size):
    """Regression: of 10,000 examples, agents took the previous state after 78 updates."""
    resolved, _ = read_training(find_experiment("number_prediction"), flags)
    fitted = fit_to_size(resolved, size).settings
    batches = size // fitted.training.batch_size
    assert fitted.agent.relaxed_epochs * batches >= RELAXED_UPDATES

    typed, _ = read_training(
        find_experiment("number_prediction"), [*flags, "--relaxed-epochs", "1"]
    )
    assert fit_to_size(typed, size).settings.agent.relaxed_epochs == 1


def test_what_is_typed_stays_and_large_data_changes_nothing():
    resolved, _ = read_training(
        find_experiment("classify"), ["--epochs", "2", "--batch-size", "30"]
    )
    fitted = fit_to_size(resolved, 40)
    assert fitted.settings == resolved.settings and fitted.sources == resolved.sources
    (note,) = fitted.notes
    assert "with --epochs 2 there are only 2 updates in all; without it, 600 epochs" in note
    resolved, _ = read_training(find_experiment("sst"), [])
    assert fit_to_size(resolved, 8_544) == resolved


def test_a_run_on_small_data_may_grow():
    def fitted(*flags):
        resolved, _ = read_training(find_experiment("conll2003"), [*flags])
        return fit_to_size(resolved, 27).settings, resolved.settings.training

    (usual, preset), more = fitted(), 200
    assert fitted("--epochs", str(more))[0] == replace(usual, epochs=more)
    np.testing.assert_allclose(*(of.inverse_decay * of.epochs for of in (usual.training, preset)))


RATES = {
    "code": lambda of: of.decay ** (of.decay_after - of.epochs),
    "conll2003": lambda of: 1 / (1 + of.inverse_decay * of.epochs),
    "ptb": lambda of: of.decay ** (of.decay_after - of.epochs),
}


@pytest.mark.parametrize("more", [1, 2, 7, 40])
@pytest.mark.parametrize("name", RATES)
def test_the_schedule_is_stretched_to_the_epochs_that_are_typed(name, more):
    """Regression: with --epochs the rate halved from the preset's third epoch on, and ended it."""
    usual = read_training(find_experiment(name), [])[0].settings.training
    epochs = usual.epochs + more
    resolved, _ = read_training(find_experiment(name), ["--epochs", str(epochs)])
    fitted = fit_to_size(resolved, 27)
    found = fitted.settings.training
    assert found.epochs == epochs and fitted.sources["epochs"] == "flag"
    np.testing.assert_allclose(RATES[name](found), RATES[name](usual))
    assert found.decay_after == round(usual.decay_after * epochs / usual.epochs)
    assert f"a schedule of {epochs} epochs in place of {usual.epochs}" in " ".join(fitted.notes)


def test_a_typed_decay_is_not_stretched():
    flags = ["--epochs", "40", "--decay", "3", "--decay-after", "5"]
    resolved, _ = read_training(find_experiment("code"), flags)
    found = fit_to_size(resolved, 27).settings.training
    assert (found.epochs, found.decay, found.decay_after) == (40, 3, 5)


def test_models_have_the_stretched_epochs(monkeypatch):
    plans = []
    monkeypatch.setattr(run, "run", lambda plan, processes: plans.append(plan))
    flags = ("--train-examples", 300)
    succeed(find_experiment("number_prediction"), *flags)
    shown = succeed(find_experiment("number_prediction"), *flags, "--print-config")
    (found,) = plans
    (model,) = found.models
    epochs = model.spec.objective.relaxed_epochs
    assert epochs == found.settings.agent.relaxed_epochs > 3
    assert model.fit.epochs == found.settings.training.epochs > 25
    for name, number in (("agent.relaxed_epochs", epochs), ("training.epochs", model.fit.epochs)):
        line = rf"^{name} +{number} +preset relaxed, for small data$"
        assert re.search(line, shown.out, re.MULTILINE)
    assert f"a schedule of {model.fit.epochs} epochs in place of 25" in shown.err


GOOD, BAD = (
    ["great", "lovely", "superb", "moving", "clever"],
    ["awful", "dull", "poor", "boring", "clumsy"],
)
FILLERS = [
    "the",
    "film",
    "has",
    "a",
    "story",
    "with",
    "scenes",
    "that",
    "people",
    "talk",
    "about",
    "town",
]
PLACES = ["paris", "ohio", "smith", "jones", "kent"]


def review(rng):
    is_good = rng.random() < 0.5
    words = rng.choices(FILLERS, k=rng.randint(4, 9))
    words.insert(rng.randrange(len(words)), rng.choice(GOOD if is_good else BAD))
    return words, is_good


def tagged(rng):
    """Return words and tags: names follow `mr`, places follow `in`."""
    words, tags = [], []
    for _ in range(rng.randint(2, 4)):
        kind, before = rng.choice([("B-PER", "mr"), ("B-LOC", "in")])
        words += [rng.choice(FILLERS), before, rng.choice(PLACES)]
        tags += ["O", "O", kind]
    return words, tags


def write_classify(here, rng):
    rows = [
        "text,label",
        *(f"{' '.join(words)},{good}" for words, good in (review(rng) for _ in range(200))),
    ]
    (here / "reviews.csv").write_text("\n".join(rows) + "\n")
    return "--data", here / "reviews.csv"


def write_tagged(here, rng, names, line):
    for name, size in zip(names, (40, 15, 15), strict=True):
        pairs = (zip(*tagged(rng), strict=True) for _ in range(size))
        sentences = ["".join(line(i, *pair) for i, pair in enumerate(words, 1)) for words in pairs]
        (here / name).write_text("\n".join(sentences) + "\n")
    return "--data", here


def write_conll2003(here, rng):
    names = ("eng.train", "eng.testa", "eng.testb")
    return write_tagged(here, rng, names, lambda i, word, tag: f"{word} X X {tag}\n")


def write_ptb(here, rng):
    for split, size in (("train", 300), ("valid", 60), ("test", 60)):
        lines = (rng.choice(["a b c d e f", "u v w x y z"]) for _ in range(size))
        (here / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return "--data", here


def test_the_plan_shows_the_size_of_embeddings_that_a_file_has(tmp_path):
    flags = (*write_classify(tmp_path, random.Random(0)), "--embeddings", tmp_path / "vectors")
    (tmp_path / "vectors").write_text("great 1 2 3\nfilm 3 2 1\n")
    for more, source in (((), "a file"), (("--embedding-features", 3), "flag")):
        shown = succeed(find_experiment("classify"), *flags, *more, "--print-config").out
        assert re.search(rf"^model.embedding_features +3 +{source}$", shown, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "write", "metric", "bound"),
    [
        ("classify", write_classify, "test_accuracy", 0.8),
        ("conll2003", write_conll2003, "test_f1", 0.9),
        # 1.10 is the best: one of two lines, of seven words.
        ("ptb", write_ptb, "test_perplexity", 1.4),
    ],
)
def test_tiny_data_is_learned_with_defaults(name, write, metric, bound, tmp_path):
    flags = write(tmp_path, random.Random(0))
    succeed(find_experiment(name), *flags, "--run-dir", tmp_path / "run", "--devices", 1)
    score = row_of(tmp_path / "run")["metrics"][metric]["mean"]
    assert score < bound if metric == "test_perplexity" else score > bound
