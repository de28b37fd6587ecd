"""Check what is computed from characters against loops in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from flax import nnx
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.data.vocabularies import character_table
from dynskip_jax.errors import UserError
from dynskip_jax.nn import CharAffixes, CharCNN, CharEmbedding

# Two rows of three words, ids up to 8; the last word of the second row is only padding.
WORDS = [[[2, 3, 4], [5], [8, 7, 6, 5, 4, 3]], [[3, 3], [2, 1, 2, 6], []]]


def padded(length=6):
    table = np.zeros((2, 3, length), np.int32)
    for row, words in zip(table, WORDS, strict=True):
        for place, word in zip(row, words, strict=True):
            place[: len(word)] = word
    return table


def float64(param):
    return np.asarray(param[...], np.float64)


def of_character(module, word):
    return float64(module.embedding)[np.asarray(word, int) - 1]


def strongest(x, w, b):
    """Return tanh(max over the windows of x of <window, filter> + b)."""
    values = [np.einsum("kd,kdf->f", x[i : i + len(w)], w) for i in range(len(x) - len(w) + 1)]
    return np.tanh(np.max(values, axis=0) + b)


def close(actual, expected, tolerance=1e-5):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


# Embeddings of whole words.

VOCABULARY = ["the", "a", "cat", "<unk>", "category", "<eos>", "act"]
TABLE, SYMBOLS = character_table(VOCABULARY)
TOKENS = np.array([[0, 1, 2, 3, 4], [5, 6, 6, 0, 2]])


def embedding(table=TABLE, **options):
    sizes = dict(char_features=3, widths=(1, 2, 4), maps=(2, 3, 4), num_highway=2) | options
    make = lambda: CharEmbedding(
        table, weight_init=nnx.initializers.zeros, **sizes, rngs=nnx.Rngs(0)
    )
    return drawn(make)


@pytest.mark.parametrize("padding", [0, 5])
def test_each_word_by_hand(padding):
    module = embedding(np.pad(TABLE, ((0, 0), (0, padding))))

    def by_hand(word):
        # One maximum over windows for each filter; a window may reach past the end.
        parts = []
        for w, b in zip(module.filter_w, module.filter_b, strict=True):
            x = np.concatenate([of_character(module, word), np.zeros((w.shape[0] - 1, 3))])
            parts.append(strongest(x, float64(w), float64(b)))
        x = np.concatenate(parts)
        # Highway layers: t ReLU(W x + b) + (1 - t) x.
        for w, b in zip(module.highway_w, module.highway_b, strict=True):
            gate, h = np.split(x @ float64(w) + float64(b), 2)
            t = 1 / (1 + np.exp(-gate))
            x = t * np.maximum(h, 0) + (1 - t) * x
        return x

    expected = np.stack([by_hand(row[row != 0]) for row in TABLE])
    close(compiled(module)(TOKENS), expected[TOKENS])


def test_gradient_reaches_the_characters_that_occur_and_no_others():
    graphdef, params = nnx.split(embedding())

    def loss(params):
        embed = nnx.merge(graphdef, params)
        return jnp.sum(jnp.sin(embed(jnp.array([[1, 5]]))))  # "a", "<eos>"

    grads = jax.jit(jax.grad(loss))(params)
    reached = np.abs(np.asarray(grads["embedding"][...])).sum(axis=1) > 0
    expected = {1, 2, 3 + SYMBOLS.index("a"), 3 + SYMBOLS.index("<eos>")}
    assert set(np.flatnonzero(reached) + 1) == expected  # padding, the id 0, has no row
    weights = [leaf for path, leaf in nnx.to_flat_state(grads) if path != ("embedding",)]
    assert all(np.abs(leaf[...]).max() > 0 for leaf in weights)


# Features beside an embedding.

MAKE = {
    "cnn": lambda **more: CharCNN(9, char_features=3, filters=5, rngs=nnx.Rngs(0), **more),
    "affixes": lambda **more: CharAffixes(9, char_features=3, count=2, rngs=nnx.Rngs(0), **more),
}


def made(kind, **more):
    return drawn(lambda: MAKE[kind](**more))


def check_each_word(module, by_hand):
    for length in (6, 11):
        found = np.asarray(compiled(module)(padded(length)))
        for row, words in zip(found, WORDS, strict=True):
            for features, word in zip(row, words, strict=True):
                close(features, by_hand(word))


@pytest.mark.parametrize("width", and_slow([1, 3, 4], lambda width: width == 3))
def test_cnn_by_hand(width):
    module = made("cnn", width=width)
    zeros = np.zeros((width - 1, 3))
    w = float64(module.filter_w)
    b = float64(module.filter_b)

    def by_hand(word):
        # A word without characters has one window, of zeros.
        nothing = np.zeros((int(not word), 3))
        x = np.concatenate([zeros, of_character(module, word), zeros, nothing])
        return strongest(x, w, b)

    check_each_word(module, by_hand)


def test_affixes_by_hand():
    module = made("affixes")
    special = 9  # fills the positions that a word does not have
    places = lambda word: [*word[:2], *[special] * (4 - 2 * len(word[:2])), *word[-2:]]
    check_each_word(module, lambda word: of_character(module, places(word)).ravel())


@pytest.mark.parametrize("kind", and_slow(MAKE, lambda kind: kind == "cnn"))
def test_what_is_dropped_depends_on_the_rows_key_alone(kind):
    module = made(kind, dropout=0.5)
    keys = jax.random.split(jax.random.key(0), 2)
    read = compiled(module)
    both = np.asarray(read(padded(), keys))
    second = read(padded()[1:], keys[1:])
    close(both[1:], second, 1e-6)

    # Nothing is dropped in evaluation, which needs no key.
    still = read(padded(), deterministic=True)
    assert np.abs(both - still).max() > 1e-3
    with pytest.raises(UserError, match="rngs="):
        read(padded())
    module.eval()
    close(read(padded()), still, 0)
    close(compiled(made(kind))(padded()), still, 1e-6)


def test_embeddings_begin_with_the_variance_of_one_over_d():
    table = float64(CharCNN(4000, char_features=12, rngs=nnx.Rngs(0)).embedding)
    assert np.abs(table).max() <= 0.5 and abs(table.var() - 1 / 12) < 0.002


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (embedding, dict(table=np.array([[1, 0, 2]]))),
        (embedding, dict(widths=(1, 2))),
        (MAKE["cnn"], dict(width=0)),
        (MAKE["cnn"], dict(dropout=1.0)),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_what_makes_no_model_is_refused(make, options):
    with pytest.raises(UserError, match=r"padding|maps|whole number|dropout"):
        make(**options)


@pytest.mark.parametrize("d", and_slow([1, 3, 5], lambda d: d == 3))
def test_gated_window_by_hand(d):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 6, 2))
    lengths = np.array([6, 1, 4])
    w = rng.normal(size=(2 * d, d))
    b = rng.normal(size=d)
    params = F.WindowGates(w.astype(np.float32), b.astype(np.float32))
    found = np.asarray(compiled(F.gated_window)(params, x.astype(np.float32), lengths))
    for row, length in enumerate(lengths):
        for t in range(length):
            around = range(t - d // 2, t + d // 2 + 1)
            padded_row = np.zeros((6 + 2 * d, 2))
            padded_row[d : d + length] = x[row, :length]
            tokens = [padded_row[d + u] for u in around]
            r = 1 / (1 + np.exp(-(np.concatenate(tokens) @ w + b)))
            close(found[row, t], (r[:, None] * tokens).ravel())
