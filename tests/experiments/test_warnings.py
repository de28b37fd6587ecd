"""Check the warnings about settings that are likely not intended, and about sweeps that end too early."""

import pytest
from commands import COMMANDS

from dynskip_jax.experiments.build import make_learner
from dynskip_jax.experiments.model_spec import make_spec
from dynskip_jax.experiments.settings import Settings, resolve
from dynskip_jax.results import edges_of_sweep

NUMBERS = COMMANDS["number_prediction"]


def warnings_of(model, **given):
    resolved = resolve(NUMBERS.settings_type, NUMBERS.presets, "relaxed", {"batch_size": 20, **given})
    experiment = NUMBERS(resolved.settings)
    spec = make_spec(model, experiment.settings)
    return experiment.warnings(spec, make_learner(experiment, spec, experiment.load_data(), None))


@pytest.mark.parametrize(
    ("model", "given", "parts"),
    [
        ("dynamic:10", {}, []),
        ("dynamic:10", dict(epochs=3, relaxed_epochs=3), ["all 3 epochs use relaxed choices"]),
        ("attention:10", dict(epochs=3, relaxed_epochs=3), []),  # has no relaxed epochs
        ("dynamic:5", {}, ["10 steps back, and K = 5", "dynamic:10 reaches all"]),
        ("dynamic:5", dict(length=21), []),  # two hops: several choices in a row
        ("fixed:5", {}, []),  # makes no choices
        ("dynamic:10", dict(mix=0.0), ["λ = 0", "changes nothing", "--mix"]),
        ("dynamic:10", dict(mix=(0.0, 0.5)), []),
        ("dynamic:30", {}, ["K = 30 is beyond every sequence of train", "11 steps"]),
    ],
)
@pytest.mark.usefixtures("small_number_prediction")
def test_settings_that_are_likely_not_meant(model, given, parts):
    found = warnings_of(model, **given)
    assert len(found) == bool(parts)
    for part in parts:
        assert part in found[0]


@pytest.mark.parametrize(
    ("name", "tried", "best", "parts"),
    [
        ("mix", (0.1, 0.5, 0.9), 2, ["λ = 0.9", "largest", "larger"]),
        ("mix", (0.1, 0.5, 0.9), 0, ["λ = 0.1", "smallest", "smaller"]),
        ("mix", (0.1, 0.5, 0.9), 1, []),
        ("mix", (0.1, 0.5, 1.0), 2, []),  # no larger value is allowed
        ("mix", (0.1, 0.9), 1, []),  # both values are ends
        ("max_skip", (1, 5, 10), 2, ["K = 10"]),
        ("max_skip", (1, 5, 10), 0, []),
        ("learning_rate", (3.0, 1.0, 2.0), 0, ["rate = 3"]),
    ],
)
def test_the_best_value_at_an_end_of_those_tried(name, tried, best, parts):
    found = list(edges_of_sweep(Settings, [{name: value} for value in tried], best))
    assert len(found) == bool(parts)
    for part in parts:
        assert part in found[0]
