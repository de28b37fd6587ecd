"""Check scheduled values, and models trained together with different settings against single models."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from learners import (
    classification,
    language_modelling,
    letters,
    one_seed,
    symbols,
)

from dynskip_jax import functional as F
from dynskip_jax.devices.parallel import make_parallel
from dynskip_jax.errors import UserError
from dynskip_jax.models import SequenceClassifier
from dynskip_jax.tasks.agents import agents_loss
from dynskip_jax.training.agent_settings import AgentSettings
from dynskip_jax.training.folder import RunDir
from dynskip_jax.training.loop import FitSettings, Stopped, fit
from dynskip_jax.training.optimizer import make_optimizer
from dynskip_jax.training.sweep import ScheduledValues, Sweep

EXACT = AgentSettings(baseline="rollouts", rollouts=2, entropy="exact", entropy_coef=0.1)
SPLITS = symbols(40, 20)


def classifiers(seeds=(0,), objective=EXACT, skip="dynamic:4", mix=0.5, **options):
    return classification(SPLITS, seeds, skip=skip, mix=mix, objective=objective, **options)


def language_models(seeds=(0,), **options):
    objective = AgentSettings(baseline="batch", entropy_coef=0.1)
    return language_modelling(letters(26), seeds, objective=objective, **options)


def train(task, folder, epochs=2, **options):
    settings = FitSettings(
        seeds=task.seeds,
        epochs=epochs,
        optimizer=make_optimizer("adam"),
        learning_rate=lambda epoch, history: np.full(len(task.seeds), 0.02),
    )
    return fit(task, settings, RunDir.open(folder, {}), **options)


def assert_same_models(together, number, alone):
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(a[number], b[0], rtol=1e-4, atol=1e-5)


def test_numbers_of_a_schedule():
    objective = AgentSettings(entropy_coef=0.4, entropy_coef_final=0.0, relaxation="soft", relaxed_epochs=2)
    closing = dataclasses.replace(objective, relaxed_entropy_coef=0.2, relaxed_entropy_coef_final=-0.1)
    assert [objective.mode(epoch) for epoch in range(4)] == ["soft", "soft", "sample", "sample"]
    for settings, expected in (
        (objective, [0.4, 0.3, 0.2, 0.1, 0]),
        (closing, [0.2, -0.1, 0.2, 0.1, 0]),
        (AgentSettings(entropy_coef=0.4), [0.4] * 5),
    ):
        np.testing.assert_allclose([settings.beta(epoch, 5) for epoch in range(5)], expected, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("make", [classifiers, language_models])
def test_models_that_differ_in_mix_are_those_trained_alone(make, tmp_path):
    mixes = (0.2, 0.9)
    together = make((3, 4) * 2, sweep=Sweep(mix=tuple(m for m in mixes for _ in range(2))))
    found = train(together, tmp_path / "together")
    for number, mix in ((1, 0.2), (3, 0.9)):
        alone = make((4,), mix=mix)
        expected = train(alone, tmp_path / str(mix))
        assert_same_models(found.params, number, expected.params)
        keys = jax.random.split(jax.random.key(0), 1)
        ours = together.evaluate(found.params, "dev", jnp.repeat(keys, 4))
        theirs = alone.evaluate(expected.params, "dev", keys)
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name][number], value[0], rtol=1e-3, err_msg=name)


@pytest.mark.slow
def test_models_that_differ_in_their_objective_are_those_trained_alone(tmp_path):
    # The first epoch is relaxed, the second one samples; β decreases.
    others = dict(relaxation="gumbel_softmax", relaxed_epochs=1, entropy_coef_final=0.0)
    objective, own = (dataclasses.replace(EXACT, **others, entropy_coef=beta) for beta in (0.1, 0.5))
    together = classifiers((4, 4), objective, sweep=Sweep(entropy_coef=(0.02, 0.5)), epochs=2)
    found = train(together, tmp_path / "together")
    assert not np.allclose(*np.asarray(found.params["stack"]["cells"][0]["agent"]["w_x"][...]))
    assert_same_models(found.params, 1, train(classifiers((4,), own, epochs=2), tmp_path / "alone").params)


def test_what_models_are_told_that_differ_in_their_objective():
    objective = AgentSettings(entropy_coef_final=0.0, relaxation="soft", relaxed_epochs=2)
    sweep = Sweep(entropy_coef=(0.2, 0.8), update_cost=(0.0, 0.3))
    for epoch in range(3):
        ours = sweep.scheduled(objective, epoch, 3, 2, (F.Previous(), F.Dynamic(4)))
        assert ours.policy.mode == objective.mode(epoch)
        np.testing.assert_allclose(ours.entropy_coef, np.array([0.2, 0.8]) * (1 - epoch / 2), rtol=1e-6)
        np.testing.assert_allclose(ours.update_cost, [0, 0.3], rtol=1e-6)


@pytest.mark.slow
def test_models_with_a_smaller_K_never_reach_further(tmp_path):
    task = classifiers((0,) * 3, sweep=Sweep(max_skip=(1, 2, 4)))
    result = train(task, tmp_path)
    keys = jax.random.split(jax.random.key(0), 3)
    for mode in ("greedy", "sample"):
        for _, actions in task.choices(result.params, "dev", keys, layer=0, mode=mode):
            reach = actions.max(axis=(1, 2))
            assert reach[0] == 1
            assert reach[1] <= 2
    assert reach.tolist() == [1, 2, 4]
    # With one state there is nothing to choose: that model is a plain LSTM.
    entropy = task.evaluate(result.params, "dev", keys)["dev_agent_entropy_1"]
    assert entropy[0] == 0 < entropy[1] < entropy[2]


@pytest.mark.slow
def test_a_sweep_over_devices_is_the_same(tmp_path):
    task = classifiers((0, 1) * 2, sweep=Sweep(mix=(0.1, 0.1, 1.0, 1.0), max_skip=(2, 4, 2, 4)))
    found = [
        train(task, tmp_path / str(n), parallel=make_parallel(n, num_seeds=4, batch_size=8)).params
        for n in (1, 2)
    ]
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_training_goes_from_relaxed_to_sampled_choices_and_resumes_bit_for_bit(tmp_path):
    objective = dataclasses.replace(EXACT, entropy_coef_final=0.0, relaxation="soft", relaxed_epochs=2)
    task = classifiers((0, 1), objective, epochs=4)
    whole = train(task, tmp_path / "whole", epochs=4)
    for stop in (7, 12):  # in the second epoch of 5 steps (relaxed) and in the third (sampled)
        with pytest.raises(Stopped):
            train(task, tmp_path / str(stop), epochs=4, should_stop=lambda step, stop=stop: step == stop)
        resumed = train(task, tmp_path / str(stop), epochs=4)
        for a, b in zip(jax.tree.leaves(resumed.params), jax.tree.leaves(whole.params), strict=True):
            np.testing.assert_array_equal(a, b)
    sampled = train(classifiers((0, 1), epochs=4), tmp_path / "sampled", epochs=4)
    leaves = zip(jax.tree.leaves(sampled.params), jax.tree.leaves(whole.params), strict=True)
    assert not all(np.allclose(a, b) for a, b in leaves)


@pytest.mark.parametrize("entropy", ["sampled", "exact"])
def test_of_a_relaxed_agents_objective_the_exact_entropy_is_left(entropy):
    trace = F.DecisionTrace(
        jnp.ones((2, 3), int), jnp.full((2, 3), -5.0), jnp.arange(6.0).reshape(2, 3), mode="soft"
    )
    objective = AgentSettings(entropy=entropy, relaxation="soft", relaxed_epochs=1)
    scheduled, nll = ScheduledValues(F.Policy("soft"), -0.5), jnp.array([1.0, 2.0])
    loss = jax.jit(partial(agents_loss, objective, scheduled, [trace]))(nll, -nll) - 1.5
    np.testing.assert_allclose(loss, 0.5 * (0 + 1 + 2 + 3 + 4 + 5) / 2)


@pytest.mark.slow
def test_averaged_predictions_are_means_of_probabilities():
    task = classifiers(objective=AgentSettings(entropy_coef=0.0), mix=1.0)
    params = task.init(jax.random.key(1))
    keys = jax.random.split(jax.random.key(3), 1)
    dev, samples = SPLITS["dev"], 5
    # The samples of an example are adjacent rows, drawn with the key of the first and only batch.
    key = jax.random.fold_in(keys[0], 0)
    rows = np.repeat(dev.inputs, samples, axis=0)
    logits = task.model(params)(
        jnp.asarray(rows), rngs=key, policy=F.Policy("sample"), deterministic=True
    ).logits
    mean = np.asarray(jax.nn.softmax(logits), float).reshape(len(dev), samples, -1).mean(axis=1)
    nll = -np.log(mean[np.arange(len(dev)), dev.targets])
    read = dict(batch_size=len(dev))
    averaged = task.evaluate(one_seed(params), "dev", keys, mode="sample", samples=samples, **read)
    np.testing.assert_allclose(averaged["dev_nll"], nll.mean(), rtol=1e-5)
    accuracy = (mean.argmax(-1) == dev.targets).mean()
    np.testing.assert_allclose(averaged["dev_accuracy"], accuracy, rtol=1e-6)
    greedy, repeated = (
        task.evaluate(one_seed(params), "dev", keys, mode="greedy", samples=n, **read) for n in (1, 3)
    )
    for name, value in greedy.items():
        np.testing.assert_allclose(repeated[name], value, rtol=1e-5, err_msg=name)


def test_positions_stand_beside_the_symbols():
    same = jnp.zeros((2, 7), jnp.int32)
    outputs = []
    for positions in (0, 7):

        def inputs(same, positions=positions):
            model = SequenceClassifier(6, 8, 3, [F.Previous()], num_positions=positions, rngs=nnx.Rngs(0))
            assert model.stack.cells[0].in_features == 6 + positions
            return model(same).observations[0][0]

        outputs.append(jax.device_get(jax.jit(inputs)(same)))
    assert (outputs[0][:, 0] == outputs[0][:, 3]).all()
    np.testing.assert_array_equal(outputs[1][0, :, 6:], np.eye(7))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(baseline="rollouts"), "at least 2 rollouts"),
        (dict(relaxed_epochs=2), "need a relaxation"),
        (dict(relaxed_entropy_coef_final=-0.1), "give both"),
    ],
    ids=str,
)
def test_objectives_without_a_meaning_are_refused(settings, words, as_users):
    with pytest.raises(UserError, match=words):
        AgentSettings(**settings).check()
