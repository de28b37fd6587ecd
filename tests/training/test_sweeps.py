"""Check scheduled values, and models trained together against single models."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import classification, language_modelling, letters, symbols

from dynskip_jax import functional as F
from dynskip_jax.config.settings import Agent, Settings
from dynskip_jax.errors import UserError
from dynskip_jax.storage.folder import RunDir
from dynskip_jax.tasks.agents import agents_loss
from dynskip_jax.training.loop import FitSettings, fit
from dynskip_jax.training.optimizer import make_optimizer
from dynskip_jax.training.scheduled import ScheduledValues, beta, policy_mode, scheduled_values

EXACT = Agent(baseline="rollouts", rollouts=2, entropy="exact", entropy_coef=0.1)
SPLITS = symbols(40, 20)


def classifiers(seeds=(0,), objective=EXACT, skip="dynamic:4", mix=0.5, **options):
    return classification(SPLITS, seeds, skip=skip, mix=mix, objective=objective, **options)


def language_models(seeds=(0,), **options):
    objective = Agent(baseline="batch", entropy_coef=0.1)
    return language_modelling(letters(26), seeds, objective=objective, **options)


def train(task, folder, epochs=2, **options):
    rate = lambda epoch, history: np.full(len(task.seeds), 0.02)
    settings = FitSettings(task.seeds, epochs, make_optimizer("adam"), rate)
    return fit(task, settings, RunDir.open(folder, {}), **options)


def test_numbers_of_a_schedule():
    objective = Agent(entropy_coef=0.4, entropy_coef_final=0.0, relaxation="soft", relaxed_epochs=2)
    closing = dataclasses.replace(objective, relaxed_entropy_coef=(0.2, -0.1))
    assert [policy_mode(objective, epoch) for epoch in range(4)] == [
        "soft",
        "soft",
        "sample",
        "sample",
    ]
    for agent, expected in (
        (objective, [0.4, 0.3, 0.2, 0.1, 0]),
        (closing, [0.2, -0.1, 0.2, 0.1, 0]),
        (Agent(entropy_coef=0.4), [0.4] * 5),
    ):
        found = [beta(agent, epoch, 5) for epoch in range(5)]
        np.testing.assert_allclose(found, expected, atol=1e-12)


ALONE = {"classifiers": classifiers, "language models": language_models}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_models_of_a_sweep_are_those_trained_alone(name, tmp_path):
    both = ALONE[name]((4, 4), epochs=2, mixes=(0.2, 0.9))
    alone = ALONE[name]((4,), epochs=2, mix=0.9)
    found = train(both, tmp_path / "both").params
    expected = train(alone, tmp_path / "alone").params
    assert any(not np.allclose(*leaf, rtol=1e-3) for leaf in jax.tree.leaves(found))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a[1], b[0], rtol=1e-4, atol=1e-5)
    keys = jax.random.split(jax.random.key(0), 1)
    ours = both.evaluate(found, "dev", jnp.repeat(keys, 2))
    theirs = alone.evaluate(expected, "dev", keys)
    for metric, value in theirs.items():
        np.testing.assert_allclose(ours[metric][1], value[0], rtol=1e-3, err_msg=metric)


def test_what_models_are_told_in_each_epoch():
    relaxed = dict(relaxation="soft", relaxed_epochs=2)
    objective = Agent(entropy_coef=0.8, entropy_coef_final=0.0, update_cost=0.3, **relaxed)
    for epoch in range(3):
        ours = scheduled_values(objective, epoch, 3, 2)
        assert ours.policy.mode == policy_mode(objective, epoch)
        np.testing.assert_allclose(ours.entropy_coef, [0.8 * (1 - epoch / 2)] * 2, rtol=1e-6)
        np.testing.assert_allclose(ours.update_cost, [0.3, 0.3], rtol=1e-6)


@pytest.mark.parametrize("entropy", ["sampled", "exact"])
def test_of_a_relaxed_agents_objective_the_exact_entropy_is_left(entropy):
    trace = F.DecisionTrace(
        jnp.ones((2, 3), int), jnp.full((2, 3), -5.0), jnp.arange(6.0).reshape(2, 3), mode="soft"
    )
    objective = Agent(entropy=entropy, relaxation="soft", relaxed_epochs=1)
    scheduled = ScheduledValues(F.Policy("soft"), -0.5)
    nll = jnp.array([1.0, 2.0])
    loss = jax.jit(partial(agents_loss, objective, scheduled, [trace]))(nll, -nll) - 1.5
    np.testing.assert_allclose(loss, 0.5 * (0 + 1 + 2 + 3 + 4 + 5) / 2)


def test_objectives_without_a_meaning_are_refused():
    with pytest.raises(UserError, match="at least 2 rollouts"):
        Settings(agent=Agent(baseline="rollouts"))
    with pytest.raises(UserError, match="need a relaxation"):
        Settings(agent=Agent(relaxed_epochs=2))
