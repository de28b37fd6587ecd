"""Check what a task may override (rewards, averages of samples), and predictions as lists."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from learners import drawn_params, together

from dynskip_jax.data import Examples
from dynskip_jax.functional import Dynamic
from dynskip_jax.models import SequenceClassifier
from dynskip_jax.tasks import Classification, Learner
from dynskip_jax.training.agent_settings import AgentSettings

RNG = np.random.default_rng(0)
LENGTHS = RNG.integers(1, 7, size=9).astype(np.int32)
EXAMPLES = Examples(
    RNG.integers(4, size=(9, 6)).astype(np.int32),
    RNG.integers(3, size=9).astype(np.int32),
    LENGTHS,
    buckets=(3, 6),
)
KEYS = jax.random.split(jax.random.key(1), 2)


def make(rngs):
    return SequenceClassifier(4, 5, 3, [Dynamic(3)], rngs=rngs)


class Squared(Classification):
    """Classification that is rewarded with twice its log-likelihood."""

    def compute_loss(self, log_probs, batch):
        scored = super().compute_loss(log_probs, batch)
        return scored._replace(rewarded=-2 * scored.nll)


def learner_of(kind, **options):
    task = kind({"train": EXAMPLES, "dev": EXAMPLES}, make, batch_size=4, evaluation_rows=4)
    return Learner(task, (0, 1), objective=AgentSettings(entropy_coef=0.0, **options))


def params_of(learner):
    return together(*(drawn_params(learner, seed) for seed in range(2)))


@pytest.mark.slow
def test_a_task_may_reward_another_log_likelihood():
    plain, doubled = learner_of(Classification), learner_of(Squared)
    params = jax.tree.map(lambda leaf: leaf[0], params_of(plain))
    batch = jax.tree.map(lambda leaf: leaf[0], next(plain.train_batches(0)))
    scheduled = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], plain.scheduled(0))

    def gradient(learner):
        def loss(params):
            return learner.loss(params, learner.initial_carry(params, KEYS[0]), batch, KEYS[1], scheduled)[0]

        return jax.jit(jax.grad(loss))(params)

    one, two = gradient(plain), gradient(doubled)
    agents = [nnx.to_pure_dict(grads)["stack"]["cells"][0].pop("agent") for grads in (one, two)]
    for a, b in zip(*map(jax.tree.leaves, agents), strict=True):
        np.testing.assert_allclose(2 * np.asarray(a), b, rtol=1e-4, atol=1e-7)
    assert max(float(abs(leaf).max()) for leaf in jax.tree.leaves(agents[0])) > 1e-4


def test_samples_are_averaged_as_the_task_says():
    seen = []

    class First(Classification):
        def average(self, log_probs, batch, samples):
            seen.append((log_probs.shape, samples))
            return log_probs[::samples]

    split = dataclasses.replace(EXAMPLES, buckets=())
    task = First({"train": split, "dev": split}, make, batch_size=4, evaluation_rows=4)
    learner = Learner(task, (0, 1))
    metrics = learner.evaluate(params_of(learner), "dev", KEYS, mode="sample", samples=4)
    assert np.isfinite(metrics["dev_nll"]).all()
    assert seen == [((4, 3), 4)]  # traced once
