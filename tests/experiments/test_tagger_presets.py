"""Check that the presets of the taggers match the papers, and reach the model that is trained."""

import dataclasses

import numpy as np
import pytest
from commands import experiment_in

from dynskip_jax import functional as F
from dynskip_jax.data.vocabularies import tagger_vocabulary
from dynskip_jax.experiments import conll2003, pos
from dynskip_jax.experiments.build import make_learner
from dynskip_jax.experiments.conll2003 import CoNLL2003
from dynskip_jax.experiments.model_spec import make_spec
from dynskip_jax.experiments.pos import PartOfSpeech
from dynskip_jax.experiments.settings import resolve
from dynskip_jax.nn import CharAffixes, CharCNN, CharLSTM

TAGS = ("O", "B-X", "I-X", "E-X", "S-X")
VOCABULARY = tagger_vocabulary([["a", "b", "ab"]], TAGS, lowercase=True, digits="nine")
KINDS = {"conll2003": (conll2003, CoNLL2003), "pos": (pos, PartOfSpeech)}


def experiment_of(name, preset="small", **flags):
    module, kind = KINDS[name]
    return kind(
        resolve(
            experiment_in(module).settings_type, module.PRESETS, "small", dict(preset=preset, **flags)
        ).settings
    )


def model_of(experiment, model="dynamic:5"):
    """Return the learner, and the model with shapes in place of arrays."""
    learner = make_learner(experiment, make_spec(model, experiment.settings), None, VOCABULARY)
    return learner, learner.model(learner.abstract_params())


def test_the_paper_of_dynamic_skips():
    experiment = experiment_of("conll2003", "paper")
    learner, model = model_of(experiment)
    assert [cell.hidden_features for cell in model.stack.cells] == [200, 200]
    for cell in model.stack.cells:
        assert cell.skip == F.Dynamic(5, mix=1.0) and cell.agent_features == 50
    assert model.stack.reads_reverse == (False, True) and model.is_crf and model.allowed is not None
    assert model.stack.dropout == (0.5, 0.5) and model.words.features == 100
    (characters,) = model.characters
    assert isinstance(characters, CharCNN) and characters.filter_w.shape == (3, 30, 30)
    # Eq. 5 as printed, with the probability of the whole sequence as reward, and Ma & Hovy's schedule.
    objective = learner.objective
    assert (objective.baseline, objective.entropy, objective.entropy_coef) == ("none", "sampled", 1.0)
    assert learner.task.reward_of == "sentence" and not learner.task.is_of_steps
    rate = experiment.schedule("dynamic:5", 0.015)
    assert [round(float(rate(epoch, np.zeros((epoch, 1)))[0]), 6) for epoch in (0, 1, 20)] == [
        0.015, round(0.015 / 1.05, 6), 0.0075,
    ]  # fmt: skip


def test_the_paper_of_skips_over_depth():
    learner, model = model_of(experiment_of("pos", "paper"), "lstm")
    cells = model.stack.cells
    assert len(cells) == 14 and all(cell.hidden_features == 512 for cell in cells)
    skips = [cell.recurrence.depth_skip for cell in cells]
    assert skips[:4] == [None] * 4 and set(skips[4:]) == {F.ToOutput(gated=True)}
    assert model.stack.dropout == (0.25, 0.5, 0, 0, 0, 0, 0, 0.5)
    # A window of three words with 200 features, 5 + 5 characters with 5 each, and capitals: Section 6.1.2.
    assert cells[0].in_features == 600 + 50 + 5
    assert not model.is_crf and [type(m) for m in model.characters] == [CharAffixes]
    assert learner.task.score == "accuracy" and learner.monitor == "dev_accuracy"


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("conll2003", "small"),
        ("conll2003", "ncrfpp"),
        ("pos", "small"),
        pytest.param("pos", "deep", marks=pytest.mark.slow),
    ],
)
def test_other_presets_make_models(name, preset):
    learner, model = model_of(experiment_of(name, preset))
    assert learner.task.is_of_steps and len(model.stack.cells) in (2, 14)


def test_flags_reach_the_model():
    _, model = model_of(
        experiment_of(
            "conll2003", characters="lstm", affixes=3, capital_features=0, window=3, output="softmax",
            num_layers=2, transition="gru", dropout=0.2, dropout_inputs=0.1, unknown_rate=0.25,
        ),
        "attention:3",
    )  # fmt: skip
    lstm, affixes = model.characters
    assert isinstance(lstm, CharLSTM) and isinstance(affixes, CharAffixes) and affixes.count == 3
    assert model.capitals is None and model.gates is not None and model.crf is None
    assert [cell.skip.name for cell in model.stack.cells] == ["lstm"] * 2 + ["attention"] * 2
    assert model.stack.dropout == (0.1, 0.2, 0.2) and model.unknown_rate == 0.25
    assert all(cell.recurrence.transition == F.GRU() for cell in model.stack.cells)


def test_settings_of_a_run_are_read_back():
    settings = experiment_of("pos", "deep").settings
    kept = settings.to_config()
    assert kept["data"]["dataset"] == "ud" and "data" not in kept["data"]
    assert dataclasses.asdict(settings)["model"] == kept["model"]
