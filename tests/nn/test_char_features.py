"""Check features from characters against loops in float64, and that padding has no effect on them."""

import doctest

import jax
import numpy as np
import pytest
from compiled import compiled, drawn
from flax import nnx
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.nn import CharAffixes, CharCNN, CharLSTM, char_features

# Two rows of three words, ids up to 8; the last word of the second row is only padding.
WORDS = [[[2, 3, 4], [5], [8, 7, 6, 5, 4, 3]], [[3, 3], [2, 1, 2, 6], []]]
LENGTH = 6


def padded(length=LENGTH):
    table = np.zeros((2, 3, length), np.int32)
    for row, words in zip(table, WORDS, strict=True):
        for place, word in zip(row, words, strict=True):
            place[: len(word)] = word
    return table


MAKE = {
    "cnn": lambda **more: drawn(lambda: CharCNN(9, char_features=3, filters=5, rngs=nnx.Rngs(0), **more)),
    "lstm": lambda **more: drawn(lambda: CharLSTM(9, char_features=3, features=6, rngs=nnx.Rngs(0), **more)),
    "affixes": lambda **more: drawn(
        lambda: CharAffixes(9, char_features=3, count=2, rngs=nnx.Rngs(0), **more)
    ),
}


def embeddings(module, word):
    return np.asarray(module.embedding[...], np.float64)[np.asarray(word, int) - 1]


@pytest.mark.parametrize("width", and_slow([1, 3, 4], lambda width: width == 3))
def test_cnn_by_hand(width):
    module = drawn(lambda: CharCNN(9, char_features=3, filters=5, width=width, rngs=nnx.Rngs(1)))
    w, b = np.asarray(module.filter_w[...], np.float64), np.asarray(module.filter_b[...], np.float64)
    found, zeros = compiled(module)(padded()), np.zeros((width - 1, 3))
    for row, words in zip(found, WORDS, strict=True):
        for features, word in zip(row, words, strict=True):
            if not word:
                continue
            x = np.concatenate([zeros, embeddings(module, word), zeros])
            values = [np.einsum("kd,kdf->f", x[i : i + width], w) for i in range(len(word) + width - 1)]
            np.testing.assert_allclose(features, np.tanh(np.max(values, axis=0) + b), rtol=1e-5, atol=1e-6)


def test_lstm_reads_each_word_from_both_ends():
    module = MAKE["lstm"]()
    found = np.asarray(compiled(module)(padded()))
    forth, back = (compiled(nnx.RNN(cell)) for cell in module.rnn.cells)
    for row, words in zip(found, WORDS, strict=True):
        for features, word in zip(row, words, strict=True):
            if not word:
                assert not features.any()
                continue
            # Zeros follow the word, and the cell reads them after it.
            x = np.zeros((1, LENGTH, 3), np.float32)
            x[0, : len(word)] = embeddings(module, word)
            turned = np.zeros_like(x)
            turned[0, : len(word)] = x[0, : len(word)][::-1]
            ends = [np.asarray(read(given))[0, len(word) - 1] for read, given in ((forth, x), (back, turned))]
            np.testing.assert_allclose(features, np.concatenate(ends), rtol=1e-5, atol=1e-6)


def test_affixes_by_hand():
    module = MAKE["affixes"]()
    special = np.asarray(module.embedding[...])[-1]
    found = np.asarray(compiled(module)(padded()))

    def expected(word):
        first = [*word[:2], *[None] * (2 - len(word))]
        last = [*[None] * (2 - len(word)), *word[-2:]]
        table = np.asarray(module.embedding[...])
        return np.concatenate([special if i is None else table[i - 1] for i in (*first[:2], *last[-2:])])

    for row, words in zip(found, WORDS, strict=True):
        for features, word in zip(row, words, strict=True):
            np.testing.assert_allclose(features, expected(word), rtol=1e-6)


@pytest.mark.parametrize("kind", MAKE)
def test_more_padding_changes_nothing(kind):
    module = MAKE[kind]()
    read = compiled(module)
    np.testing.assert_allclose(read(padded()), read(padded(11)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", and_slow(MAKE, lambda kind: kind == "cnn"))
def test_what_is_dropped_depends_on_the_rows_key_alone(kind):
    module = MAKE[kind](dropout=0.5)
    keys = jax.random.split(jax.random.key(0), 2)
    read = compiled(module)
    both, second = np.asarray(read(padded(), keys)), read(padded()[1:], keys[1:])
    np.testing.assert_allclose(both[1:], second, rtol=1e-6, atol=1e-7)
    still = read(padded(), deterministic=True)
    assert np.abs(both - still).max() > 1e-3
    with pytest.raises(UserError, match="rngs="):
        read(padded())
    module.eval()
    np.testing.assert_allclose(read(padded()), still)
    np.testing.assert_allclose(compiled(MAKE[kind]())(padded()), still, rtol=1e-6, atol=1e-7)


def test_embeddings_begin_with_the_variance_of_one_over_d():
    module = CharCNN(4000, char_features=12, rngs=nnx.Rngs(0))
    table = np.asarray(module.embedding[...])
    assert np.abs(table).max() <= 0.5 and abs(table.var() - 1 / 12) < 0.002


def test_sizes_are_checked():
    for make in (
        lambda: CharCNN(5, filters=0, rngs=nnx.Rngs(0)),
        lambda: CharLSTM(5, features=7, rngs=nnx.Rngs(0)),
        lambda: CharAffixes(5, count=0, rngs=nnx.Rngs(0)),
        lambda: CharCNN(5, dropout=1.0, rngs=nnx.Rngs(0)),
    ):
        with pytest.raises(UserError):
            make()


def test_examples_in_docstrings():
    assert doctest.testmod(char_features).failed == 0


@pytest.mark.parametrize("d", and_slow([1, 3, 5], lambda d: d == 3))
def test_gated_window_by_hand(d):
    rng = np.random.default_rng(0)
    x, lengths = rng.normal(size=(3, 6, 2)), np.array([6, 1, 4])
    w, b = rng.normal(size=(2 * d, d)), rng.normal(size=d)
    params = F.WindowGates(w.astype(np.float32), b.astype(np.float32))
    found = np.asarray(compiled(F.gated_window)(params, x.astype(np.float32), lengths))
    for row in range(3):
        for t in range(lengths[row]):
            tokens = [
                x[row, u] if 0 <= u < lengths[row] else np.zeros(2) for u in range(t - d // 2, t + d // 2 + 1)
            ]
            r = 1 / (1 + np.exp(-(np.concatenate(tokens) @ w + b)))
            expected = np.concatenate([gate * token for gate, token in zip(r, tokens, strict=True)])
            np.testing.assert_allclose(found[row, t], expected, rtol=1e-4, atol=1e-5)
