"""Check updates on several devices, by jit and by pmap, against one device, also resumed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import classification, drawn_params, language_modelling, letters, symbols, together
from marks import and_slow

from dynskip_jax import rl
from dynskip_jax.config.settings import Agent
from dynskip_jax.errors import UserError
from dynskip_jax.storage.folder import RunDir
from dynskip_jax.training.loop import FitSettings, fit
from dynskip_jax.training.mesh import PER_SEED, batch_spec, make_parallel
from dynskip_jax.training.optimizer import make_optimizer
from dynskip_jax.training.step import LAYOUT, TrainState, make_step, seed_keys, start_state

BATCH = 8
NOISE = dict(model={"dropout": 0.3}, cell={"recurrent_dropout": 0.2, "learnable_carry": True})


# Penalties of the states are means over the steps of a batch.


def classifiers(num_seeds, baseline, **options):
    splits = symbols(42, 8, time=6)
    objective = Agent(baseline=baseline, rollouts=2 if baseline == "rollouts" else 1)
    return classification(
        splits, range(num_seeds), mix=0.5, batch_size=BATCH, objective=objective, **options
    )


def language_models(num_seeds):
    objective = Agent(baseline="batch", entropy_coef=0.1, discount=0.9)
    options = dict(model={"dropout": 0.3}, cell={"recurrent_dropout": 0.2}, objective=objective)
    return language_modelling(
        letters(38, 6, 6), range(num_seeds), batch_size=BATCH, num_steps=5, **options
    )


class Small:
    """A task that compiles fast, with noise, a carry, and a baseline for each example."""

    monitor = "dev_loss"
    higher_is_better = False
    primary_metric = "loss"
    num_batches = 4
    unit = "examples"

    def __init__(self, num_seeds, batch_axis):
        self.num_seeds = num_seeds
        self.batch_axis = batch_axis

    def init(self, key):
        w, agent = jax.random.normal(key, (2, 3))
        return {"w": w, "agent": agent}

    def initial_carry(self, params, key):
        return jax.random.normal(key, (BATCH, 3))

    def scheduled(self, epoch):
        return ()

    def train_batch_sizes(self, epoch):
        return [BATCH] * self.num_batches

    def train_batches(self, epoch):
        own = () if self.batch_axis is None else (self.num_seeds,)
        shape = (self.num_batches, *own, BATCH, 3)
        return np.random.default_rng(epoch).normal(size=shape).astype(np.float32)

    def loss(self, params, carry, batch, keys, scheduled, axis_name=None):
        noise = jax.vmap(lambda key: jax.random.normal(key, (3,)))(keys)
        z = jnp.tanh(batch * params["w"][None] + carry + noise)
        reward = jnp.sin(3 * z).sum(axis=1)
        returns = jax.lax.stop_gradient(reward)
        advantage = returns - rl.leave_one_out(returns, axis_name=axis_name)
        loss = (reward + (z @ params["agent"]) * advantage).mean()
        return loss, (z, {"loss": reward.sum(), "count": jnp.float32(len(reward))})

    def summarise(self, sums):
        return {"loss": sums["loss"] / sums["count"]}

    def evaluate(self, params, split, keys):
        return {"dev_loss": np.sin(np.asarray(params["w"])).sum(axis=1)}


# The rollouts of an example stay on one device; the baseline `batch` is a mean over all devices.
TASKS = {
    "classification": lambda n: classifiers(n, "rollouts", **NOISE),
    "classification, batch baseline": lambda n: classifiers(n, "batch", **NOISE),
    "language modelling": language_models,
    "small": lambda n: Small(n, None),  # all seeds read the same batches
    "small, own batches": lambda n: Small(n, 0),
}
OPTIMIZER = make_optimizer("sgd", clip=5.0, agent_learning_rate=0.01)


@functools.cache
def learner_of(kind, num_seeds):
    """Return the task of a kind, whose evaluation is compiled once for all tests."""
    return TASKS[kind](num_seeds)


def train(kind, folder, *, num_seeds=1, devices=1, way="jit", stop_after=None):
    rate = lambda epoch, history: np.full(num_seeds, 0.2)
    settings = FitSettings(tuple(range(num_seeds)), 2, OPTIMIZER, rate, log_every=2)
    parallel = make_parallel(devices, way, num_seeds=num_seeds, batch_size=BATCH)
    options = dict(parallel=parallel, should_stop=lambda step: step == stop_after)
    return fit(learner_of(kind, num_seeds), settings, RunDir.open(folder, {}), **options)


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    """Return a function of a kind and a number of seeds: (result, folder) on one device."""

    @functools.cache
    def get(kind, num_seeds=1):
        folder = tmp_path_factory.mktemp("one")
        return train(kind, folder, num_seeds=num_seeds), folder

    return get


def assert_same_run(result, folder, expected):
    expected_result, expected_folder = expected
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, result.params, expected_result.params)
    assert result.best_epoch.tolist() == expected_result.best_epoch.tolist()
    records = (RunDir(path).records() for path in (folder, expected_folder))
    for one, other in zip(*records, strict=True):
        assert one.keys() == other.keys() and one.pop("split") == other["split"]
        for name, value in one.items():
            np.testing.assert_allclose(value, other[name], rtol=1e-4)


def is_small(kind, *_):
    return kind.startswith("small")


# Kind, number of seeds, devices, way. Devices share batches, except if they divide the seeds.
CASES = [
    ("small", 1, 4, "jit"),
    ("small, own batches", 1, 4, "pmap"),  # the update itself calls collectives
    ("small, own batches", 4, 2, "jit"),
]
SLOW = [
    ("classification", 1, 2, "jit"),
    ("classification, batch baseline", 1, 4, "pmap"),
    ("language modelling", 1, 4, "jit"),
    ("language modelling", 4, 2, "pmap"),
]


@pytest.mark.parametrize(
    ("kind", "num_seeds", "devices", "way"), and_slow(CASES + SLOW, lambda *case: case in CASES)
)
def test_many_devices_train_as_one_does(kind, num_seeds, devices, way, one_device, tmp_path):
    result = train(kind, tmp_path, num_seeds=num_seeds, devices=devices, way=way)
    assert_same_run(result, tmp_path, one_device(kind, num_seeds))


def test_parameters_are_placed_where_seeds_train():
    params = jax.vmap(learner_of("small", 4).init)(seed_keys((0, 1, 2, 3)).init)
    for devices in (2, 1):
        parallel = make_parallel(devices, num_seeds=4, batch_size=BATCH)
        spread = parallel.spread(params)
        assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(spread)} == {devices}
        jax.tree.map(np.testing.assert_array_equal, spread, params)
    # They share a batch.
    assert make_parallel(2, num_seeds=1, batch_size=BATCH).spread(params) is params


@pytest.mark.parametrize("num_seeds", [4, 1])
@pytest.mark.parametrize(
    "kind", and_slow(["small", "classification", "language modelling"], is_small)
)
def test_devices_exchange_sums_if_they_share_a_batch_and_nothing_else(kind, num_seeds):
    task = learner_of(kind, num_seeds)
    keys = seed_keys(tuple(range(num_seeds)))
    parallel = make_parallel(4, num_seeds=num_seeds, batch_size=BATCH)
    params = (
        None
        if is_small(kind)
        else together(*(drawn_params(task, seed) for seed in range(num_seeds)))
    )
    state = start_state(task, OPTIMIZER, keys, params)
    state = TrainState(
        *(parallel.place(part, spec) for part, spec in zip(state, LAYOUT, strict=True))
    )
    batch = parallel.place(next(iter(task.train_batches(0))), batch_spec(task.batch_axis))
    own = keys.train, jnp.ones(num_seeds), task.scheduled(0), jnp.zeros(num_seeds, bool)
    key, rate, scheduled, averaged = (parallel.place(part, PER_SEED) for part in own)
    step = make_step(task, OPTIMIZER, parallel)
    program = step.lower(state, batch, key, 0, rate, scheduled, averaged).compile().as_text()
    assert ("all-reduce" in program) == (num_seeds == 1)
    # These would move activations between devices.
    assert not any(name in program for name in ("all-gather", "all-to-all", "collective-permute"))


@pytest.mark.parametrize(("seeds", "mesh"), [(8, (4, 1)), (2, (1, 4)), (1, (1, 4))])
def test_seeds_are_divided_first(seeds, mesh):
    parallel = make_parallel(4, num_seeds=seeds, batch_size=8)
    assert parallel.devices == tuple(jax.devices()[:4]) and parallel.mesh.devices.shape == mesh


@pytest.mark.parametrize(
    ("devices", "way", "message"),
    [
        (8, "jit", "--batch-size 20 cannot be shared by 8 devices: choose a multiple of 8"),
        (3, "pmap", "--batch-size 20 cannot be shared by 3 devices: choose a multiple of 3"),
        (16, "jit", "--devices 16 is more than there are: this machine has 8"),
    ],
)
def test_devices_that_cannot_be_had(devices, way, message):
    with pytest.raises(UserError, match=message):
        make_parallel(devices, way, num_seeds=1, batch_size=20)
