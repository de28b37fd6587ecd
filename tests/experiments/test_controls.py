"""Check controls of a learned choice and words copied by it: what is trained, and what the table
shows.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from commands import PTB, row_of

from dynskip_jax.config.experiment import NAMES, find_experiment
from dynskip_jax.config.settings import replace
from dynskip_jax.experiments.recall.task import measure_longer
from dynskip_jax.runs.evaluate import _scores
from dynskip_jax.runs.spec import make_spec
from dynskip_jax.storage.results import learnt_rates
from dynskip_jax.tasks.learner import Learner


def test_the_rates_of_a_histogram_are_the_shares_of_an_agent_on_dev(compared_ptb):
    folder = compared_ptb.folder / "dynamic-3"
    rates, shares = (
        learnt_rates(folder, "ptb"),
        row_of(folder)["metrics"]["dev_agent_share_1"]["mean"],
    )
    assert len(set(shares)) > 1
    np.testing.assert_allclose(rates, shares, atol=1e-6)
    found = replace(PTB.settings(), control="histogram", control_of=rates)
    np.testing.assert_allclose(make_spec("dynamic:3", found).skip.rates, shares, atol=1e-6)


# Agents in environments have a mode for each episode.
WITH_MODES = [name for name in NAMES if name != "popgym"]


@pytest.mark.parametrize("name", WITH_MODES)
def test_a_control_is_evaluated_in_the_modes_of_the_agent_it_is_compared_with(name):
    experiment = find_experiment(name)
    for preset in experiment.presets.values():
        for mode in ("greedy", "sample"):
            given = preset | {"evaluation_mode": mode}
            given.pop("train_embeddings", None)  # without which vectors would have to be given
            settings = replace(experiment.settings(), **given)
            agent = make_spec("dynamic:3", settings)
            control = make_spec("dynamic:3", replace(settings, control="untrained"))
            assert control.is_untrained and not agent.is_untrained
            assert control.evaluation_mode == agent.evaluation_mode == mode
            assert control.choices_matter() == agent.choices_matter()


# RESULTS.md says these numbers; with fewer samples, averaged scores would be worse.
SAMPLES = {"ptb": 10, "sst": 10, "agreement": 4, "classify": 4, "imdb": 4}


@pytest.mark.parametrize("name", WITH_MODES)
def test_averaged_scores_are_of_as_many_samples_as_the_results_say(name):
    asked = []

    def evaluate(params, split, keys, *, mode, samples, **_):
        asked.append((mode, samples))
        return {}

    learner = SimpleNamespace(evaluate=evaluate)
    spec = SimpleNamespace(evaluation_mode="greedy", choices_matter=lambda: True)
    parts = dict(learner=learner, spec=spec, experiment=find_experiment(name))
    trained = SimpleNamespace(all_params=None, keys=None, **parts)
    modes = Learner.modes(learner, spec, trained.experiment.samples)
    _scores(trained, "test", modes, advance=lambda _: None)
    assert asked == [("greedy", 1), ("sample", 1), ("sample", SAMPLES.get(name, 16))]


def test_recall_of_longer_rows_is_measured_in_both_modes():
    modes = []

    def evaluate(params, split, keys, *, mode):
        modes.append((split, mode))
        return {"twice_accuracy": np.array([len(modes)])}

    for matter, count in ((True, 3), (False, 1)):
        modes.clear()
        parts = dict(learner=SimpleNamespace(evaluate=evaluate), all_params=None, keys=None)
        spec = SimpleNamespace(choices_matter=lambda matter=matter: matter)
        found = measure_longer(SimpleNamespace(spec=spec, **parts))
        assert modes == [("twice", None), ("twice", "greedy"), ("twice", "sample")][:count]
        names = [f"test_accuracy_twice{suffix}" for suffix in ("", "_greedy", "_sampled")]
        assert found == {name: i + 1 for i, name in enumerate(names[:count])}


@pytest.mark.parametrize(
    ("given", "model", "matter"),
    [
        ({}, "dynamic:3", True),
        ({"mix": 0.0}, "dynamic:3", False),
        ({"mix": (0.0, 0.5)}, "dynamic:3", True),
        ({"mix": 0.0, "copy": "expected", "agent": "content"}, "dynamic:3", False),
        ({"mix": 0.0, "copy": "chosen", "agent": "content"}, "dynamic:3", True),
        ({"control": "mean"}, "dynamic:3", False),
        ({"control": "histogram", "control_of": (1.0, 1.0, 1.0)}, "dynamic:3", True),
    ],
)
def test_what_is_sampled_is_evaluated_where_it_changes_something(given, model, matter):
    found = replace(PTB.settings(), **{**PTB.presets["sketch"], **given})
    assert make_spec(model, found).choices_matter() == matter
