"""Check models of sentences and sentence pairs: pooling, directions, padding, the pair layer by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from flax import nnx
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.models import SentencePairModel, SequenceClassifier, rating_distribution

RNG = np.random.default_rng(0)
TOKENS = RNG.integers(5, size=(4, 6)).astype(np.int32)
KEY = jax.random.key(0)


@pytest.mark.parametrize("backward", [0, 2])
@pytest.mark.parametrize("pooling", ["last", "mean", "max"])
def test_pooling_is_that_of_the_steps_that_count(pooling, backward):
    states = RNG.normal(size=(3, 5, 4)).astype(np.float32)
    where = np.array([[0, 1, 1, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], bool)
    found = np.asarray(compiled(F.pool_states)(states, where, pooling, backward=backward))
    ways = {"mean": lambda own: own.mean(axis=0), "max": lambda own: own.max(axis=0)}
    for row in range(2):
        own = states[row, where[row]]
        ends = np.concatenate([own[-1, : 4 - backward], own[0, 4 - backward :]])
        np.testing.assert_allclose(found[row], ways.get(pooling, lambda _, e=ends: e)(own), rtol=1e-6)
    np.testing.assert_array_equal(found[2], 0)


def test_the_mean_of_many_states_is_finite_in_float16():
    """Regression: float16 ends at 65,504, so that sums and counts above were infinite."""
    states, where = np.ones((1, 70_000, 1), np.float16), np.ones((1, 70_000), bool)
    found = compiled(F.pool_states)(states, where, "mean")
    assert found.dtype == np.float16 and found == 1


def classifier(pooling="mean", **options):
    def make():
        rngs = nnx.Rngs(0)
        given = dict(bidirectional=True, embedding=nnx.Embed(5, 3, rngs=rngs)) | options
        return SequenceClassifier(5, 4, 3, [F.Dynamic(2)], pooling=pooling, rngs=rngs, **given)

    return drawn(make)


def test_the_last_states_of_both_directions_have_read_everything():
    model = classifier("last")
    logits = compiled(model)(TOKENS[:1], deterministic=True).logits
    embedded = np.asarray(model.embedding.embedding[...])[TOKENS[:1]]
    stack = np.asarray(compiled(model.stack)(embedded, deterministic=True).h)
    ends = np.concatenate([stack[:, -1, :4], stack[:, 0, 4:]], axis=-1)
    np.testing.assert_allclose(logits, compiled(model.softmax)(ends), rtol=1e-6)


def test_dropped_words_say_nothing_and_the_others_more():
    model = classifier(word_dropout=0.5)
    keys = jax.random.split(KEY, 4)
    plain, dropped = (np.asarray(compiled(model._inputs)(TOKENS, key)) for key in (None, keys))
    factors = dropped / plain
    assert set(np.unique(factors.round(4))) == {0.0, 2.0}
    np.testing.assert_array_equal(factors.min(-1), factors.max(-1))
    model.eval()
    quiet = compiled(model)(TOKENS).logits
    loud = compiled(model)(TOKENS, rngs=KEY, deterministic=False).logits
    assert not np.allclose(quiet, loud)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(dropout=1.5), r"dropout .*lies in \[0, 1\), got 1\.5"),
        (dict(dropout=(0.1, 1.0)), r"dropout .*lies in \[0, 1\), got 1\.0"),
        (dict(dropout=(-0.1, 0.5)), r"dropout .*lies in \[0, 1\), got -0\.1"),
        (dict(word_dropout=1.0), r"^word_dropout lies in \[0, 1\), got 1\.0"),
        (dict(unknown_rate=1.0), r"^unknown_rate lies in \[0, 1\), got 1\.0"),
    ],
    ids=str,
)
def test_rates_are_checked_when_a_model_is_made(options, says):
    models = (classifier,) if "word_dropout" in options else (classifier, pair_model)
    for make in models:
        with pytest.raises(UserError, match=says):
            make(**options)


def test_rare_words_are_unknown_ones_in_training_alone():
    """In training, ids from `num_frequent` on are sometimes replaced by `<unk>`, with another key per row."""
    tokens = np.tile(np.arange(1, 5), (40, 5))
    rare = dict(unknown_rate=0.5, num_frequent=3)

    def seen(model, deterministic, *more):
        asked, (definition, state) = [], nnx.split(model)

        def read(state, *inputs):
            copy = nnx.merge(definition, state)
            copy.embedding = lambda ids: asked.append(ids) or jnp.zeros((*ids.shape, 3))
            copy(*inputs, rngs=KEY, deterministic=deterministic)
            return asked[0]

        return np.asarray(jax.jit(read)(state, tokens, *more))

    for model, *more in ((classifier(**rare),), (pair_model(**rare), np.arange(20)[None] // 10 + 0 * tokens)):
        np.testing.assert_array_equal(seen(model, True, *more), tokens)
        found = seen(model, False, *more)
        np.testing.assert_array_equal(found[tokens < 3], tokens[tokens < 3])
        assert set(np.unique(found[tokens >= 3])) == {0, 3, 4}
        assert 0.4 < (found[tokens >= 3] == 0).mean() < 0.6
        assert len({tuple(row) for row in found == 0}) > 20


def pair_model(**options):
    def make():
        rngs = nnx.Rngs(0)
        given = dict(similarity_features=6, rngs=rngs) | options
        return SentencePairModel(nnx.Embed(5, 3, rngs=rngs), 4, 5, [F.Dynamic(2)], **given)

    return drawn(make)


FIRST, SECOND = np.array([1, 4, 2]), np.array([3, 0])
ROW = np.concatenate([FIRST, SECOND, [2, 2]])[None]
SENTENCES = np.array([[0, 0, 0, 1, 1, 0, 0]])


@pytest.mark.parametrize("bidirectional", and_slow([False, True], bool))
def test_a_pair_is_the_papers_equations_on_two_sentences_read_apart(bidirectional):
    model = pair_model(bidirectional=bidirectional)
    found = compiled(model)(ROW, SENTENCES, seq_lengths=np.array([5]), deterministic=True).logits[0]
    ends = []
    for sentence in (FIRST, SECOND):
        x = np.asarray(model.embedding.embedding[...])[sentence[None]]
        h = np.asarray(compiled(model.stack)(x, deterministic=True).h[0])
        ends.append(np.concatenate([h[-1, :4], h[0, 4:]]).astype(float))
    w = {name: np.asarray(getattr(model, name).kernel[...]) for name in ("product", "difference", "softmax")}
    hidden = (ends[0] * ends[1]) @ w["product"] + np.abs(ends[0] - ends[1]) @ w["difference"]
    hidden = np.maximum(hidden + np.asarray(model.product.bias[...]), 0)
    expected = hidden @ w["softmax"] + np.asarray(model.softmax.bias[...])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_a_pair_is_as_alike_in_the_other_order():
    model = compiled(pair_model(dropout=0.5))
    turned = np.concatenate([SECOND, FIRST])[None]
    one = model(ROW[:, :5], SENTENCES[:, :5], deterministic=True).logits
    two = model(turned, np.array([[0, 0, 1, 1, 1]]), deterministic=True).logits
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
    noisy = model(ROW[:, :5], SENTENCES[:, :5], rngs=KEY).logits
    assert not np.allclose(one, noisy)


def test_a_rating_lies_between_two_whole_ones():
    found = compiled(rating_distribution)(np.array([1.0, 3.6, 5.0], np.float32), 5)
    np.testing.assert_allclose(
        found, [[1, 0, 0, 0, 0], [0, 0, 0.4, 0.6, 0], [0, 0, 0, 0, 1]], rtol=1e-6, atol=1e-6
    )
