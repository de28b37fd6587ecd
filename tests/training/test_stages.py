"""What changes between epochs, and what models trained together differ in: against models trained alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.data import make_corpus
from dynskip_jax.devices.parallel import make_parallel
from dynskip_jax.errors import UserError
from dynskip_jax.functional import Dynamic, Previous, TimeSkip, parse_time_skip
from dynskip_jax.runs.run_dir import RunDir
from dynskip_jax.tasks.classification import Classification, ClassificationSettings, Examples
from dynskip_jax.tasks.language_modelling import LanguageModelling, LanguageModellingSettings
from dynskip_jax.training.loop import FitSettings, Stopped, fit
from dynskip_jax.training.objective import AgentObjective, AgentStage
from dynskip_jax.training.optimizer import make_optimizer
from dynskip_jax.training.schedule import geometric, linear
from dynskip_jax.training.stage import Sweep, of_model

EXACT = AgentObjective(baseline="rollouts", rollouts=2, entropy="exact", entropy_coef=0.1)


def splits():
    rng = np.random.default_rng(0)
    x = rng.integers(6, size=(60, 7)).astype(np.int32)
    y = x[:, -2] % 3
    return {"train": Examples(x[:40], y[:40]), "dev": Examples(x[40:], y[40:])}


def classification(seeds=(0,), objective=EXACT, skip="dynamic:4", **settings):
    return Classification(
        splits(),
        ClassificationSettings(
            skips=(skip if isinstance(skip, TimeSkip) else parse_time_skip(skip, mix=0.5),),
            features=6,
            num_symbols=6,
            num_classes=3,
            batch_size=8,
            seeds=seeds,
            cell_options=({"agent_features": 5},),
            objective=objective,
            **settings,
        ),
    )


def language_modelling(sweep, num_seeds=1, mix=0.5):
    words = np.random.default_rng(1).choice(list("abcdefg"), size=(40, 4))
    lines = [" ".join(row) for row in words]
    corpus = make_corpus("letters", {"train": lines[:26], "valid": lines[26:33], "test": lines[33:]}, "here")
    return LanguageModelling(
        corpus,
        LanguageModellingSettings(
            skips=(Previous(), parse_time_skip("dynamic:3", mix=mix)),
            features=6,
            batch_size=4,
            num_steps=6,
            dropout=0.0,
            init_scale=0.3,
            cell_options=({}, {"agent_features": 5}),
            objective=AgentObjective(baseline="batch", entropy_coef=0.1),
            num_seeds=num_seeds,
            sweep=sweep,
        ),
    )


def train(task, seeds, folder, epochs=2, **options):
    settings = FitSettings(
        seeds=seeds,
        epochs=epochs,
        optimizer=make_optimizer("adam"),
        learning_rate=lambda epoch, history: np.full(len(seeds), 0.02),
    )
    return fit(task, settings, RunDir.open(folder, {}), announce=lambda line: None, **options)


def assert_same_models(together, number, alone):
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(a[number], b[0], rtol=1e-4, atol=1e-5)


def test_numbers_of_a_schedule():
    np.testing.assert_allclose([linear(2.0, 1.0, epoch, 3) for epoch in range(5)], [2, 1.5, 1, 1, 1])
    np.testing.assert_allclose([geometric(4.0, 1.0, epoch, 3) for epoch in range(4)], [4, 2, 1, 1])
    assert linear(2.0, 1.0, 0, 1) == 2.0
    objective = AgentObjective(
        entropy_coef=0.4, entropy_coef_final=0.0, relaxation="soft", relaxed_epochs=2, temperature_final=0.25
    )
    assert [objective.stage(epoch, 5).policy.mode for epoch in range(4)] == [
        "soft",
        "soft",
        "sample",
        "sample",
    ]
    np.testing.assert_allclose(
        [objective.stage(epoch, 5).entropy_coef for epoch in range(5)], [0.4, 0.3, 0.2, 0.1, 0]
    )
    assert [objective.stage(epoch, 5).policy.temperature for epoch in range(3)] == [1.0, 0.25, 0.25]
    closing = dataclasses.replace(objective, relaxed_entropy_coef=0.2, relaxed_entropy_coef_final=-0.1)
    coefs = [closing.stage(epoch, 5).entropy_coef for epoch in range(5)]
    np.testing.assert_allclose(coefs, [0.2, -0.1, 0.2, 0.1, 0], atol=1e-12)
    constant = AgentObjective(entropy_coef=0.4)
    assert {constant.stage(epoch, 5).entropy_coef for epoch in range(5)} == {0.4}
    assert {constant.stage(epoch, 5).policy.mode for epoch in range(5)} == {"sample"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "language modelling"])
def test_models_that_differ_in_mix_are_those_trained_alone(kind, tmp_path):
    mixes = (0.2, 0.9)
    sweep = Sweep(mix=tuple(m for m in mixes for _ in range(2)))
    if kind == "classification":
        together = classification((3, 4) * 2, sweep=sweep)
        alone = {mix: classification((4,), skip=Dynamic(4, mix)) for mix in mixes}
    else:
        together = language_modelling(sweep, num_seeds=4)
        alone = {mix: language_modelling(Sweep(), mix=mix) for mix in mixes}
    found = train(together, (3, 4) * 2, tmp_path / "together")
    for number, mix in ((1, 0.2), (3, 0.9)):
        expected = train(alone[mix], (4,), tmp_path / str(mix))
        assert_same_models(found.params, number, expected.params)
        keys = jax.random.split(jax.random.key(0), 1)
        ours = together.evaluate(found.params, "dev", jnp.repeat(keys, 4))
        theirs = alone[mix].evaluate(expected.params, "dev", keys)
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name][number], value[0], rtol=1e-3, err_msg=name)


def test_models_with_a_smaller_K_never_reach_further(tmp_path):
    task = classification((0,) * 3, sweep=Sweep(max_skip=(1, 2, 4)))
    result = train(task, (0,) * 3, tmp_path)
    keys = jax.random.split(jax.random.key(0), 3)
    for mode in ("greedy", "sample"):
        for _, _, actions in task._run(result.params, "dev", keys, mode):
            reach = np.asarray(actions[0]).max(axis=(1, 2))
            assert reach[0] == 1
            assert reach[1] <= 2
    assert reach.tolist() == [1, 2, 4]
    # With one state to choose from there is nothing to choose: a plain LSTM, trained beside the others.
    entropy = task.evaluate(result.params, "dev", keys)["dev_agent_entropy_1"]
    assert entropy[0] == 0 < entropy[1] < entropy[2]


@pytest.mark.slow
def test_a_sweep_over_devices_is_the_same(tmp_path):
    results = []
    for devices in (1, 2):
        task = classification((0, 1) * 2, sweep=Sweep(mix=(0.1, 0.1, 1.0, 1.0), max_skip=(2, 4, 2, 4)))
        parallel = make_parallel(devices, num_seeds=4, batch_size=8)
        results.append(train(task, (0, 1) * 2, tmp_path / str(devices), parallel=parallel).params)
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_training_goes_from_relaxed_to_sampled_choices_and_resumes_bit_for_bit(tmp_path):
    objective = dataclasses.replace(
        EXACT, entropy_coef_final=0.0, relaxation="soft", relaxed_epochs=2, temperature_final=0.5
    )
    make = lambda: classification((0, 1), objective, epochs=4)
    whole = train(make(), (0, 1), tmp_path / "whole", epochs=4)
    for stop in (7, 12):  # inside the second epoch of 5 steps, relaxed; and inside the third, sampled
        with pytest.raises(Stopped):
            train(
                make(),
                (0, 1),
                tmp_path / str(stop),
                epochs=4,
                should_stop=lambda step, stop=stop: step == stop,
            )
        resumed = train(make(), (0, 1), tmp_path / str(stop), epochs=4)
        for a, b in zip(jax.tree.leaves(resumed.params), jax.tree.leaves(whole.params), strict=True):
            np.testing.assert_array_equal(a, b)
    sampled = train(classification((0, 1), EXACT, epochs=4), (0, 1), tmp_path / "sampled", epochs=4)
    leaves = zip(jax.tree.leaves(sampled.params), jax.tree.leaves(whole.params), strict=True)
    assert not all(np.allclose(a, b) for a, b in leaves)


def loss_and_gradient(objective, carry=None, **settings):
    task = classification(objective=objective, skip=Dynamic(4, 1.0), **settings)
    params = task.init(jax.random.key(1))
    batch = jax.tree.map(lambda leaf: leaf[0], next(iter(task.train_batches(0))))
    carry = task.initial_carry(params, jax.random.key(0)) if carry is None else carry
    stage = of_model(task.stage(0), 0)
    value = jax.value_and_grad(task.loss, has_aux=True)
    return value(params, carry, batch, jax.random.key(2), stage)


def cell_of(gradient):
    return gradient["stack"]["layers"][0]["cell"]


def agent_gradient(gradient):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(cell_of(gradient)["agent"])])


def test_a_moving_average_is_that_of_the_rewards_so_far():
    objective = AgentObjective(baseline="moving_average", entropy_coef=0.0, decay=0.8)
    (_, (carry, sums)), first = loss_and_gradient(objective)
    nll = sums["nll"] / sums["examples"]
    np.testing.assert_allclose(F.moving_average_value(carry), np.full(8, -nll), rtol=1e-5)
    # The first batch has no past: nothing is subtracted from it. The next one is compared with the first.
    _, none = loss_and_gradient(AgentObjective(entropy_coef=0.0))
    np.testing.assert_allclose(agent_gradient(first), agent_gradient(none), rtol=1e-4, atol=1e-6)
    (_, (later, _)), second = loss_and_gradient(objective, carry)
    assert np.abs(agent_gradient(second)).sum() < 0.5 * np.abs(agent_gradient(first)).sum()
    np.testing.assert_allclose(later.weight, np.full(8, 1 - 0.8**2), rtol=1e-6)


def test_a_critic_is_fitted_and_leaves_the_network_alone():
    objective = AgentObjective(baseline="learned", entropy_coef=0.0)
    _, gradient = loss_and_gradient(objective)
    plain = loss_and_gradient(AgentObjective(entropy_coef=0.0))[1]
    critic = jax.tree.leaves(gradient["critics"])
    assert len(critic) == 5 and all(np.abs(leaf).max() > 1e-4 for leaf in critic)
    for name in ("w_x", "w_h", "b"):
        ours, theirs = (cell_of(g)["weights"][name][...] for g in (gradient, plain))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_vimco_trains_the_averaged_prediction():
    vimco = AgentObjective(estimator="vimco", rollouts=3, entropy_coef=0.0)
    alone = AgentObjective(rollouts=3, entropy_coef=0.0)
    nll = jnp.array([0.1, 2.0, 0.7, 1.0, 1.0, 1.0])  # three rollouts of two examples
    expected = -np.log(np.exp(-np.array(nll)).reshape(2, 3).mean(axis=1)).mean()

    def network_loss(objective, mode):
        return objective.loss(AgentStage(F.Policy(mode), 0.0), nll, (), valid=None)

    np.testing.assert_allclose(network_loss(vimco, "sample"), expected, rtol=1e-6)
    for objective, mode in ((vimco, "soft"), (alone, "sample")):
        np.testing.assert_allclose(network_loss(objective, mode), nll.mean(), rtol=1e-6)
    # The metrics stay those of single samples; the agent gets a gradient of its own.
    (_, (_, sums)), gradient = loss_and_gradient(vimco)
    (_, (_, of_samples)), other = loss_and_gradient(alone)
    np.testing.assert_allclose(sums["nll"], of_samples["nll"], rtol=1e-6)
    assert np.abs(agent_gradient(gradient)).max() > 1e-6
    assert not np.allclose(agent_gradient(gradient), agent_gradient(other))


@pytest.mark.parametrize("entropy", ["sampled", "exact"])
def test_of_a_relaxed_agents_objective_the_exact_entropy_is_left(entropy):
    decision = F.Decision(jnp.ones((2, 3), int), jnp.full((2, 3), -5.0), jnp.arange(6.0).reshape(2, 3))
    objective = AgentObjective(entropy=entropy, relaxation="soft", relaxed_epochs=1)
    stage, nll = AgentStage(F.Policy("soft"), -0.5), jnp.array([1.0, 2.0])
    loss = objective.loss(stage, nll, decision, valid=None) - nll.mean()
    np.testing.assert_allclose(loss, 0.5 * (0 + 1 + 2 + 3 + 4 + 5) / 2)


def test_averaged_predictions_are_means_of_probabilities():
    task = classification(skip=Dynamic(4, 1.0))
    params = jax.tree.map(lambda leaf: leaf[None], task.init(jax.random.key(1)))
    keys = jax.random.split(jax.random.key(3), 1)
    model = nnx.merge(task.graphdef, jax.tree.map(lambda leaf: leaf[0], params))
    dev = task.splits["dev"]
    total = 0
    key = jax.random.fold_in(keys[0], 0)  # of the first batch, which is all of them
    x = np.concatenate(
        [dev.x, np.repeat(dev.x[:1], task.settings.evaluation_batch_size - len(dev.x), axis=0)]
    )
    for sample in jax.random.split(key, 5):
        total += jax.nn.softmax(model(jnp.asarray(x), rngs=sample).logits)[: len(dev.x)]
    nll = -np.log(np.asarray(total / 5)[np.arange(len(dev.y)), dev.y])
    averaged = task.evaluate(params, "dev", keys, mode="sample", samples=5)
    np.testing.assert_allclose(averaged["dev_nll"], nll.mean(), rtol=1e-5)
    np.testing.assert_allclose(averaged["dev_accuracy"], (total.argmax(-1) == dev.y).mean(), rtol=1e-6)
    greedy, repeated = (task.evaluate(params, "dev", keys, mode="greedy", samples=n) for n in (1, 3))
    np.testing.assert_allclose(greedy["dev_nll"], repeated["dev_nll"], rtol=1e-5)


def test_positions_stand_beside_the_symbols():
    same = jnp.zeros((2, 7), jnp.int32)
    outputs = []
    for positions in (0, 7):
        task = classification(skip="lstm", num_positions=positions)
        model = task._model(jax.random.key(0))
        assert model.stack.layers[0].cell.in_features == 6 + positions
        x = model(same).observations[0][0]
        outputs.append(x)
    assert (outputs[0][:, 0] == outputs[0][:, 3]).all()
    np.testing.assert_array_equal(outputs[1][0, :, 6:], np.eye(7))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(estimator="vimco"), "at least 2"),
        (dict(estimator="vimco", rollouts=2, baseline="batch", entropy_coef=0.0), "baseline of its own"),
        (dict(estimator="vimco", rollouts=2, reward="correct", entropy_coef=0.0), "log_likelihood"),
        (dict(estimator="vimco", rollouts=2), "exact entropy"),
        (dict(relaxed_epochs=2), "need a relaxation"),
        (dict(relaxed_entropy_coef_final=-0.1), "give both"),
        (dict(temperature=0.0), "positive"),
        (dict(temperature_final=-1.0), "positive"),
        (dict(decay=1.0), "decay"),
        (dict(entropy_coef_final=-0.1), "negative"),
        (dict(relaxation="hard"), "unknown relaxation"),
    ],
    ids=str,
)
def test_objectives_without_a_meaning_are_refused(settings, words):
    with pytest.raises(UserError, match=words):
        AgentObjective(**settings)


def test_language_models_say_which_baselines_they_have():
    task = language_modelling(Sweep())
    for baseline in ("learned", "moving_average"):
        objective = dataclasses.replace(task.settings.objective, baseline=baseline)
        with pytest.raises(UserError, match="choose none, batch or rollouts"):
            LanguageModelling(task.corpus, dataclasses.replace(task.settings, objective=objective))
