"""Check task models: padding, pooling, where dropout acts, and initializers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from flax import nnx
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax import rl
from dynskip_jax.data.tag_schemes import allowed_transitions, first_problem
from dynskip_jax.data.vocabularies import TokenIds
from dynskip_jax.errors import UserError
from dynskip_jax.models import (
    LanguageModel,
    LanguageModelDropout,
    SentencePairModel,
    SequenceClassifier,
    Tagger,
)
from dynskip_jax.nn import CharAffixes, CharCNN

RNG = np.random.default_rng(0)
LENGTHS = np.array([7, 3, 3, 1])
TOKENS = RNG.integers(6, size=(4, 7)).astype(np.int32)
KEY = jax.random.key(1)
TAGS = ("O", "B-X", "I-X", "E-X", "S-X", "B-Y", "I-Y", "E-Y", "S-Y")
BIOES = allowed_transitions(TAGS, "BIOES")
RARE = dict(unknown_rate=0.5, num_frequent=3)
DYNAMIC = (F.Dynamic(3),)


embed = lambda: nnx.Embed(6, 3, rngs=nnx.Rngs(0))


def classifier(skip=DYNAMIC, **options):
    return drawn(lambda: SequenceClassifier(6, 8, 3, skip, **options, rngs=nnx.Rngs(0)))


def embedded(**options):
    given = dict(bidirectional=True, pooling="mean") | options
    return drawn(
        lambda: SequenceClassifier(6, 8, 3, DYNAMIC, embedding=embed(), **given, rngs=nnx.Rngs(0))
    )


def pair(**options):
    return drawn(lambda: SentencePairModel(embed(), 8, 5, DYNAMIC, **options, rngs=nnx.Rngs(0)))


def tagger(skip=DYNAMIC, characters=(), **options):
    given = dict(embedding_features=6, allowed=BIOES) | options
    make = lambda: Tagger(
        6, 9, 5, skip, characters=[of() for of in characters], **given, rngs=nnx.Rngs(0)
    )
    return drawn(make)


def language_model(*skips, **options):
    given = dict(weight_init=nnx.initializers.zeros) | options
    return drawn(lambda: LanguageModel(12, 12, skips or DYNAMIC, **given, rngs=nnx.Rngs(0)))


def ids(tokens):
    """Return words with characters, capitals and columns that depend on the word."""
    places = np.arange(5)
    letters = np.where(places <= tokens[..., None] % 5, 1 + (tokens[..., None] + places) % 8, 0)
    columns = np.stack([tokens % 3, tokens % 4], axis=-1)
    return (TokenIds(*(leaf.astype(np.int32) for leaf in (tokens, letters, tokens % 5, columns))),)


def pairs(tokens):
    sentences = np.broadcast_to(np.arange(tokens.shape[-1]) > 0, tokens.shape).astype(np.int32)
    return (dict(tokens=tokens, sentences=sentences),)


alone = lambda tokens: (tokens,)
CNN = lambda: CharCNN(9, char_features=3, filters=4, dropout=0.3, rngs=nnx.Rngs(0))
AFFIXES = lambda: CharAffixes(9, char_features=2, count=2, rngs=nnx.Rngs(0))
EVERYTHING = dict(capitals=(5, 2), columns=((3, 2), (4, 2)), window=3, dropout=0.4, **RARE)
DEEP = dict(skip=(F.Previous(),) * 3, transition=F.GRU(), depth_skip=F.ToOutput(gated=True))
MODELS = {
    "classifier": (lambda: classifier(num_positions=10, dropout=0.3), alone),
    "attention": (lambda: classifier((F.Attention(3),), pooling="max"), alone),
    "embedded": (lambda: embedded(word_dropout=0.3, **RARE), alone),
    "pair": (lambda: pair(dropout=0.3, word_dropout=0.3), pairs),
    "tagger": (lambda: tagger(characters=(CNN,), **EVERYTHING), ids),
    "softmax": (lambda: tagger(characters=(CNN, AFFIXES), output="softmax", allowed=None), ids),
    "deep": (lambda: tagger(**DEEP), ids),
}


@pytest.mark.parametrize(
    ("name", "training"),
    and_slow(
        itertools.product(MODELS, (False, True)),
        lambda name, training: training and name in ("classifier", "tagger"),
    ),
)
def test_a_padded_row_is_read_as_it_is_alone(name, training):
    """Rows have keys of their own: no other row changes what is dropped or chosen, nor padding."""
    make, inputs = MODELS[name]
    run = compiled(make())
    keys = jax.random.split(KEY, 4)
    padded = run(*inputs(TOKENS), rngs=keys, seq_lengths=LENGTHS, deterministic=not training)
    of_rows = np.asarray(padded[0])
    for row in (1, 2):  # of one length, which is compiled once
        rows = slice(row, row + 1)
        steps = slice(LENGTHS[row])
        expected = run(*inputs(TOKENS[rows, steps]), rngs=keys[rows], deterministic=not training)
        found = of_rows[rows]
        if found.ndim == 3:
            found = found[:, steps]
        np.testing.assert_allclose(found, expected[0], rtol=1e-5, atol=1e-6)
    # Past the end nothing is decided.
    for leaf in jax.tree.leaves(padded.decisions[0]):
        assert not np.asarray(leaf)[np.arange(7) >= LENGTHS[:, None]].any()
    if training:
        assert np.isfinite(rl.agent_loss(padded, np.zeros(4, np.float32)))


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (classifier, dict(dropout=(0.1, 1.0))),
        (tagger, dict(unknown_rate=1.0)),
        (pair, dict(word_dropout=-0.1)),
        (LanguageModelDropout, dict(hidden=1.5)),
    ],
)
def test_rates_are_checked_when_a_model_is_made(make, options):
    with pytest.raises(UserError, match=r"lies in \[0, 1\), got"):
        make(**options)


@pytest.mark.parametrize(("make", "inputs"), [(embedded, alone), (pair, pairs), (tagger, ids)])
@pytest.mark.usefixtures("as_users")
def test_rare_words_are_unknown_ones_in_training_alone(make, inputs):
    """In training, ids from `num_frequent` on are sometimes unknown, with a key for each row."""
    tokens = np.tile(np.arange(1, 6), (40, 4))
    definition, state = nnx.split(make(**RARE))

    def seen(state, key, deterministic):
        asked = []
        model = nnx.merge(definition, state)
        name = {tagger: "words"}.get(make, "embedding")
        size = getattr(model, name).features
        setattr(model, name, lambda ids: asked.append(ids) or jnp.zeros((*ids.shape, size)))
        model(*inputs(tokens), rngs=key, deterministic=deterministic)
        return asked[0]

    seen = jax.jit(seen, static_argnums=2)
    found = np.asarray(seen(state, KEY, False))
    same = np.asarray(seen(state, KEY, True))
    np.testing.assert_array_equal(same, tokens)
    np.testing.assert_array_equal(found[tokens < 3], tokens[tokens < 3])
    assert set(np.unique(found[tokens >= 3])) == {0, 3, 4, 5}
    assert 0.4 < (found[tokens >= 3] == 0).mean() < 0.6
    # All rows are equal, so what differs are their keys.
    assert len({tuple(row) for row in found == 0}) > 20


@pytest.mark.parametrize(("pooling", "backward"), [("last", 2), ("mean", 0), ("max", 0)])
def test_pooling_is_that_of_the_steps_that_count(pooling, backward):
    states = RNG.normal(size=(3, 5, 4)).astype(np.float32)
    where = np.array([[0, 1, 1, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], bool)
    found = np.asarray(compiled(F.pool_states)(states, where, pooling, backward=backward))
    for row in range(2):
        kept = states[row, where[row]]
        # The last state of the forward features, and the first one of the backward features.
        ends = np.concatenate([kept[-1, : 4 - backward], kept[0, 4 - backward :]])
        expected = {"last": ends, "mean": kept.mean(axis=0), "max": kept.max(axis=0)}
        np.testing.assert_allclose(found[row], expected[pooling], rtol=1e-6)
    np.testing.assert_array_equal(found[2], 0)  # a row without a step


def test_a_classifier_that_reads_from_the_end_reads_turned_rows():
    forward, backward = (compiled(classifier(reverse=way)) for way in (False, True))
    expected = forward(TOKENS[:, ::-1], deterministic=True).logits
    np.testing.assert_allclose(backward(TOKENS, deterministic=True).logits, expected, rtol=1e-5)


def test_dropped_words_say_nothing_and_the_others_more():
    inputs = compiled(embedded(word_dropout=0.5)._inputs)
    plain, dropped = (np.asarray(inputs(TOKENS, keys)) for keys in (None, jax.random.split(KEY, 4)))
    factors = dropped / plain
    assert set(np.unique(factors.round(4))) == {0.0, 2.0}
    np.testing.assert_array_equal(factors.min(-1), factors.max(-1))


def test_a_pair_is_the_papers_equations_on_two_sentences_read_apart():
    model = pair(bidirectional=True)
    sentences = (np.array([1, 4, 2]), np.array([3, 0]))
    padding = [2, 2]
    inputs = dict(
        tokens=np.concatenate([*sentences, padding])[None],
        sentences=np.array([[0, 0, 0, 1, 1, 0, 0]]),
    )
    found = compiled(model)(inputs, seq_lengths=np.array([5]), deterministic=True).logits

    # The pooled states: the last step of the forward direction, the first one of the backward.
    pooled = []
    for sentence in sentences:
        x = np.asarray(model.embedding.embedding[...])[sentence[None]]
        h = np.asarray(compiled(model.stack)(x, deterministic=True).h[0])
        pooled.append(np.concatenate([h[-1, :8], h[0, 8:]]).astype(float))
    h_1, h_2 = pooled

    # Eq. 15
    w_x = np.asarray(model.product.kernel[...])
    w_plus = np.asarray(model.difference.kernel[...])
    w_p = np.asarray(model.softmax.kernel[...])
    h_s = (h_1 * h_2) @ w_x + np.abs(h_1 - h_2) @ w_plus + np.asarray(model.product.bias[...])
    expected = np.maximum(h_s, 0) @ w_p + np.asarray(model.softmax.bias[...])
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-6)


def test_sequences_follow_the_scheme():
    emissions = 5 * RNG.normal(size=(50, 7, 9))
    lengths = np.arange(50) % 7 + 1
    params = compiled(tagger().crf_params)()
    tags = jax.jit(F.crf_decode)(params, emissions.astype(np.float32), lengths)
    for row, length in zip(np.asarray(tags), lengths, strict=True):
        assert first_problem([TAGS[i] for i in row[:length]], "BIOES") is None


def test_pretrained_vectors_are_where_it_begins():
    table = np.arange(36, dtype=np.float32).reshape(6, 6)
    how = dict(embedding_features=6, word_init=lambda *_: jnp.asarray(table))
    words = lambda: Tagger(6, 9, 5, DYNAMIC, **how, rngs=nnx.Rngs(0)).words.embedding[...]
    np.testing.assert_array_equal(jax.jit(words)(), table)


REFUSED = {
    "odd": lambda: tagger(window=2),
    "unknown output 'hmm'": lambda: tagger(output="hmm"),
    "a classifier has no return_carry": lambda: compiled(classifier())(TOKENS, return_carry=True),
    "a language model has no reverse": lambda: language_model(reverse=True),
    "unknown copy 'all': choose": lambda: language_model(copy="all"),
    "this tagger draws": lambda: compiled(tagger(unknown_rate=0.5))(*ids(TOKENS)),
    "no distribution": lambda: compiled(language_model(F.Fixed(3), copy="expected"))(TOKENS),
}


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("message", REFUSED)
def test_what_makes_no_model_is_refused(message):
    with pytest.raises(UserError, match=message):
        REFUSED[message]()


def deaf(model):
    """Set the input weights of all layers to 0, and return the model."""
    for cell in model.stack.cells:
        cell.weights.w_x[...] = jax.device_put(np.zeros(cell.weights.w_x.shape, np.float32))
    return model


def test_dropout_is_on_inputs_and_outputs_but_not_on_recurrent_connections():
    def states(model, key):
        carry = model.initialize_carry(4, KEY)
        read = compiled(model)
        for _ in range(2):  # the second segment starts from a state that is not zero
            how = dict(rngs=key, deterministic=key is None, return_carry=True)
            carry, _ = read(TOKENS, initial_carry=carry, **how)
        return [np.asarray(layer.slots.h) for layer in carry]

    hearing = language_model(F.Previous(), F.Fixed(2), dropout=0.5)
    for still, dropped in zip(states(hearing, None), states(hearing, KEY), strict=True):
        assert not np.allclose(still, dropped)
    # Layers that do not hear their inputs have only their recurrent connections.
    for still, dropped in zip(states(deaf(hearing), None), states(hearing, KEY), strict=True):
        assert np.abs(still).max() > 0.1
        np.testing.assert_array_equal(still, dropped)


def test_initializers_reach_their_own_weights():
    constant = nnx.initializers.constant
    skips = (F.Previous(), F.Dynamic(3))
    of_cells = [dict(kernel_init=constant(value)) for value in (1.0, 2.0)]
    how = dict(weight_init=constant(0.5), cell=of_cells)
    model = LanguageModel(12, 12, skips, **how, rngs=nnx.Rngs(0))
    for param in (model.embedding.embedding, model.softmax.kernel, model.softmax.bias):
        np.testing.assert_array_equal(param[...], 0.5)
    for cell, value in zip(model.stack.cells, (1.0, 2.0), strict=True):
        np.testing.assert_array_equal(cell.weights.w_x[...], value)
