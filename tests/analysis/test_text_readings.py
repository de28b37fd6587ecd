"""Check what a model that reads a text gives: distributions over k, and gradient norms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import drawn
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.analysis.reading import Reading, connections, distribution, state_gradient_norms
from dynskip_jax.nn import SkipLSTM

SKIPS = {
    "masked": F.Dynamic(4, mix=0.5, empty_slots="masked"),
    "attention": F.Attention(4),
    "content": F.Attention(4, agent="content"),
}


@pytest.mark.parametrize("name", ["masked", "content"])
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
        np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
        np.testing.assert_allclose(found[:, 2], 0, atol=1e-6)  # the policy's mask forbids k = 3
        entropy = -(found * np.log(np.maximum(found, 1e-30))).sum(axis=1)
        np.testing.assert_allclose(entropy, decision.entropy[0], atol=1e-5)
        np.testing.assert_array_equal(found.argmax(axis=1) + 1, decision.action[0])


def test_connections_lead_from_each_word_read_to_the_one_before():
    zeros = jnp.zeros(6)
    update = jnp.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    decision = F.Decision(jnp.ones(6, jnp.int32), zeros, zeros, update)
    np.testing.assert_array_equal(connections(decision), [1, 0, 0, 3, 1, 0])
    np.testing.assert_array_equal(connections(decision, reverse=True), [3, 0, 0, 1, 2, 0])
    late = decision._replace(update=jnp.array([0.0, 1.0, 0.0, 0.0, 0.0, 1.0]))
    np.testing.assert_array_equal(connections(late), [0, 2, 0, 0, 0, 4])


def test_the_backward_direction_reads_the_words_in_reverse():
    weights = np.eye(3)
    reading = Reading(
        list("abc"), [1, 1, 2], [0.1, 0.2, 0.3], backward=[2, 1, 1], backward_weights=weights
    )
    forward, backward = reading.directions().values()
    assert forward.reached(2) == [(2, 1.0)]
    assert backward.words == list("cba") and backward.skips == [1, 1, 2]
    assert backward.probabilities == [0.3, 0.2, 0.1]
    np.testing.assert_array_equal(backward.weights, weights[::-1])


TIME = 6
HIDDEN = 3


def test_gradient_norms_are_those_of_finite_differences():
    recurrence = F.Recurrence(F.Dynamic(3, mix=0.5), F.LSTM())
    squares = lambda h: (h**2).sum(axis=1)
    with jax.enable_x64(True):
        params = recurrence.init(jax.random.key(1), 2, HIDDEN)
        state = F.zero_state(recurrence.transition, (2, HIDDEN))
        carry = F.initial_carry(jax.random.key(3), recurrence, state)
        x = jax.random.normal(jax.random.key(2), (2, TIME, 2))
        is_float = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)
        double = lambda leaf: leaf.astype(jnp.float64) if is_float(leaf) else leaf
        params, carry, x = jax.tree.map(double, (params, carry, x))
        found = state_gradient_norms(params, carry, x, recurrence, squares)

        @jax.jit
        @jax.vmap
        def loss(nudges):
            """Return each sequence's loss after adding `nudges[t]` to the state of step t."""
            now = carry
            for t in range(TIME):
                inputs = F.project_inputs(params, x[:, t], recurrence)
                now, _ = F.recurrent_step(params, now, inputs, recurrence, F.Policy("greedy"))
                newest = now.state
                now = now.with_newest(newest._replace(h=newest.h + nudges[t][None]))
            return squares(now.state.h)

        each = 1e-5 * jnp.eye(TIME * HIDDEN).reshape(-1, TIME, HIDDEN)
        derivative = (loss(each) - loss(-each)).reshape(TIME, HIDDEN, -1) / 2e-5
        np.testing.assert_allclose(found.T, jnp.linalg.norm(derivative, axis=1), rtol=1e-6)
