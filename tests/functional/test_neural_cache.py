"""Check the neural cache against loops over its definition, and its sums, segments and windows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.functional import empty_cache

cached_log_likelihood = compiled(F.cached_log_likelihood)

VOCABULARY, FEATURES = 4, 3


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def text(seed, batch, time):
    """Return random states, the words that follow them, and a model's distribution at each step."""
    rng = np.random.default_rng(seed)
    states = jnp.asarray(rng.normal(size=(batch, time, FEATURES)))
    words = jnp.asarray(rng.integers(VOCABULARY, size=(batch, time)), jnp.int32)
    return states, words, rng.dirichlet(np.ones(VOCABULARY), size=(batch, time))


def mixed(states, words, probabilities, t, size, flatness, weight):
    """Compute the distribution of the word after step t by its definition, (vocabulary,), in float64."""
    past = range(max(0, t - size), t)
    if not past:
        return probabilities[t]
    states, words, cache = np.asarray(states), np.asarray(words), np.zeros(VOCABULARY)
    for i in past:
        cache[words[i]] += np.exp(flatness * states[t] @ states[i])
    return (1 - weight) * probabilities[t] + weight * cache / cache.sum()


def start(batch, size):
    carry = empty_cache(batch, size, FEATURES)
    return carry._replace(states=carry.states.astype(jnp.float64))


def of_targets(probabilities, words):
    return jnp.log(np.take_along_axis(probabilities, np.asarray(words)[..., None], axis=-1)[..., 0])


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    # Few shapes, because each one is compiled.
    time=st.sampled_from([1, 6]),
    size=st.sampled_from([1, 4, 9]),
    flatness=st.floats(0, 3),
    weight=st.floats(0.01, 0.99),
)
@pytest.mark.slow
def test_it_is_its_definition(seed, time, size, flatness, weight):
    states, words, probabilities = text(seed, 2, time)
    log_likelihood = of_targets(probabilities, words)
    _, found = cached_log_likelihood(
        start(2, size), states, words, log_likelihood, flatness=flatness, weight=weight
    )
    for b in range(2):
        for t in range(time):
            expected = mixed(states[b], words[b], probabilities[b], t, size, flatness, weight)
            np.testing.assert_allclose(found[b, t], np.log(expected[words[b, t]]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("cut", and_slow([1, 4, 7], lambda cut: cut == 4))
def test_segments_are_one_text(cut):
    states, words, probabilities = text(0, 2, 9)
    log_likelihood = of_targets(probabilities, words)
    options = dict(flatness=0.7, weight=0.3)
    whole_carry, whole = cached_log_likelihood(start(2, 5), states, words, log_likelihood, **options)
    carry, pieces = start(2, 5), []
    for part in (slice(0, cut), slice(cut, None)):
        carry, piece = cached_log_likelihood(
            carry, states[:, part], words[:, part], log_likelihood[:, part], **options
        )
        pieces.append(piece)
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), whole, rtol=1e-12)
    for a, b in zip(carry, whole_carry, strict=True):
        np.testing.assert_array_equal(a, b)


def test_probabilities_of_all_words_sum_to_one():
    states, words, probabilities = text(1, 1, 6)
    total = 0.0
    for last in range(VOCABULARY):
        targets = words.at[:, -1].set(last)
        _, found = cached_log_likelihood(
            start(1, 4), states, targets, of_targets(probabilities, targets), flatness=1.0, weight=0.4
        )
        total += np.exp(found[0, -1])
    np.testing.assert_allclose(total, 1.0, rtol=1e-12)
