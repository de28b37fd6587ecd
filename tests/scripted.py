"""A task whose dev metrics are scripted, and runs of it that compile in milliseconds."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynskip_jax.storage.folder import RunDir
from dynskip_jax.training import loop
from dynskip_jax.training.loop import FitSettings, fit
from dynskip_jax.training.optimizer import make_optimizer

NUM_BATCHES = 3
SGD = make_optimizer("sgd")


class Scripted:
    """Task with scripted dev metrics, whose parameter `steps` counts the updates."""

    monitor = "dev_score"
    primary_metric = "loss"
    num_batches = NUM_BATCHES
    unit = "examples"
    batch_axis = None

    def __init__(self, *scripts, higher_is_better=False):
        self.scripts = np.array(scripts, float)  # (seeds, epochs)
        self.higher_is_better = higher_is_better
        self.counts = []  # `steps` of each seed, at each evaluation

    @property
    def program(self):
        """Key that tasks with the same update share."""
        return type(self).loss

    def init(self, key):
        return {"steps": jnp.zeros(()), "w": jax.random.normal(key, (2,))}

    def initial_carry(self, params, key):
        return jax.random.normal(key, (2,))

    def scheduled(self, epoch):
        return ()

    def loss(self, params, carry, batch, keys, scheduled, axis_name=None):
        noise = jax.random.normal(keys[0], (2,))
        value = jnp.sum(jnp.sin(params["w"] * batch + carry * noise))
        return value - params["steps"], (carry + noise, {"loss": value, "batches": jnp.ones(())})

    def train_batches(self, epoch):
        return [np.float32([epoch + 1, number]) for number in range(NUM_BATCHES)]

    def train_batch_sizes(self, epoch):
        return [10] * NUM_BATCHES

    def summarise(self, sums):
        return {"loss": sums["loss"] / sums["batches"]}

    def evaluate(self, params, split, keys):
        steps = np.asarray(params["steps"], float)
        self.counts.append(steps.tolist())
        epochs = steps.round().astype(int) // NUM_BATCHES
        return {"dev_score": self.scripts[np.arange(len(epochs)), epochs - 1]}


@pytest.fixture(scope="module", autouse=True)
def shared_programs():
    """Compile the update and the start state once for all runs that share them."""
    made = {}
    make_step = loop.make_step
    start_state = loop.start_state

    def once(make, task, *others):
        key = (getattr(task, "program", task), *others)
        if key not in made:
            made[key] = make()
        return made[key]

    def step(task, optimizer, parallel):
        return once(lambda: make_step(task, optimizer, parallel), task, optimizer)

    def start(task, optimizer, keys, params=None, **options):
        make = lambda: start_state(task, optimizer, keys, params, **options)
        if params is not None:
            return make()
        seeds = np.asarray(jax.random.key_data(keys.init)).tobytes()
        found = once(make, task, optimizer, seeds, options["averaged"])
        return jax.tree.map(jnp.copy, found)  # a step reuses its memory

    loop.make_step = step
    loop.start_state = start
    yield
    loop.make_step = make_step
    loop.start_state = start_state


def run(
    task, folder=None, *, seeds, epochs, should_stop=lambda step: False, optimizer=SGD, **options
):
    options = dict(learning_rate=lambda epoch, history: np.ones(len(seeds))) | options
    settings = FitSettings(seeds=seeds, epochs=epochs, optimizer=optimizer, **options)
    run_dir = folder and RunDir.open(folder, {"task": type(task).__name__})
    return fit(task, settings, run_dir, should_stop=should_stop)


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_identical(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (a.dtype, a.shape) == (e.dtype, e.shape)
        if jax.dtypes.issubdtype(e.dtype, jax.dtypes.prng_key):
            a = jax.random.key_data(a)
            e = jax.random.key_data(e)
        assert np.asarray(a).tobytes() == np.asarray(e).tobytes()
