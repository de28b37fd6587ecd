"""Check that each candidate computes the loss and the gradients of the layer in its name.

The reference is a NumPy loop in float64, written from Gui et al. (2019), Eq. 1 and 2.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import jax_layers
from benchmarks.candidates import layers
from benchmarks.shapes import Shape
from dynskip_jax.functional import Attention, Dynamic
from dynskip_jax.nn import SkipLayers

SHAPE = Shape(time=6, batch=3, features=4, hidden=5, max_skip=3, mix=0.7)
DYNAMIC = Dynamic(SHAPE.max_skip, SHAPE.mix)


def float64(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def oracle(params, x, skips, mix):
    """Return the sum of squares of all h, and the sum of the log-probabilities of the choices.

    Args:
        params: Weights of the layer; without an agent, the log-probabilities are left out.
        x: Inputs, (batch, time, in).
        skips: Chosen k of each step, (batch, time); with k = 1, the layer is an LSTM.
        mix: Weight λ of the chosen state.
    """
    lstm, agent, _ = params
    squares = log_probs = 0.0
    for n in range(x.shape[0]):
        h = [np.zeros(SHAPE.hidden)] * SHAPE.max_skip
        c = list(h)
        for t in range(x.shape[1]):
            k = skips[n, t]
            if agent is not None:
                logits = (
                    np.tanh(h[-1] @ agent.w_h + x[n, t] @ agent.w_x + agent.b) @ agent.w_out + agent.b_out
                )
                log_probs += logits[k - 1] - np.log(np.exp(logits).sum())
            h_in, c_in = (mix * s[-k] + (1 - mix) * s[-1] for s in (h, c))
            g, i, f, o = np.split(x[n, t] @ lstm.w_x + h_in @ lstm.w_h + lstm.b, 4)
            c.append(np.tanh(g) * sigmoid(i) + c_in * sigmoid(f))
            h.append(sigmoid(o) * np.tanh(c[-1]))
            squares += (h[-1] ** 2).sum()
    return squares, log_probs


def slope(function, x, direction):
    """Return the central difference of `function` at `x` along `direction`."""
    e = 1e-5
    return (function(x + e * direction) - function(x - e * direction)) / (2 * e)


def run(entry):
    """Return the loss of a candidate, and its gradient with respect to the inputs, (batch, time, in)."""
    loss, (_, of_x) = entry.prepare().step()
    of_x = np.asarray(of_x)
    return float(loss), of_x.swapaxes(0, 1) if entry.name.startswith("torch") else of_x


@pytest.fixture(scope="module")
def actions():
    return np.random.default_rng(1).integers(1, SHAPE.max_skip + 1, (SHAPE.batch, SHAPE.time))


@pytest.fixture(scope="module")
def entries(actions):
    return {entry.name: entry for entry in layers(SHAPE, jnp.asarray(actions))}


def promise(name, actions):
    """Return the chosen k of each step and the λ that the candidate called `name` uses."""
    if "dynamic" in name:
        return actions, SHAPE.mix
    if name == "fixed:k":
        return np.full_like(actions, SHAPE.max_skip), SHAPE.mix
    return np.ones_like(actions), 1.0


@pytest.mark.slow
def test_loss_and_input_gradient(entries, actions):
    x = float64(jax_layers.inputs(SHAPE))
    direction = np.random.default_rng(2).normal(size=x.shape)
    dynamic = float64(jax_layers.weights(SHAPE, DYNAMIC))

    def check(name):
        skips, mix = promise(name, actions)
        params = dynamic if "dynamic" in name else dynamic._replace(skip=None)
        loss, of_x = run(entries[name])
        assert loss == pytest.approx(sum(oracle(params, x, skips, mix)), rel=1e-5), name
        # No gradient flows from the agent into the network or the inputs.
        want = slope(lambda x: oracle(params, x, skips, mix)[0], x, direction)
        assert np.vdot(of_x, direction) == pytest.approx(want, rel=1e-3), name

    assert {"lstm", "fixed:k", "attention:k", "dynamic:k", "Flax RNN"} <= set(entries)
    for name in set(entries) - {"attention:k"}:
        check(name)


@pytest.mark.slow
def test_attention_is_compared_on_the_same_terms(entries):
    """The loss and the input gradient equal those of an attention layer with the same weights."""
    loss, of_x = run(entries["attention:k"])
    skip = Attention(SHAPE.max_skip, SHAPE.mix)
    layer = SkipLayers([jax_layers.cell(SHAPE, skip)])
    x = jax_layers.inputs(SHAPE)
    want, gradient = jax.value_and_grad(lambda x: jnp.sum(layer(x, rngs=jax.random.key(0)).h ** 2))(x)
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    np.testing.assert_allclose(of_x, gradient, rtol=1e-4, atol=1e-6)


def test_weight_gradient_is_complete(entries):
    """Each weight has a nonzero gradient. These layers do not learn h(0) and c(0)."""
    for name, entry in entries.items():
        _, (of_weights, _) = entry.prepare().step()
        leaves = jax.tree.leaves(of_weights)
        assert leaves and all(np.abs(np.asarray(leaf)).max() > 0 for leaf in leaves), name


@pytest.mark.slow
def test_samples_differ_between_sequences_and_steps():
    """With a candidate's initial carry, the agent samples different choices."""
    layer = SkipLayers([jax_layers.cell(SHAPE, DYNAMIC)])
    out = layer(jax_layers.inputs(SHAPE), initial_carry=jax_layers.start(layer, SHAPE))
    assert len(np.unique(out.decisions[0].action)) > 1


@pytest.mark.slow
def test_seeds_together_are_the_seeds_one_by_one():
    one_by_one, together = (entry.prepare().step() for entry in jax_layers.seed_candidates(SHAPE, 3))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *one_by_one)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), stacked, together)
    assert len(np.unique(together[0])) == 3


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("hoist", [False, True])
@pytest.mark.parametrize("mix", [0.3, 1.0])
def test_the_loop_in_pytorch_is_our_layer(torch, actions, hoist, mix):
    from benchmarks.torch_layers import DynamicSkipLSTM

    skip = Dynamic(SHAPE.max_skip, mix)
    layer = SkipLayers([jax_layers.cell(SHAPE, skip)])
    x = jax_layers.inputs(SHAPE)
    theirs = DynamicSkipLSTM(SHAPE.features, SHAPE.hidden, SHAPE.max_skip, mix, 50, hoist=hoist)
    theirs.load(layer.cells[0].params())
    x_torch = torch.from_numpy(np.array(x)).transpose(0, 1)
    h, log_prob, k = theirs(x_torch, torch.from_numpy(actions.T.copy()))
    out = layer(x, actions=[jnp.asarray(actions)])
    np.testing.assert_array_equal(k.T, actions)
    np.testing.assert_allclose(h.detach().transpose(0, 1), out.h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(log_prob.detach().T, out.decisions[0].log_prob, rtol=1e-5, atol=1e-6)

    # Our layer replays the samples of the PyTorch loop.
    torch.manual_seed(0)
    h, log_prob, k = theirs(x_torch)
    out = layer(x, actions=[jnp.asarray(k.T.numpy().astype(np.int32))])
    assert set(k.unique().tolist()) == set(range(1, SHAPE.max_skip + 1))
    np.testing.assert_allclose(h.detach().transpose(0, 1), out.h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(log_prob.detach().T, out.decisions[0].log_prob, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["torch loop, LSTMCell, dynamic:k", "torch loop, hoisted, dynamic:k"])
def test_weight_gradients_of_the_loop_in_pytorch_are_ours(torch, entries, name):
    _, (ours, _) = entries["dynamic:k"].prepare().step()
    _, (theirs, _) = entries[name].prepare().step()
    w_x, w_h, b, b_again, first, first_b, last, last_b = (leaf.numpy() for leaf in theirs)
    cell, agent = ours["cell"]["weights"], ours["cell"]["agent"]
    pairs = [
        (jax_layers.torch_order(cell["w_x"][...]).T, w_x),
        (jax_layers.torch_order(cell["w_h"][...]).T, w_h),
        (jax_layers.torch_order(cell["b"][...]), b),
        (b, b_again),
        (np.concatenate([agent["w_h"][...], agent["w_x"][...]]).T, first),
        (agent["b"][...], first_b),
        (agent["w_out"][...].T, last),
        (agent["b_out"][...], last_b),
    ]
    for mine, other in pairs:
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-5)
