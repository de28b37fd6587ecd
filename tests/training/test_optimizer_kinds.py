"""Check Adagrad, and that frozen parameters do not change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynskip_jax.training.optimizer import make_optimizer

PARAMS = {"layers": {"0": {"w": jnp.ones((2, 2)), "agent": {"b": jnp.ones(3)}}}, "softmax": jnp.ones(4)}


def grads_of(seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), jnp.float32), PARAMS)


def direction(optimizer, grads, params):
    return optimizer.update(grads, optimizer.init(params), params)[0]


def test_adagrad_divides_by_the_root_of_the_sum_of_squares():
    optimizer = make_optimizer("adagrad")
    state, sums = optimizer.init(PARAMS), [0.0] * len(jax.tree.leaves(PARAMS))
    for seed in range(3):
        grads = grads_of(seed)
        update, state = optimizer.update(grads, state, PARAMS)
        for i, (g, found) in enumerate(zip(jax.tree.leaves(grads), jax.tree.leaves(update), strict=True)):
            sums[i] = sums[i] + np.square(np.asarray(g, float))
            np.testing.assert_allclose(found, np.asarray(g) / np.sqrt(sums[i]), rtol=1e-5)


@pytest.mark.parametrize("rate", [None, 0.01])
def test_frozen_modules_stay_and_take_no_share_of_the_norm(rate):
    grads, options = grads_of(0), dict(clip=0.5, weight_decay=0.25, agent_learning_rate=rate)
    found = direction(make_optimizer("sgd", frozen=("softmax",), **options), grads, PARAMS)
    assert not np.asarray(found["softmax"]).any()
    rest = {"layers": PARAMS["layers"]}
    expected = direction(make_optimizer("sgd", **options), {"layers": grads["layers"]}, rest)
    for a, b in zip(jax.tree.leaves(found["layers"]), jax.tree.leaves(expected["layers"]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
