"""The update on many devices, jit over a mesh and pmap, against one device: noise included, and resumed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import classification, language_modelling, letters, symbols

from dynskip_jax.devices.parallel import OneDevice, Pmap, ShardedJit, make_parallel
from dynskip_jax.errors import UserError
from dynskip_jax.runs.run_dir import RunDir
from dynskip_jax.training.loop import FitSettings, Stopped, fit
from dynskip_jax.training.objective import AgentObjective
from dynskip_jax.training.optimizer import make_optimizer
from dynskip_jax.training.step import make_step, seed_keys, start_state

BATCH = 8


def classifiers(num_seeds, baseline):
    return classification(
        symbols(42, 8, time=6),
        range(num_seeds),
        mix=0.5,
        batch_size=BATCH,
        model={"dropout": 0.3},
        cell={"recurrent_dropout": 0.2, "learnable_carry": True},
        objective=AgentObjective(baseline=baseline, rollouts=2),
    )


def language_models(num_seeds, baseline):
    return language_modelling(
        letters(38, 6, 6),
        range(num_seeds),
        batch_size=BATCH,
        num_steps=5,
        model={"dropout": 0.3},
        cell={"recurrent_dropout": 0.2},
        objective=AgentObjective(baseline=baseline, entropy_coef=0.1, discount=0.9),
    )


# Leave-one-out rollouts stay with their example; the baseline `batch` is taken over all devices.
TASKS = {
    "classification": (classifiers, "rollouts"),
    "classification, batch baseline": (classifiers, "batch"),
    "classification, moving average": (classifiers, "moving_average"),
    "language modelling": (language_models, "batch"),
}


@functools.cache
def learner_of(kind, num_seeds):
    """One for all devices: its evaluation is compiled once."""
    make, baseline = TASKS[kind]
    return make(num_seeds, baseline)


def train(kind, folder, *, num_seeds=1, devices=1, way="jit", epochs=2, stop_after=None):
    task = learner_of(kind, num_seeds)
    assert task.num_batches >= 4
    settings = FitSettings(
        seeds=tuple(range(num_seeds)),
        epochs=epochs,
        optimizer=make_optimizer("sgd", clip=5.0, agent_learning_rate=0.01),
        learning_rate=lambda epoch, history: np.full(num_seeds, 0.2),
        log_every=2,
    )
    return fit(
        task,
        settings,
        RunDir.open(folder, {}),
        parallel=make_parallel(devices, way, num_seeds=num_seeds, batch_size=BATCH),
        announce=lambda line: None,
        should_stop=lambda step: step == stop_after,
    )


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    """Runs on one device: (result, records), by kind and number of seeds."""
    done = {}

    def get(kind, num_seeds=1):
        if (kind, num_seeds) not in done:
            folder = tmp_path_factory.mktemp("one")
            result = train(kind, folder, num_seeds=num_seeds)
            done[kind, num_seeds] = result, RunDir.open(folder, {}).records()
        return done[kind, num_seeds]

    return get


def assert_same_run(result, folder, expected):
    expected_result, expected_records = expected
    assert jax.tree.structure(result.params) == jax.tree.structure(expected_result.params)
    for a, e in zip(jax.tree.leaves(result.params), jax.tree.leaves(expected_result.params), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-6)
    assert result.best_epoch.tolist() == expected_result.best_epoch.tolist()
    records = RunDir.open(folder, {}).records()
    assert len(records) == len(expected_records)
    for one, other in zip(records, expected_records, strict=True):
        assert one.keys() == other.keys()
        assert one["split"] == other["split"]
        for name in one.keys() - {"split"}:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "devices", "way"),
    [
        pytest.param("classification", 2, "jit", marks=pytest.mark.slow),
        ("classification, batch baseline", 4, "pmap"),  # where the update itself exchanges
        pytest.param("classification", 2, "pmap", marks=pytest.mark.slow),
        pytest.param("classification, batch baseline", 4, "jit", marks=pytest.mark.slow),
        *(
            pytest.param(kind, devices, way, marks=pytest.mark.slow)
            for kind, devices in (
                ("language modelling", 2),
                ("classification, moving average", 2),
                ("classification", 4),
                ("classification", 8),
                ("language modelling", 4),
                ("language modelling", 8),
            )
            for way in ("jit", "pmap")
        ),
    ],
)
def test_devices_that_share_batches_train_as_one_does(kind, way, devices, one_device, tmp_path):
    result = train(kind, tmp_path, devices=devices, way=way)
    assert_same_run(result, tmp_path, one_device(kind))


@pytest.mark.parametrize("way", ["jit", pytest.param("pmap", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind", ["classification", pytest.param("language modelling", marks=pytest.mark.slow)]
)
def test_devices_with_seeds_of_their_own_train_as_one_does(kind, way, one_device, tmp_path):
    result = train(kind, tmp_path, num_seeds=4, devices=2, way=way)
    assert_same_run(result, tmp_path, one_device(kind, 4))


@pytest.mark.parametrize("way", ["jit", "pmap"])
@pytest.mark.slow
def test_several_seeds_share_batches_where_they_do_not_divide(way, one_device, tmp_path):
    result = train("classification", tmp_path, num_seeds=3, devices=2, way=way)
    assert_same_run(result, tmp_path, one_device("classification", 3))


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("classification", (4, "jit"), (1, "jit")),
        pytest.param("language modelling", (1, "jit"), (4, "jit"), marks=pytest.mark.slow),
        pytest.param("language modelling", (4, "pmap"), (8, "jit"), marks=pytest.mark.slow),
        pytest.param("language modelling", (4, "jit"), (2, "pmap"), marks=pytest.mark.slow),
    ],
)
def test_run_resumes_on_other_devices(kind, first, second, one_device, tmp_path):
    with pytest.raises(Stopped):
        train(kind, tmp_path, devices=first[0], way=first[1], stop_after=3)
    result = train(kind, tmp_path, devices=second[0], way=second[1])
    assert_same_run(result, tmp_path, one_device(kind))


@pytest.mark.parametrize(
    ("kind", "devices", "way"),
    [
        ("classification", 2, "jit"),
        *(("language modelling", 4, way) for way in ("jit", "pmap")),
    ],
)
@pytest.mark.slow
def test_stopped_run_on_many_devices_resumes_bit_for_bit(kind, devices, way, tmp_path):
    how = dict(devices=devices, way=way)
    whole = train(kind, tmp_path / "whole", **how)
    with pytest.raises(Stopped):
        train(kind, tmp_path / "run", stop_after=3, **how)
    resumed = train(kind, tmp_path / "run", **how)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, whole.params)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (
        tmp_path / "whole" / "metrics.jsonl"
    ).read_bytes()


# --- What the compiled programs do ---


def compiled_step(kind, num_seeds, devices):
    task = learner_of(kind, num_seeds)
    parallel = make_parallel(devices, num_seeds=num_seeds, batch_size=BATCH)
    keys = seed_keys(tuple(range(num_seeds)))
    optimizer = make_optimizer("sgd", clip=5.0)
    state = start_state(task, optimizer, keys)
    stage = task.stage(0)
    step = make_step(task, optimizer, parallel)
    batch = next(iter(task.train_batches(0)))
    arguments = state, batch, keys.train, 0, jnp.ones(num_seeds), stage, jnp.zeros(num_seeds, bool)
    return step.lower(*arguments).compile().as_text()


@pytest.mark.parametrize(
    "kind", ["classification", pytest.param("language modelling", marks=pytest.mark.slow)]
)
def test_seeds_are_evaluated_where_they_train(kind):
    task = learner_of(kind, 4)
    keys = seed_keys((0, 1, 2, 3))
    params = jax.jit(jax.vmap(task.init))(keys.init)
    shared, alone = (make_parallel(n, num_seeds=4, batch_size=BATCH) for n in (2, 1))
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(shared.spread(params))} == {2}
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(alone.spread(params))} == {1}
    found, expected = (
        task.evaluate(p.spread(params), "dev", p.spread(keys.evaluate), mode="sample", samples=3)
        for p in (shared, alone)
    )
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)
    # Devices that share a batch do not divide an evaluation.
    by_batch = make_parallel(2, num_seeds=1, batch_size=BATCH)
    assert by_batch.spread(params) is params


# What would move activations from device to device.
OTHER_COLLECTIVES = ("all-gather", "all-to-all", "collective-permute")


@pytest.mark.parametrize(
    "kind", ["classification", pytest.param("language modelling", marks=pytest.mark.slow)]
)
def test_seeds_of_their_own_need_no_communication(kind):
    program = compiled_step(kind, 4, 4)
    assert not any(name in program for name in ("all-reduce", *OTHER_COLLECTIVES))


@pytest.mark.parametrize(
    "kind", ["language modelling", pytest.param("classification", marks=pytest.mark.slow)]
)
def test_shared_batches_exchange_sums_and_no_activations(kind):
    program = compiled_step(kind, 1, 4)
    assert "all-reduce" in program
    assert not any(name in program for name in OTHER_COLLECTIVES)


# --- The choice ---


@pytest.mark.parametrize(
    ("devices", "way", "seeds", "kind", "mesh"),
    [
        (1, "jit", 4, OneDevice, None),
        (4, "jit", 8, ShardedJit, (4, 1)),
        (4, "jit", 2, ShardedJit, (1, 4)),
        (4, "jit", 1, ShardedJit, (1, 4)),
        (4, "pmap", 1, Pmap, None),
    ],
)
def test_seeds_are_divided_first(devices, way, seeds, kind, mesh):
    parallel = make_parallel(devices, way, num_seeds=seeds, batch_size=8)
    assert type(parallel) is kind
    assert parallel.devices == tuple(jax.devices()[:devices])
    if mesh:
        assert parallel.mesh.devices.shape == mesh


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((8, "jit", 1, 20), "--batch-size 20 cannot be shared by 8 devices: choose a multiple of 8"),
        ((3, "pmap", 2, 20), "--batch-size 20 cannot be shared by 3 devices: choose a multiple of 3"),
        ((16, "jit", 1, 32), "--devices 16 is more than there are: this machine has 8"),
        ((0, "jit", 1, 32), "--devices must be at least 1, got 0"),
        ((1, "xmap", 1, 32), "--parallel is 'xmap': choose jit or pmap"),
    ],
)
def test_devices_that_cannot_be_had(arguments, message):
    devices, way, seeds, batch_size = arguments
    with pytest.raises(UserError, match=message):
        make_parallel(devices, way, num_seeds=seeds, batch_size=batch_size)
