"""Check the copying of recent words, its gradients, and the words behind states, against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from dynskip_jax import functional as F
from dynskip_jax.functional.memory import Memory

BATCH, TIME, K, VOCABULARY = 3, 7, 4, 5
mixed, chosen = map(compiled, (F.copied_log_likelihood, F.chosen_log_likelihood))
of_each, mixture = map(compiled, (F.log_likelihood_of_each, F.copied_log_probs))
OF_TARGETS = pytest.mark.parametrize("of", [F.copied_log_likelihood, F.chosen_log_likelihood])


def problem(seed, choices=K, empty=0.3, gates=1):
    rng = np.random.default_rng(seed)
    words = rng.integers(0, VOCABULARY, (BATCH, TIME, choices))
    words = np.where(rng.random(words.shape) < empty, F.NO_WORD, words)
    weights = rng.dirichlet(np.ones(choices), (BATCH, TIME))
    log_odds = rng.normal(size=(BATCH, TIME, gates)) * 2
    logits = rng.normal(size=(BATCH, TIME, VOCABULARY))
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return F.Copies(words, weights, log_odds), log_probs


def oracle(copies, log_probs):
    """Compute p_k(w) = (1 - g_k) p_softmax(w) + g_k 1[w_k = w] for each choice k, by loops."""
    choices = copies.words.shape[-1]
    result = np.zeros((choices, *log_probs.shape))
    gates = np.broadcast_to(copies.gates, copies.words.shape)
    for b, t, k in np.ndindex(BATCH, TIME, choices):
        g, word = 1 / (1 + np.exp(-float(gates[b, t, k]))), int(copies.words[b, t, k])
        result[k, b, t] = np.exp(log_probs[b, t])
        if word != F.NO_WORD:
            result[k, b, t] *= 1 - g
            result[k, b, t, word] += g
    return result


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    choices=st.sampled_from([(1, 1), (6, 1), (6, 6)]),
    empty=st.sampled_from([0.0, 0.4, 1.0]),
)
def test_each_function_is_its_definition(seed, choices, empty):
    with jax.enable_x64(True):
        copies, log_probs = problem(seed, choices[0], empty, choices[1])
        expected = oracle(copies, log_probs)
        found = np.exp(np.asarray(mixture(copies, log_probs)))
        of_all = np.einsum("btk,kbtw->btw", copies.weights, expected)
        np.testing.assert_allclose(found, of_all, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-9)
        for word in range(VOCABULARY):
            given = copies, log_probs[..., word], np.full((BATCH, TIME), word)
            log_p = np.log(expected[..., word])
            np.testing.assert_allclose(np.exp(mixed(*given)), found[..., word], rtol=1e-9)
            np.testing.assert_allclose(of_each(*given), np.moveaxis(log_p, 0, -1), rtol=1e-9)
            mean = np.einsum("btk,kbt->bt", copies.weights, log_p)
            np.testing.assert_allclose(chosen(*given), mean, rtol=1e-9)


@OF_TARGETS
@pytest.mark.parametrize("gates", [1, K])
def test_gradients_equal_differences(of, gates, double_precision):
    copies, log_probs = jax.device_put(problem(1, gates=gates))
    targets = jax.device_put(np.zeros((BATCH, TIME), int))

    @jax.jit  # `check_grads` passes NumPy arrays
    def loss(weights, gates, log_probs):
        return of(copies._replace(weights=weights, gates=gates), log_probs, targets).sum()

    check_grads(
        loss, (copies.weights, copies.gates, log_probs[..., 0]), order=1, modes=["rev"], rtol=1e-6
    )


@OF_TARGETS
def test_gradients_where_the_gate_is_shut_or_wide_open(of):
    copies, log_probs = jax.tree.map(jnp.asarray, problem(2, empty=0.0))
    copies = copies._replace(words=jnp.ones_like(copies.words))
    targets = jnp.zeros((BATCH, TIME), int)  # not the word that may be copied

    @jax.jit
    def both(gates, log_probs):
        loss = lambda gates, log_probs: of(copies._replace(gates=gates), log_probs, targets).sum()
        return jax.value_and_grad(loss, (0, 1))(gates, log_probs)

    for gate, kept in ((-200.0, 0.0), (200.0, -200.0)):
        value, (d_gates, d_log_probs) = both(jnp.full_like(copies.gates, gate), log_probs[..., 0])
        np.testing.assert_allclose(value, kept * BATCH * TIME + log_probs[..., 0].sum(), rtol=1e-5)
        np.testing.assert_allclose(d_gates, -1.0 if kept else 0.0, atol=1e-5)  # it shuts again
        np.testing.assert_allclose(d_log_probs, 1.0, rtol=1e-5)


@pytest.mark.parametrize("cuts", [(3,), (1, 2, 5)])
def test_the_word_behind_each_state_by_a_loop_and_across_segments(cuts):
    tokens = np.random.default_rng(0).integers(0, 90, (BATCH, TIME))
    earlier, found, followers = np.full((BATCH, K - 1), F.NO_WORD), [], compiled(F.followers)
    for part in np.split(tokens, cuts, axis=1):
        words, earlier = followers(part, earlier)
        found.append(words)
    found = np.concatenate(found, axis=1)
    for t in range(TIME):
        for k in range(1, K + 1):
            # State(t-k) was computed from token t-k, and token t-k+1 followed it.
            expected = tokens[:, t - k + 1] if t - k + 1 >= 0 else np.full(BATCH, F.NO_WORD)
            np.testing.assert_array_equal(found[:, t, k - 1], expected)


@pytest.mark.parametrize("kind", ["previous", "mean", "slots", "memory"])
def test_what_is_observed_at_all_steps_is_what_each_step_observes(kind, double_precision):
    rng = np.random.default_rng(0)
    history, query = rng.normal(size=(BATCH, K + TIME, 2)), rng.normal(size=(BATCH, TIME, 2))
    found = F.observations_in(jax.device_put(history), kind, K, TIME)
    compare = jax.jit(lambda slots, query: Memory(jnp.flip(slots, 1), K).compare(query))
    compared = None if kind != "memory" else np.asarray(jax.jit(found.compare)(query))
    for t in range(TIME):
        slots = np.flip(history[:, t : t + K], axis=1)
        expected = {
            "previous": slots[:, 0],
            "mean": slots.mean(1),
            "slots": slots,
            "memory": slots,
        }[kind]
        if kind == "memory":
            np.testing.assert_allclose(np.asarray(found.previous)[:, t], slots[:, 0])
            one_step = compare(slots, query[:, t])
            np.testing.assert_allclose(compared[:, t], one_step, rtol=1e-12)
            np.testing.assert_allclose(
                one_step, np.einsum("bkh,bh->bk", slots, query[:, t]), rtol=1e-12
            )
        else:
            np.testing.assert_allclose(np.asarray(found)[:, t], expected, rtol=1e-12)
