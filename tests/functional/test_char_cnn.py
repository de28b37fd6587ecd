"""Check the character CNN against loops written from Kim et al. (2016)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, on_device
from jax.test_util import check_grads

from dynskip_jax import functional as F

char_cnn = compiled(F.char_cnn)
pytestmark = pytest.mark.usefixtures("double_precision")
CHAR = 3
SHAPES = ((1, 2), (2, 4), (3, 1), (5, 3))  # (width, maps)
LENGTHS = [6, 1, 3, 0, 2]


def draw_filters(rng):
    return [
        F.CharFilters(rng.normal(size=(w, CHAR, maps)), rng.normal(size=maps)) for w, maps in SHAPES
    ]


def padded(words, length, padding):
    """Return the words as one array, filled up with `padding`, (words, length, CHAR), and their
    lengths.
    """
    array = np.full((len(words), length, CHAR), padding)
    for row, word in zip(array, words, strict=True):
        row[: len(word)] = word
    return jax.device_put((array, np.array([len(word) for word in words])))


def oracle_features(filters, word):
    """Compute the features of one word without padding, one window after the other."""
    features = []
    for w, b in filters:
        for m in range(w.shape[2]):
            values = []
            for start in range(max(len(word), 1)):
                window = [
                    (k, d) for k in range(len(w)) for d in range(CHAR) if start + k < len(word)
                ]
                values.append(
                    np.tanh(b[m] + sum(w[k, d, m] * word[start + k, d] for k, d in window))
                )
            features.append(max(values))
    return features


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("padding", [0.0, 7.0, -7.0])
def test_features_equal_the_loops_and_neither_amount_nor_content_of_padding_matters(padding):
    rng = np.random.default_rng(0)
    filters = draw_filters(rng)
    words = [rng.normal(size=(n, CHAR)) for n in LENGTHS]

    def outputs(length, padding):
        x, n = padded(words, length, padding)

        def loss(filters, x):
            features = F.char_cnn(filters, x, n)
            return jnp.sum(jnp.sin(features)), features

        (d_filters, d_x), features = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(
            filters, x
        )
        inside = np.arange(length)[None, :, None] < np.asarray(n)[:, None, None]
        assert not np.where(inside, 0.0, d_x).any()
        return features, d_filters, np.asarray(d_x)[:, :6]

    found = outputs(23, padding)
    close(found[0], [oracle_features(filters, word) for word in words])
    jax.tree.map(close, found, outputs(6, 0.0))
    x, n = padded(words, 6, padding)
    check_grads(
        lambda filters: char_cnn(filters, x, n), (on_device(filters),), 1, modes="rev", rtol=1e-6
    )


def test_equal_windows_count_once():
    # The last three windows of width 1 are equal. Only the first of them gets the gradient.
    filters = on_device([F.CharFilters(np.ones((1, CHAR, 1)), np.zeros(1))])
    x = np.array([[-1.0], [0.1], [0.1], [0.1]]) * np.ones(CHAR)
    features, d_x = jax.jit(jax.value_and_grad(lambda x: F.char_cnn(filters, x)[0]))(x)
    close(features, np.tanh(0.3))
    slope = 1 - np.tanh(0.3) ** 2
    close(d_x, np.array([0, slope, 0, 0])[:, None] * np.ones(CHAR))
