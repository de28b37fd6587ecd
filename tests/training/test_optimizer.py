"""Check optimizers against Optax and NumPy: what is clipped together, frozen and decayed; how agents move."""

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
APART = pytest.mark.parametrize("options", [dict(agents_apart=True), dict(agent_learning_rate=0.01)], ids=str)


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


def by_hand(kind, clip=None, weight_decay=0.0, momentum=0.0):
    """Return a function of gradients, each a list of arrays, that returns the direction of one optimizer."""
    before, squares = [0.0] * 3, [0.0] * 3

    def step(grads):
        share = 1.0 if clip is None else min(1.0, clip / norm(grads))
        for i, grad in enumerate(grads):
            grad = np.asarray(grad, float) * share + weight_decay  # all parameters are 1
            before[i] = momentum * before[i] + grad
            squares[i] = squares[i] + grad**2
        return before if kind == "sgd" else [g / np.sqrt(s) for g, s in zip(before, squares, strict=True)]

    return step


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("sgd", dict(clip=0.5)),
        ("sgd", dict(clip=100.0)),
        ("sgd", dict(clip=1.0, weight_decay=0.25, momentum=0.5)),
        ("adagrad", dict()),
    ],
)
def test_directions_are_those_computed_by_hand(kind, options):
    optimizer, expected = make_optimizer(kind, **options), by_hand(kind, **options)
    state = optimizer.init(PARAMS)
    for seed in range(3):
        grads = grads_of(seed, agent_scale=10.0**seed)
        updates, state = optimizer.update(grads, state, PARAMS)
        for ours, wanted in zip(jax.tree.leaves(updates), expected(jax.tree.leaves(grads)), strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-7)


def test_adam_is_that_of_optax_also_for_agents_with_their_own_rate_and_clipping():
    own = make_optimizer("adam", clip=1.0, agent_learning_rate=0.01, learning_rate=0.125)
    reference = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam())
    state, parts = own.init(PARAMS), [network(PARAMS), agent(PARAMS)]
    states = [reference.init(part) for part in parts]
    for seed, scale in enumerate((1.0, 1e4, 0.1)):
        grads = grads_of(seed, scale)
        updates, state = own.update(grads, state, PARAMS)
        for i, (part, rate) in enumerate(((network, 0.125), (agent, 0.01))):
            expected, states[i] = reference.update(part(grads), states[i])
            pairs = zip(jax.tree.leaves(part(updates)), jax.tree.leaves(expected), strict=True)
            for ours, wanted in pairs:  # the loop multiplies all updates by the network's rate
                np.testing.assert_allclose(0.125 * ours, rate * wanted, rtol=1e-5, atol=1e-9)


@APART
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_an_agents_gradient_takes_no_share_of_the_networks_norm(kind, options):
    """In a joint norm, an enormous score-function gradient would leave the network nothing."""
    optimizer, joint = make_optimizer(kind, clip=1.0, **options), make_optimizer("sgd", clip=1.0)
    usual, swamped, still = (direction(optimizer, grads_of(0, scale)) for scale in (1.0, 1e6, 0.0))
    for updates in (swamped, still):
        jax.tree.map(np.testing.assert_array_equal, network(updates), network(usual))
    alone, together = (network(direction(joint, grads_of(0, scale))) for scale in (1.0, 1e6))
    assert norm(together) < 1e-4 * norm(alone)


def test_agents_apart_move_as_the_network_does_and_their_own_adam_has_no_weight_decay():
    options = dict(clip=1.0, momentum=0.5, weight_decay=0.25)
    apart, expected = make_optimizer("sgd", agents_apart=True, **options), by_hand("sgd", **options)
    state = apart.init(PARAMS)
    for seed, scale in enumerate((0.1, 1e4)):
        grads = grads_of(seed, scale)
        updates, state = apart.update(grads, state, PARAMS)
        np.testing.assert_allclose(agent(updates), expected([agent(grads)])[0], rtol=1e-5)
    decayed, plain = (
        direction(make_optimizer("sgd", weight_decay=decay, agent_learning_rate=0.01), grads_of(0))
        for decay in (0.25, 0.0)
    )
    np.testing.assert_array_equal(agent(decayed), agent(plain))
    assert not np.allclose(network(decayed)[0], network(plain)[0])


@pytest.mark.parametrize("name", ["agent", "softmax"])
@pytest.mark.parametrize("options", [{}, dict(agents_apart=True), dict(agent_learning_rate=0.01)], ids=str)
def test_frozen_modules_stay_and_take_no_share(options, name):
    grads = grads_of(0, agent_scale=1e6 if name == "agent" else 1.0)
    updates = direction(make_optimizer("sgd", clip=0.1, frozen=(name,), **options), grads)
    frozen, rest = (agent(updates), network(updates)) if name == "agent" else network(updates)[::-1]
    assert not frozen.any()
    if name == "agent" or options:
        np.testing.assert_allclose(norm(rest if name == "agent" else [rest]), 0.1, rtol=1e-5)


def test_a_frozen_module_must_exist():
    optimizer = make_optimizer("sgd", frozen=("agent", "agnet"))
    with pytest.raises(UserError, match=r"^no module to freeze has the name 'agnet': choose among .*agent, "):
        optimizer.init(PARAMS)


def test_agent_of_a_language_model_is_told_from_its_network():
    params = drawn_params(language_modelling(letters(5, 1, 1), batch_size=2, num_steps=3))
    optimizer, ones = make_optimizer("sgd", agent_learning_rate=0.001), jax.tree.map(np.ones_like, params)
    updates = jax.jit(lambda params: optimizer.update(ones, optimizer.init(params), params)[0])(params)
    moved = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(updates)}
    assert sum("agent" in path for path in moved) == 5  # W_h, W_x, b, W_out, b_out
    for path, leaf in moved.items():
        np.testing.assert_allclose(leaf, 0.001 if "agent" in path else 1.0, rtol=1e-3)


@APART
def test_agent_of_functional_params_is_their_skip(options):
    """All parameters once counted as the network's, because named tuples have other names than modules."""
    params = {"skip": jnp.ones(2), "layer": F.LayerParams(transition=jnp.ones(3), skip=jnp.ones(4))}
    optimizer = make_optimizer("sgd", clip=1.0, **options)
    grads = dict(params, layer=params["layer"]._replace(skip=jnp.full(4, 1e6)))
    updates = jax.jit(lambda grads: optimizer.update(grads, optimizer.init(params), params)[0])(grads)
    np.testing.assert_allclose(norm([updates["skip"], updates["layer"].transition]), 1.0, rtol=1e-5)
