"""Check relaxed choices: their values, and their gradients against exact ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, unroll
from marks import and_slow

from dynskip_jax import functional as F

K = 4


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


relaxed_weights = compiled(F.relaxed_weights)


def log_probs_of(seed=0, batch=5):
    logits = np.random.default_rng(seed).normal(size=(batch, K))
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def noise_of(seed=1, batch=5):
    return np.random.default_rng(seed).gumbel(size=(batch, K))


def noise_that_chooses(slot):
    """Return noise so large that `slot` is chosen whatever the probabilities are."""
    return 1e3 * jnp.eye(K)[slot]


@pytest.mark.parametrize("relaxation", F.RELAXATIONS)
def test_weights_are_a_distribution(relaxation):
    weights = relaxed_weights(log_probs_of(), noise_of(), relaxation, 0.7)
    assert weights.min() >= 0
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-12)


@pytest.mark.parametrize("relaxation", ["straight_through", "reinmax"])
def test_a_hard_choice_is_the_one_that_sampling_makes(relaxation):
    log_probs, noise = log_probs_of(), noise_of()
    weights = relaxed_weights(log_probs, noise, relaxation, 0.3)
    np.testing.assert_allclose(weights, np.eye(K)[compiled(F.choose)(log_probs, noise)], atol=1e-12)


def test_straight_through_has_the_derivative_of_gumbel_softmax():
    noise, values = jax.device_put(noise_of()), np.random.default_rng(2).normal(size=(5, K))

    def total(log_probs, relaxation):
        return jnp.sum(values * F.relaxed_weights(log_probs, noise, relaxation, 0.5))

    gradients = jax.jit(
        lambda x: [jax.grad(total)(x, name) for name in ("straight_through", "gumbel_softmax")]
    )
    hard, soft = gradients(log_probs_of())
    np.testing.assert_allclose(hard, soft, rtol=1e-12)
    assert np.abs(soft).max() > 1e-2


def expected_and_exact_gradient(relaxation, f, logits):
    """Return the expected gradient of a relaxation, and the exact gradient of the expectation of `f`.

    The expected gradient is the mean over all slots, weighted by their probabilities.
    """

    def one(logits, slot):
        def value(logits):
            log_probs = jax.nn.log_softmax(logits)
            return f(F.relaxed_weights(log_probs, noise_that_chooses(slot), relaxation))

        return jax.grad(value)(logits)

    def expected(logits):
        return sum(p * one(logits, slot) for slot, p in enumerate(jax.nn.softmax(logits)))

    def exact(logits):
        values = jnp.stack([f(row) for row in jnp.eye(K)])
        return jax.grad(lambda logits: jax.nn.softmax(logits) @ values)(logits)

    return jax.jit(lambda logits: (expected(logits), exact(logits)))(logits)


def test_reinmax_is_exact_for_quadratic_functions_and_not_for_others():
    """Liu et al. (2023): ReinMax is a method of second order."""
    rng = np.random.default_rng(3)
    matrix, logits = rng.normal(size=(K, K)), rng.normal(size=K)

    def quadratic(x):
        return x @ matrix @ x + matrix[0] @ x

    def other(x):
        return jnp.exp(2 * x @ matrix[0])

    expected, exact = expected_and_exact_gradient("reinmax", quadratic, logits)
    np.testing.assert_allclose(expected, exact, rtol=1e-9)
    expected, exact = expected_and_exact_gradient("reinmax", other, logits)
    assert not np.allclose(expected, exact, rtol=1e-2)


def unrolled(kind, mode, params, x, temperature=1.0, agent="mlp", unroll=unroll):
    recurrence = F.Recurrence(F.TIME_SKIPS[kind](K, 0.7, agent=agent, empty_slots="masked"))
    zeros = jnp.zeros((x.shape[0], 3))
    carry = F.initial_carry(
        jax.random.split(jax.random.key(5), x.shape[0]), recurrence, F.LSTMState(zeros, zeros)
    )
    return unroll(params, carry, x, recurrence, policy=F.Policy(mode, temperature))[1]


def weights_of_a_layer(agent="mlp"):
    rng = np.random.default_rng(6)
    draw = lambda *shape: jax.device_put(rng.normal(size=shape))
    lstm = F.LSTMParams(draw(2, 12), draw(3, 12), draw(12))
    out = K if agent == "mlp" else 3
    skip = F.AgentParams(draw(3, 5), draw(2, 5), draw(5), draw(5, out), draw(K))
    return F.LayerParams(lstm, skip), draw(2, 6, 2)


def test_a_softly_relaxed_dynamic_skip_computes_what_attention_does():
    params, x = weights_of_a_layer()
    soft, attention = unrolled("dynamic", "soft", params, x), unrolled("attention", "sample", params, x)
    for a, b in zip(jax.tree.leaves(soft), jax.tree.leaves(attention), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    greedy = unrolled("dynamic", "greedy", params, x).h
    assert not np.allclose(soft.h, greedy)
    cold = unrolled("dynamic", "soft", params, x, temperature=1e-4)
    np.testing.assert_allclose(cold.h, greedy, rtol=1e-9)


@pytest.mark.parametrize("relaxation", and_slow(F.RELAXATIONS, {"soft", "straight_through"}.__contains__))
def test_a_relaxed_agent_learns_from_the_loss_and_sends_nothing_into_the_network(relaxation):
    params, x = weights_of_a_layer()

    def loss(params):
        return jnp.sum(jnp.sin(unrolled("dynamic", relaxation, params, x, unroll=F.unroll).h))

    def entropies(lstm):
        params_of_lstm = params._replace(transition=lstm)
        relaxed = unrolled("dynamic", relaxation, params_of_lstm, x, unroll=F.unroll)
        return relaxed.decision.entropy[:, 1].sum()

    of_loss, of_entropies = jax.jit(lambda p: (jax.grad(loss)(p), jax.grad(entropies)(p.transition)))(params)
    assert all(np.abs(leaf).max() > 1e-6 for leaf in jax.tree.leaves(of_loss.skip))
    # The entropy of step 2 depends on h of step 1, but the agent sends no gradient into the network.
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(of_entropies)) == 0


def test_replayed_actions_are_not_relaxed():
    params, x = weights_of_a_layer()
    recurrence, zeros = F.Recurrence(F.Dynamic(K, 0.7)), jnp.zeros((2, 3))
    carry = F.initial_carry(jax.random.split(jax.random.key(5), 2), recurrence, F.LSTMState(zeros, zeros))
    actions = np.array([[1, 2, 1, 3, 4, 2]] * 2)
    replayed = [
        unroll(params, carry, x, recurrence, actions=actions, policy=F.Policy(mode))[1].h
        for mode in ("soft", "sample")
    ]
    np.testing.assert_array_equal(*replayed)
