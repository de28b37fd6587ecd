"""Check the neural cache against a loop over its definition."""

import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled

from dynskip_jax import functional as F

cached_log_likelihood = compiled(F.cached_log_likelihood)
pytestmark = pytest.mark.usefixtures("double_precision")
VOCABULARY, FEATURES, TIME = 4, 3, 9


def text(seed, batch, time=TIME):
    """Return random states, the words that follow them, and a model's distribution at each step."""
    rng = np.random.default_rng(seed)
    words = rng.integers(VOCABULARY, size=(batch, time)).astype(np.int32)
    return (
        rng.normal(size=(batch, time, FEATURES)),
        words,
        rng.dirichlet(np.ones(VOCABULARY), (batch, time)),
    )


def run(carry, states, words, probabilities, **options):
    log_p = np.log(np.take_along_axis(probabilities, words[..., None], axis=-1)[..., 0])
    carry, found = cached_log_likelihood(carry, states, words, log_p, **options)
    return carry, np.asarray(found)


def start(batch, size):
    carry = F.empty_cache(batch, size, FEATURES)
    return carry._replace(states=carry.states.astype(jnp.float64))


@pytest.mark.parametrize(
    ("size", "flatness", "weight"), [(1, 0.0, 0.5), (4, 0.7, 0.3), (12, 3.0, 0.99)]
)
@pytest.mark.parametrize("starts", [(), (2, 7)])
def test_it_is_its_definition_also_in_segments(size, flatness, weight, starts):
    """The cache of a document is empty where it begins, for the second row only."""
    states, words, probabilities = text(0, 2)
    begins = np.zeros((2, TIME), bool)
    begins[1, starts] = True
    carry, found = start(2, size), []
    for part in (slice(0, 4), slice(4, None)):
        given = (array[:, part] for array in (states, words, probabilities))
        how = dict(begins=begins[:, part] if starts else None)
        carry, piece = run(carry, *given, flatness=flatness, weight=weight, **how)
        found.append(piece)
    found = np.concatenate(found, axis=1)
    for b, t in np.ndindex(2, TIME):
        cache = np.zeros(VOCABULARY)
        begin = max(np.flatnonzero(begins[b, : t + 1]), default=0)
        for i in range(max(begin, t - size), t):
            cache[words[b, i]] += np.exp(flatness * states[b, t] @ states[b, i])
        p = probabilities[b, t]
        p = (1 - weight) * p + weight * cache / cache.sum() if t > begin else p
        np.testing.assert_allclose(found[b, t], np.log(p[words[b, t]]), rtol=1e-10, atol=1e-12)


def test_probabilities_of_all_words_sum_to_one():
    states, words, probabilities = text(1, 1)
    total = 0.0
    for words[:, -1] in range(VOCABULARY):
        total += np.exp(
            run(start(1, 4), states, words, probabilities, flatness=1.0, weight=0.4)[1][0, -1]
        )
    np.testing.assert_allclose(total, 1.0, rtol=1e-12)
