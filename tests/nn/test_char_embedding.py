"""Check the character embedding module: its outputs, constants, parameters and dtypes."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from flax import nnx
from marks import and_slow

from dynskip_jax.data.vocabularies import character_table
from dynskip_jax.errors import UserError
from dynskip_jax.nn import char_embedding
from dynskip_jax.nn.char_embedding import CharEmbedding

WORDS = ["the", "a", "cat", "<unk>", "category", "<eos>", "act"]
TABLE, SYMBOLS = character_table(WORDS)
TOKENS = np.array([[0, 1, 2, 3, 4], [5, 6, 6, 0, 2]])
SMALL = dict(char_features=3, widths=(1, 2, 4), maps=(2, 3, 4), num_highway=2)
normal = nnx.initializers.normal(0.5)


def make(table=TABLE, **options):
    return drawn(lambda: constructed(table=table, **options))


def constructed(key=0, table=TABLE, **options):
    return CharEmbedding(table, **{**SMALL, "weight_init": normal, **options}, rngs=nnx.Rngs(key))


def params_of(module):
    return nnx.state(module, nnx.Param)


def widened(table, columns=5):
    return np.pad(table, ((0, 0), (0, columns)))


def close(actual, expected, tolerance=1e-6):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def by_hand(module, word):
    """Compute the embedding of one word in float64, from its characters without padding."""
    rows = np.asarray(module.embedding[...], np.float64)[word - 1]
    features = []
    for w, b in module.filters():
        w, b, width = np.asarray(w, np.float64), np.asarray(b, np.float64), len(w)
        zeros = np.concatenate([rows, np.zeros((width - 1, rows.shape[1]))])
        values = [np.einsum("kd,kdm->m", zeros[i : i + width], w) + b for i in range(len(rows))]
        features.append(np.tanh(np.max(values, axis=0)))
    x = np.concatenate(features)
    for w, b in module.highways():
        gate, h = np.split(x @ np.asarray(w, np.float64) + np.asarray(b, np.float64), 2)
        t = 1 / (1 + np.exp(-gate))
        x = t * np.maximum(h, 0) + (1 - t) * x
    return x


def test_each_word_by_hand():
    module = make()
    expected = np.stack([by_hand(module, row[row != 0]) for row in TABLE])
    actual = np.asarray(compiled(module)(TOKENS))
    assert actual.shape == (2, 5, module.features) == (2, 5, 9)
    close(actual, expected[TOKENS], 1e-5)
    # Words that differ only in the order of their characters have different embeddings.
    assert (
        np.abs(actual[WORDS.index("cat") == TOKENS][0] - actual[WORDS.index("act") == TOKENS][0]).max() > 1e-2
    )


def test_the_large_models_parameters_are_counted():
    # Kim et al. (2016), Table 2: d = 15, widths 1 to 7, maps min(200, 50 w), two highway layers.
    init = nnx.initializers.uniform(0.05)
    module = nnx.eval_shape(lambda: CharEmbedding(TABLE, weight_init=init, rngs=nnx.Rngs(0)))
    characters = 2 + len(SYMBOLS)  # two marks; padding has no embedding
    convolution = sum((15 * w + 1) * min(200, 50 * w) for w in range(1, 8))
    highways = 2 * 2 * (1100 * 1100 + 1100)
    count = sum(leaf.size for leaf in jax.tree.leaves(params_of(module)))
    assert module.features == 1100
    assert count == 15 * characters + convolution + highways == 15 * characters + 77_600 + 4_844_400


def loss_of(graphdef, tokens=TOKENS):
    return lambda params: jnp.sum(jnp.sin(nnx.merge(graphdef, params)(jnp.asarray(tokens))))


@pytest.mark.slow
def test_padding_stays_without_effect_in_training():
    narrow, wide = make(), make(table=widened(TABLE))
    for _ in range(3):
        close(wide(TOKENS), narrow(TOKENS))
        for module in (narrow, wide):
            grads = jax.grad(loss_of(nnx.graphdef(module)))(params_of(module))
            nnx.update(module, jax.tree.map(lambda p, g: p - 0.1 * g, params_of(module), grads))
    jax.tree.map(close, params_of(wide), params_of(narrow))


def test_gradient_reaches_the_characters_that_occur_and_no_others():
    module = make()
    gradient = jax.jit(jax.grad(loss_of(nnx.graphdef(module), np.array([[1, 5]]))))  # "a", "<eos>"
    grads = gradient(params_of(module))
    reached = np.abs(np.asarray(grads["embedding"][...])).sum(axis=1) > 0
    expected = {1, 2, 3 + SYMBOLS.index("a"), 3 + SYMBOLS.index("<eos>")}
    assert set(np.flatnonzero(reached) + 1) == expected
    weights = [leaf for path, leaf in nnx.to_flat_state(grads) if path != ("embedding",)]
    assert all(np.abs(leaf[...]).max() > 0 for leaf in weights)


@pytest.mark.parametrize("table", [[[1, 0, 2]], [[0, 0], [1, 2]], [[1, -3]], np.zeros((0, 3))])
def test_what_is_no_table_is_refused(table):
    with pytest.raises(ValueError, match=r"padding|character"):
        make(table=np.array(table, np.int32))


@pytest.mark.parametrize(
    "options", [dict(widths=(1, 2)), dict(widths=(), maps=()), dict(maps=(1, 0, 2)), dict(char_features=0)]
)
def test_sizes_that_make_no_model_are_refused(options):
    with pytest.raises(UserError, match=r"maps|sizes"):
        make(**options)


@pytest.mark.parametrize("words_at_once", and_slow([1, 2, 1000], lambda count: count == 2))
def test_a_table_holds_what_each_word_is_embedded_as(words_at_once):
    embed = make()
    words = np.arange(embed.characters.shape[0])
    table = compiled(embed.table)(words_at_once)
    np.testing.assert_allclose(table, np.asarray(compiled(embed)(words[None]))[0], rtol=1e-6)


@pytest.mark.slow
def test_example_in_the_docstring_runs():
    result = doctest.testmod(char_embedding)
    assert result.attempted > 0
    assert result.failed == 0
