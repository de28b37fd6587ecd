"""Check optimizers against NumPy: what is clipped together, frozen and decayed; how agents move."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import drawn_params, language_modelling, letters

from dynskip_jax import functional as F
from dynskip_jax.training.optimizer import make_optimizer

PARAMS = {
    "layers": {"0": {"w": jnp.ones((2, 2)), "agent": {"b": jnp.ones(3)}}},
    "softmax": jnp.ones(4),
}
WHOLE = ("agent", "w", "softmax")
AGENT = ("agent",)
REST = ("w", "softmax")


def directions(optimizer):
    """Return the gradients and updates of three steps; the agent's gradients differ in scale."""
    rng = np.random.default_rng(0)
    state = optimizer.init(PARAMS)
    steps = []
    for scale in (1.0, 1e4, 0.1):  # in a joint norm, an enormous one leaves the network nothing
        grads = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), jnp.float32), PARAMS)
        grads["layers"]["0"]["agent"]["b"] *= scale
        updates, state = optimizer.update(grads, state, PARAMS)
        steps.append((grads, updates))
    return zip(*steps, strict=True)


def of(names, trees):
    """Return the numbers of these modules in each tree, (steps, size), in float64."""
    steps = []
    for tree in trees:
        layer = tree["layers"]["0"]
        modules = {"agent": layer["agent"]["b"], "w": layer["w"], "softmax": tree["softmax"]}
        steps.append(np.concatenate([np.ravel(modules[name]) for name in names]))
    return np.stack(steps).astype(float)


def by_hand(kind, grads, clip=np.inf, weight_decay=0.0):
    """Compute the direction of each step for parameters that are all 1."""
    found = []
    mean = 0.0
    square = 0.0
    for step, grad in enumerate(grads, 1):
        grad = grad * min(1.0, clip / np.linalg.norm(grad)) + weight_decay
        if kind in ("sgd", "momentum"):
            mean = (kind == "momentum") * 0.9 * mean + grad
            found.append(mean)
        elif kind == "adagrad":
            square = square + grad**2
            found.append(grad / np.sqrt(square))
        else:
            mean = 0.9 * mean + 0.1 * grad
            square = 0.999 * square + 0.001 * grad**2
            found.append(mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8))
    return np.stack(found)


ALL = dict(clip=1.0, weight_decay=0.25)
APART = dict(agents_apart=True)
OWN_RATE = dict(agent_learning_rate=0.01, learning_rate=0.125)


@pytest.mark.parametrize(
    ("kind", "options", "more", "groups"),
    [
        ("sgd", dict(clip=0.5), {}, [WHOLE]),
        ("momentum", ALL, {}, [WHOLE]),
        ("adagrad", {}, {}, [WHOLE]),
        ("adam", dict(clip=1.0), {}, [WHOLE]),
        ("momentum", ALL, APART, [REST, AGENT]),
        ("adam", dict(clip=1.0), APART, [REST, AGENT]),
        ("momentum", ALL, OWN_RATE, [REST]),
        ("sgd", dict(clip=0.1), dict(frozen=AGENT), [REST]),
        ("sgd", dict(clip=0.1), dict(frozen=("softmax",)), [("agent", "w")]),
        ("sgd", dict(clip=0.1), dict(frozen=("softmax",), **APART), [AGENT, ("w",)]),
        ("sgd", dict(clip=0.1), dict(frozen=AGENT, **OWN_RATE), [REST]),
    ],
)
def test_modules_that_are_clipped_together_move_as_computed_by_hand(kind, options, more, groups):
    grads, updates = directions(make_optimizer(kind, **options, **more))
    for names in groups:
        expected = by_hand(kind, of(names, grads), **options)
        np.testing.assert_allclose(of(names, updates), expected, rtol=1e-4, atol=1e-7)
    assert not any(of((name,), updates).any() for name in more.get("frozen", ()))


def test_agents_with_their_own_rate_have_their_own_adam_without_weight_decay():
    grads, updates = directions(make_optimizer("momentum", **ALL, **OWN_RATE))
    expected = 0.01 * by_hand("adam", of(AGENT, grads), clip=1.0)
    # The loop multiplies all updates by the network's rate.
    np.testing.assert_allclose(0.125 * of(AGENT, updates), expected, rtol=1e-4, atol=1e-9)


def test_agent_of_a_language_model_is_told_from_its_network():
    params = drawn_params(language_modelling(letters(5, 1, 1), batch_size=2, num_steps=3))
    optimizer = make_optimizer("sgd", agent_learning_rate=0.001)
    ones = jax.tree.map(np.ones_like, params)
    updates = jax.jit(lambda params: optimizer.update(ones, optimizer.init(params), params)[0])(
        params
    )
    moved = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(updates)
    }
    assert sum("agent" in path for path in moved) == 5  # W_h, W_x, b, W_out, b_out
    for path, leaf in moved.items():
        np.testing.assert_allclose(leaf, 0.001 if "agent" in path else 1.0, rtol=1e-3)


@pytest.mark.parametrize("options", [APART, OWN_RATE], ids=str)
def test_agent_of_functional_params_is_their_skip(options):
    """All parameters once counted as the network's: named tuples have other names than modules."""
    params = {"skip": jnp.ones(2), "layer": F.LayerParams(transition=jnp.ones(3), skip=jnp.ones(4))}
    optimizer = make_optimizer("sgd", clip=1.0, **options)
    grads = dict(params, layer=params["layer"]._replace(skip=jnp.full(4, 1e6)))
    updates = jax.jit(lambda grads: optimizer.update(grads, optimizer.init(params), params)[0])(
        grads
    )
    moved = jnp.concatenate([updates["skip"], updates["layer"].transition])
    np.testing.assert_allclose(jnp.linalg.norm(moved), 1.0, rtol=1e-5)
