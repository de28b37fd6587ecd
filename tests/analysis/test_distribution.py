"""Check that the recomputed distribution over k is the one that the layer used for its decisions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.analysis.reading import distribution
from dynskip_jax.nn import SkipLSTM

SKIPS = {
    "dynamic": F.Dynamic(4, mix=0.5),
    "mean": F.Dynamic(4, mix=0.5, agent_input="mean"),
    "masked": F.Dynamic(4, mix=0.5, empty_slots="masked"),
    "carried": F.Dynamic(4, mix=0.5, first_step="carried"),
    "attention": F.Attention(4),
    "content": F.Attention(4, agent="content"),
}


def drawn(make):
    """Return the module that `make` makes, with parameters drawn by NumPy."""
    graphdef, params, others = nnx.split(nnx.eval_shape(make), nnx.Param, ...)
    assert not jax.tree.leaves(others)
    rng = np.random.default_rng(0)
    values = jax.tree.map(lambda leaf: jnp.asarray(rng.uniform(-1, 1, leaf.shape), leaf.dtype), params)
    return nnx.merge(graphdef, values, others)


@pytest.mark.parametrize("name", and_slow(SKIPS, lambda name: name in ("masked", "content")))
def test_it_has_the_entropy_and_the_best_k_of_each_decision(name):
    stack = drawn(lambda: SkipLSTM(3, 5, skip=SKIPS[name], bidirectional=True, rngs=nnx.Rngs(0)))
    policy = F.Policy("greedy", mask=jnp.array([True, True, False, True]))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 9, 3)), jnp.float32)

    @nnx.jit
    def read(stack):
        output = stack(x, policy=policy, rngs=jax.random.key(2))
        found = []
        for layer, reverse in enumerate(stack.reads_reverse):
            observation = jax.tree.map(lambda leaf: leaf[0], output.observations[layer])
            found.append(distribution(stack.cells[layer], observation, policy, reverse=reverse))
        return found, output.decisions

    for found, decision in zip(*jax.device_get(read(stack)), strict=True):
        assert found.shape == (9, 4)
        np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
        np.testing.assert_allclose(found[:, 2], 0, atol=1e-6)  # the policy's mask forbids k = 3
        entropy = -(found * np.log(np.maximum(found, 1e-30))).sum(axis=1)
        np.testing.assert_allclose(entropy, decision.entropy[0], atol=1e-5)
        np.testing.assert_array_equal(found.argmax(axis=1) + 1, decision.action[0])


@pytest.mark.parametrize(
    "name", and_slow(["attention", "sparse", "dynamic"], lambda name: name == "attention")
)
def test_it_has_the_temperature_of_the_weights(name):
    skip = {**SKIPS, "sparse": F.SparseAttention(4, top=2, agent="mlp")}[name]
    stack = drawn(lambda: SkipLSTM(3, 5, skip=skip, rngs=nnx.Rngs(0)))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 9, 3)), jnp.float32)

    @nnx.jit
    def read(stack, temperature):
        policy = F.Policy("soft", temperature=temperature)
        output = stack(x, policy=policy)
        observation = jax.tree.map(lambda leaf: leaf[0], output.observations[0])
        return distribution(stack.cells[0], observation, policy), output.decisions[0].entropy[0]

    flat, entropy = read(stack, jnp.float32(1e4))
    if name != "sparse":  # whose weights are differences from the next best score, at any temperature
        np.testing.assert_allclose(flat.max(axis=1), 1 / (flat > 1e-6).sum(axis=1), rtol=1e-2)
    if name != "dynamic":
        found = -(flat * np.log(np.maximum(flat, 1e-30))).sum(axis=1)
        np.testing.assert_allclose(found, entropy, atol=1e-5)


def test_what_has_no_agent_has_none():
    stack = drawn(lambda: SkipLSTM(3, 5, rngs=nnx.Rngs(0)))
    observation = jnp.zeros((4, 3)), jnp.zeros((4, 5))
    assert distribution(stack.cells[0], observation) is None
