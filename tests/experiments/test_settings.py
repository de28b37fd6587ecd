"""Check settings: types, bounds, presets, files, and that no experiment needs JAX to describe
itself.
"""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

import jax
import numpy as np
import pytest

from dynskip_jax.cli.main import read_training
from dynskip_jax.config.experiment import NAMES, find_experiment
from dynskip_jax.config.flags import Count, Rate, read_value
from dynskip_jax.config.settings import fields_of, replace, resolve
from dynskip_jax.config.stored import from_config, to_config
from dynskip_jax.data import Vocabulary
from dynskip_jax.data.vocabularies import ClassVocabulary, tagger_vocabulary
from dynskip_jax.runs.learner import make_fit_settings, make_learner
from dynskip_jax.runs.spec import make_spec

PRESETS = [(name, preset) for name in NAMES for preset in find_experiment(name).presets]
SHRUNK = dict(features=4, agent_features=3, embedding_features=4, train_examples=8, mix=0.5)


def settings_of(name, preset=None, **given):
    experiment = find_experiment(name)
    given = {key: value for key, value in given.items() if key in fields_of(experiment.settings)}
    preset = preset or next(iter(experiment.presets))
    return resolve(experiment.settings, experiment.presets, preset, given).settings


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("none", Count | None, None),
        ("0.1,0.2", Rate | tuple[Rate, ...], (0.1, 0.2)),
        ("0.1", Rate | tuple[Rate, ...], 0.1),
        ("0.5,0.5", tuple[Rate, ...] | Path | None, (0.5, 0.5)),
        ("plateau", Count | Literal["plateau"], "plateau"),
        ("~/a b", Path | None, Path.home() / "a b"),
        ("~/a b", str, "~/a b"),
    ],
)
def test_texts_become_values(text, hint, value):
    assert read_value(text, hint) == value


# --- Every experiment ---


def test_there_are_few_settings():
    fields = [fields_of(find_experiment(name).settings) for name in NAMES]
    assert len({name for of in fields for name in of}) <= 100


def learner_of(name, settings, spec):
    """Return a learner without data."""
    vocabulary = Vocabulary(words := ("<unk>", "<eos>", "a", "b"))
    if name in ("conll2003", "pos"):
        scheme = "BIO2" if name == "conll2003" else None
        tags = ("O", "B-X", "I-X", "E-X", "S-X")
        vocabulary = tagger_vocabulary([("a", "b")], tags, columns=[((), ())], scheme=scheme)
    elif name in ("classify", "imdb", "sst"):
        vocabulary = ClassVocabulary(words, ("x", "y"))
    return make_learner(find_experiment(name), settings, spec, None, vocabulary)


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_each_preset_describes_a_model_that_can_be_made(name, preset):
    experiment = find_experiment(name)
    layers = 3 if preset == "awd" or "depth_skip" in experiment.presets[preset] else 2
    given = SHRUNK | dict(length=21 if preset == "two_hops" else 5)
    if name not in ("agreement", "number_prediction"):
        given["num_layers"] = layers
    if (name, preset) == ("sick", "paper"):
        given["train_embeddings"] = True
    settings = settings_of(name, preset, **given)
    spec = make_spec("dynamic:3", settings)
    learner = learner_of(name, settings, spec)
    assert learner.abstract_params()
    fit = make_fit_settings(settings, spec, learner)
    rates = fit.learning_rate(0, np.zeros((0, 1)))
    assert rates > 0
    if name != "popgym":  # its epochs are steps of environments
        assert fit.epochs == settings.training.epochs
    config = json.loads(json.dumps({"settings": to_config(settings)}))
    assert from_config(experiment.settings, config) == replace(settings, model=None)


def test_the_last_layer_has_the_time_skip():
    settings = settings_of("conll2003", **SHRUNK, num_layers=3)
    learner = learner_of("conll2003", settings, make_spec("dynamic:3", settings))
    assert [skip.max_skip for skip in learner.skips] == [1, 1, 1, 1, 3, 3]
    assert learner.top_layers == {"forward": 4, "backward": 5}


RELAXED = dict(learning_rate=1.0, sampled_decay=0.5, relaxed_epochs=2, length=5)


@pytest.mark.parametrize(
    ("name", "model", "given", "rates"),
    [
        (
            "ptb",
            "lstm",
            dict(learning_rate=1.0, decay=2.0, decay_after=2),
            [1, 1, 0.5, 0.25, 0.125],
        ),
        (
            "ptb",
            "lstm",
            dict(learning_rate=1.0, decay=2.0, decay_after="plateau"),
            [1, 1, 1, 1, 0.5],
        ),
        (
            "pos",
            "lstm",
            dict(learning_rate=1.0, inverse_decay=1.0),
            [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5],
        ),
        ("agreement", "dynamic:3", RELAXED, [1, 1, 0.5, 0.25, 0.125]),
        ("agreement", "lstm", RELAXED, [1] * 5),
    ],
)
def test_schedules_follow_the_settings(name, model, given, rates):
    settings = settings_of(name, **given)
    spec = make_spec(model, settings)
    schedule = make_fit_settings(settings, spec, learner_of(name, settings, spec)).learning_rate
    history = np.repeat([[5.0], [4.0], [3.0], [2.9], [2.8]], 2, axis=1)  # of two seeds
    found = [np.broadcast_to(schedule(epoch, history[:epoch]), 2) for epoch in range(5)]
    np.testing.assert_allclose(found, np.stack([rates, rates], axis=1))


def test_an_untrained_agent_stays_though_weights_decay():
    settings = settings_of("sst", control="untrained", weight_decay=0.1, agent_learning_rate=None)
    spec = make_spec("dynamic:3", settings)
    optimizer = make_fit_settings(settings, spec, learner_of("sst", settings, spec)).optimizer
    params = {name: np.ones(3, np.float32) for name in ("agent", "weights")}
    updates, _ = optimizer.update(
        jax.tree.map(np.zeros_like, params), optimizer.init(params), params
    )
    assert not updates["agent"].any() and updates["weights"].all()


@pytest.mark.parametrize(
    ("model", "copy", "rate"),
    [
        ("dynamic:5", "none", 0.003),
        ("content:5", "expected", 0.003),
        ("content:5", "none", None),  # attention that mixes states is part of the network
        ("mean:5", "expected", None),
    ],
)
def test_what_chooses_or_points_has_the_agents_own_optimizer(model, copy, rate):
    settings = settings_of("ptb", agent_learning_rate=0.003, copy=copy)
    assert make_spec(model, settings).agent_learning_rate == rate


@pytest.mark.parametrize("name", ["classify", "imdb", "sick", "sst"])
def test_a_task_reads_every_setting_of_its_network(name, monkeypatch):
    settings, read = settings_of(name), set()
    noted = lambda self, field: read.add(field) or object.__getattribute__(self, field)
    monkeypatch.setattr(type(settings.model), "__getattribute__", noted)
    spec = make_spec("dynamic:3", settings)
    learner = learner_of(name, settings, spec)
    assert learner.abstract_params() and make_fit_settings(settings, spec, learner)
    assert {field.name for field in dataclasses.fields(settings.model)} <= read


def test_config_modules_need_no_jax():
    code = "import sys\nfrom dynskip_jax.cli.main import list_experiments\nlist_experiments()\n"
    code += "assert not {'jax', 'flax', 'scipy', 'pandas', 'matplotlib'} & {*sys.modules}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(found.stdout.splitlines()) > len(NAMES)


# --- Where settings come from ---


def test_a_model_that_is_typed_replaces_that_of_a_preset():
    experiment = find_experiment("ptb")
    found = resolve(experiment.settings, experiment.presets, "far", {"compare": "lstm,fixed:2"})
    assert found.settings.run.models("x") == ("lstm", "fixed:2")


@pytest.mark.parametrize("name", NAMES)
def test_explain_has_a_text_to_read(name):
    """Regression: `recall explain` asked for --text, which its page did not give."""
    experiment = find_experiment(name)
    assert "explain" not in experiment.commands or experiment.sample_text


def test_an_environment_has_its_preset_and_what_is_turned_off_stays_off():
    typed = ["--env", "AutoencodeEasy", "--no-time"]
    settings = read_training(find_experiment("popgym"), typed)[0].settings
    assert (settings.training.steps, settings.agent.discount) == (1_500_000, 0)
    assert not settings.data.time
