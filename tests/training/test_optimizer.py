"""Check optimizers: which parameters are clipped together, and the directions of SGD and Adam."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learners import drawn_params, language_modelling, letters

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.training.optimizer import make_optimizer

PARAMS = {"layers": {"0": {"w": jnp.ones((2, 2)), "agent": {"b": jnp.ones(3)}}}, "softmax": jnp.ones(4)}


def grads_of(seed, agent_scale=1.0):
    rng = np.random.default_rng(seed)
    grads = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), jnp.float32), PARAMS)
    grads["layers"]["0"]["agent"]["b"] *= agent_scale
    return grads


def direction(optimizer, grads):
    return optimizer.update(grads, optimizer.init(PARAMS), PARAMS)[0]


def network(tree):
    return [np.asarray(tree["layers"]["0"]["w"]), np.asarray(tree["softmax"])]


def agent(tree):
    return np.asarray(tree["layers"]["0"]["agent"]["b"])


def norm(arrays):
    return np.sqrt(sum(np.sum(np.square(np.asarray(array, float))) for array in arrays))


def test_sgd_without_clipping_is_the_gradient():
    grads = grads_of(0, agent_scale=1e6)
    jax.tree.map(np.testing.assert_array_equal, direction(make_optimizer("sgd"), grads), grads)


def test_sgd_clips_the_norm_of_everything_together():
    grads = grads_of(0)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(grads)]
    for clip in (0.5, 100.0):
        found = jax.tree.leaves(direction(make_optimizer("sgd", clip=clip), grads))
        for leaf, update in zip(leaves, found, strict=True):
            np.testing.assert_allclose(update, leaf * min(1.0, clip / norm(leaves)), rtol=1e-5)


def test_weight_decay_joins_the_clipped_gradient_of_the_network_alone():
    grads = grads_of(0)
    options = dict(clip=0.5, agent_learning_rate=0.01)
    plain, decayed = (
        direction(make_optimizer("sgd", weight_decay=decay, **options), grads) for decay in (0.0, 0.25)
    )
    for before, after in zip(network(plain), network(decayed), strict=True):
        np.testing.assert_allclose(after, before + 0.25, rtol=1e-5)  # all parameters are 1
    np.testing.assert_array_equal(agent(plain), agent(decayed))


def test_enormous_agent_gradient_takes_the_networks_share_of_a_joint_norm():
    optimizer = make_optimizer("sgd", clip=1.0)
    usual, swamped = (network(direction(optimizer, grads_of(0, scale))) for scale in (1.0, 1e6))
    assert norm(swamped) < 1e-4 * norm(usual)


@pytest.mark.parametrize("options", [dict(agents_apart=True), dict(agent_learning_rate=0.01)], ids=str)
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_agent_clipped_apart_does_not_touch_the_network(kind, options):
    optimizer = make_optimizer(kind, clip=1.0, **options)
    usual, swamped, still = (
        direction(optimizer, grads_of(0, agent_scale=scale)) for scale in (1.0, 1e6, 0.0)
    )
    alone = {"layers": {"0": {"w": PARAMS["layers"]["0"]["w"]}}, "softmax": PARAMS["softmax"]}
    grads = grads_of(0)
    del grads["layers"]["0"]["agent"]
    plain = make_optimizer(kind, clip=1.0)
    expected = network(plain.update(grads, plain.init(alone), alone)[0])
    for updates in (usual, swamped, still):
        for update, wanted in zip(network(updates), expected, strict=True):
            np.testing.assert_array_equal(update, wanted)


@pytest.mark.parametrize("options", [{}, dict(agents_apart=True), dict(agent_learning_rate=0.01)], ids=str)
def test_frozen_agents_stay_and_take_no_share(options):
    optimizer = make_optimizer("sgd", clip=1.0, frozen=("agent",), **options)
    updates = direction(optimizer, grads_of(0, agent_scale=1e6))
    assert not agent(updates).any()
    np.testing.assert_allclose(norm(network(updates)), 1.0, rtol=1e-5)


def test_a_frozen_module_must_exist():
    optimizer = make_optimizer("sgd", frozen=("agent", "agnet"))
    with pytest.raises(UserError, match=r"^no module to freeze has the name 'agnet': choose among .*agent, "):
        optimizer.init(PARAMS)


def test_agents_apart_are_moved_as_the_network_is_by_their_own_clipped_gradient():
    optimizer = make_optimizer("sgd", clip=1.0, momentum=0.5, weight_decay=0.25, agents_apart=True)
    state, expected = optimizer.init(PARAMS), np.zeros(3)
    for seed, scale in enumerate((0.1, 1e4)):
        grads = grads_of(seed, scale)
        updates, state = optimizer.update(grads, state, PARAMS)
        gradient = agent(grads)
        # As for the network, weight decay is added after clipping, and momentum accumulates the sum.
        expected = 0.5 * expected + gradient * min(1.0, 1.0 / norm([gradient])) + 0.25
        np.testing.assert_allclose(agent(updates), expected, rtol=1e-5)


def test_agents_own_adam_has_its_own_rate_and_clipping():
    optimizer = make_optimizer("sgd", clip=1.0, agent_learning_rate=0.01)
    state = optimizer.init(PARAMS)
    reference = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.01))
    expected_state = reference.init(agent(PARAMS))
    for seed, scale in enumerate((1.0, 1e4, 0.1)):
        grads = grads_of(seed, scale)
        updates, state = optimizer.update(grads, state, PARAMS)
        expected, expected_state = reference.update(grads["layers"]["0"]["agent"]["b"], expected_state)
        np.testing.assert_allclose(agent(updates), -np.asarray(expected), rtol=1e-5)


def test_adam_direction_is_that_of_optax():
    optimizer, reference = make_optimizer("adam"), optax.adam(0.125)
    state, expected_state = optimizer.init(PARAMS), reference.init(PARAMS)
    for seed in range(4):
        grads = grads_of(seed)
        updates, state = optimizer.update(grads, state, PARAMS)
        expected, expected_state = reference.update(grads, expected_state, PARAMS)
        jax.tree.map(
            lambda u, e: np.testing.assert_allclose(-0.125 * u, e, rtol=1e-6, atol=1e-9), updates, expected
        )


def test_agent_of_a_language_model_is_told_from_its_network():
    task = language_modelling(letters(5, 1, 1), batch_size=2, num_steps=3)
    params = drawn_params(task)
    optimizer = make_optimizer("sgd", agent_learning_rate=0.001)
    ones = jax.tree.map(np.ones_like, params)
    updates = jax.jit(lambda params: optimizer.update(ones, optimizer.init(params), params)[0])(params)
    moved = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(updates)}
    agents = {path for path, leaf in moved.items() if np.allclose(leaf, 0.001, rtol=1e-3)}
    assert len(agents) == 5  # W_h, W_x, b, W_out, b_out
    assert all("agent" in path for path in agents)
    assert all(np.allclose(leaf, 1.0) for path, leaf in moved.items() if path not in agents)


@pytest.mark.parametrize("options", [dict(agents_apart=True), dict(agent_learning_rate=0.01)], ids=str)
def test_agent_of_functional_params_is_their_skip(options):
    """All parameters once counted as the network's, because named tuples have other names than modules."""
    params = {"skip": jnp.ones(2), "layer": F.LayerParams(transition=jnp.ones(3), skip=jnp.ones(4))}
    optimizer = make_optimizer("sgd", clip=1.0, **options)
    update = jax.jit(lambda grads: optimizer.update(grads, optimizer.init(params), params)[0])
    grads = dict(params, layer=params["layer"]._replace(skip=jnp.full(4, 1e6)))
    usual, swamped = update(params), update(grads)
    for updates in (usual, swamped):
        np.testing.assert_allclose(norm([updates["skip"], updates["layer"].transition]), 1.0, rtol=1e-5)
    np.testing.assert_allclose(swamped["layer"].skip, usual["layer"].skip, rtol=1e-3)


def test_an_agents_rate_is_its_own_whatever_the_networks_is():
    """The loop multiplies all updates by the network's rate, so the agent's update is divided by it."""
    grads, rates = grads_of(0), (1.0, 20.0)
    steps = [
        rate * agent(direction(make_optimizer("sgd", agent_learning_rate=0.01, learning_rate=rate), grads))
        for rate in rates
    ]
    np.testing.assert_allclose(steps[0], steps[1], rtol=1e-6)
    np.testing.assert_allclose(np.abs(steps[0]), 0.01, rtol=1e-3)  # Adam's first step
