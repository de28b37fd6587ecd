"""Check the tagger: padding, lengths of 1, unknown words, dropout by row, and the rules of a scheme."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from flax import nnx
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.data.tag_schemes import allowed_transitions, first_problem
from dynskip_jax.data.vocabularies import TokenIds
from dynskip_jax.errors import UserError
from dynskip_jax.models import Tagger
from dynskip_jax.nn import CharAffixes, CharCNN, CharLSTM

TAGS = ("O", "B-X", "I-X", "E-X", "S-X", "B-Y", "I-Y", "E-Y", "S-Y")
BIOES = allowed_transitions(TAGS, "BIOES")
LENGTHS = np.array([7, 1, 4, 1])
RNG = np.random.default_rng(0)
TOKENS = TokenIds(
    RNG.integers(12, size=(4, 7)).astype(np.int32),
    np.where(np.arange(5) < RNG.integers(1, 6, (4, 7, 1)), RNG.integers(1, 9, (4, 7, 5)), 0).astype(np.int32),
    RNG.integers(5, size=(4, 7)).astype(np.int32),
    RNG.integers(3, size=(4, 7, 2)).astype(np.int32),
)
KEYS = jax.random.split(jax.random.key(3), 4)
EVERYTHING = dict(
    capitals=(5, 2),
    columns=((3, 2), (4, 2)),
    window=3,
    dropout=0.4,
    unknown_rate=0.5,
    num_frequent=4,
)


def make(*skips, **options):
    return drawn(lambda: constructed(*skips, **options))


def constructed(*skips, characters=("cnn",), **options):
    rngs = nnx.Rngs(0)
    kinds = {
        "cnn": lambda: CharCNN(9, char_features=3, filters=4, dropout=0.3, rngs=rngs),
        "lstm": lambda: CharLSTM(9, char_features=3, features=4, rngs=rngs),
        "affixes": lambda: CharAffixes(9, char_features=2, count=2, rngs=rngs),
    }
    skips = [F.parse_time_skip(name) for name in skips or ("lstm",)]
    options = dict(embedding_features=6, allowed=BIOES) | options
    characters = [kinds[name]() for name in characters]
    return Tagger(12, len(TAGS), 5, skips, characters=characters, **options, rngs=rngs)


def wider(tokens, time=3, length=2):
    """Return `tokens` with more padding: arbitrary ids in sentences, and zeros in words."""
    rows = ((0, 0), (0, time))
    return TokenIds(
        np.pad(tokens.words, rows, constant_values=11),
        np.pad(np.pad(tokens.characters, (*rows, (0, 0)), constant_values=8), ((0, 0),) * 2 + ((0, length),)),
        np.pad(tokens.capitals, rows, constant_values=4),
        np.pad(tokens.columns, (*rows, (0, 0)), constant_values=2),
    )


MODELS = {
    "everything": lambda: make("dynamic:3", **EVERYTHING),
    "softmax": lambda: make("attention:3", output="softmax", allowed=None, characters=("lstm", "affixes")),
    "deep": lambda: make(*["lstm"] * 3, transition=F.GRU(), depth_skip=F.ToOutput(gated=True), characters=()),
}


def read(model, tokens, lengths, keys, deterministic):
    return compiled(model)(tokens, seq_lengths=lengths, rngs=keys, deterministic=deterministic)


@pytest.mark.parametrize(
    ("name", "training"),
    and_slow(
        itertools.product(MODELS, (False, True)),
        lambda name, training: (name, training) == ("everything", False),
    ),
)
def test_padding_changes_nothing(name, training):
    model = MODELS[name]()
    # Dropout of characters depends on the padded length of words, so that stays the same in training.
    more = wider(TOKENS, length=0 if training else 2)
    one, two = (read(model, tokens, LENGTHS, KEYS, not training) for tokens in (TOKENS, more))
    assert one.emissions.shape == (4, 7, 9) and two.emissions.shape == (4, 10, 9)
    for row, length in enumerate(LENGTHS):
        a, b = (np.asarray(out.emissions)[row, :length] for out in (one, two))
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_padding_changes_no_likelihood_and_no_decoded_tags():
    model = make(characters=())
    one, two = (read(model, tokens, LENGTHS, KEYS, True) for tokens in (TOKENS, wider(TOKENS)))
    tags = np.where(np.arange(7) < LENGTHS[:, None], 0, 3)
    longer = np.pad(tags, ((0, 0), (0, 3)), constant_values=5)

    @jax.jit
    def of_crf(out, true):
        lengths = jnp.asarray(LENGTHS)
        likelihood = F.crf_log_likelihood(out.crf, out.emissions, true, lengths)
        return likelihood, F.crf_decode(out.crf, out.emissions, lengths)

    likelihoods, decoded = zip(of_crf(one, tags), of_crf(two, longer), strict=True)
    np.testing.assert_allclose(*likelihoods, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(decoded[0], np.asarray(decoded[1])[:, :7])


def test_sequences_follow_the_scheme():
    emissions, lengths = 5 * np.random.default_rng(0).normal(size=(50, 7, 9)), np.arange(50) % 7 + 1
    crf = compiled(make(characters=()).crf_params)()
    tags = jax.jit(F.crf_decode)(crf, emissions.astype(np.float32), lengths)
    for row, length in zip(np.asarray(tags), lengths, strict=True):
        assert first_problem([TAGS[i] for i in row[:length]], "BIOES") is None


def test_rare_words_are_sometimes_unknown_in_training_alone():
    model = make(characters=(), unknown_rate=0.5, num_frequent=6)
    many = TokenIds(*(np.tile(leaf, (20,) + (1,) * (leaf.ndim - 1)) for leaf in TOKENS))

    definition, state = nnx.split(model)

    def seen(words, deterministic):
        """Return the ids that the word table looks up."""
        asked, model = [], nnx.merge(definition, state)
        model.words = lambda ids: asked.append(ids) or jnp.zeros((*ids.shape, 6))
        model(many._replace(words=words), rngs=jax.random.key(0), deterministic=deterministic)
        return asked[0]

    before = many.words
    trained, evaluated = (
        np.asarray(jax.jit(seen, static_argnums=1)(before, still)) for still in (False, True)
    )
    np.testing.assert_array_equal(evaluated, before)
    np.testing.assert_array_equal(trained[before < 6], before[before < 6])
    forgotten = trained[before >= 6] == 0
    assert set(trained[before >= 6][~forgotten]) <= set(range(6, 12))
    assert abs(forgotten.mean() - 0.5) < 4 * (0.25 / forgotten.size) ** 0.5


def test_pretrained_vectors_are_where_it_begins():
    table = np.arange(72, dtype=np.float32).reshape(12, 6)
    make_words = lambda: constructed(word_init=lambda *_: jnp.asarray(table)).words.embedding[...]
    np.testing.assert_array_equal(jax.jit(make_words)(), table)


def test_what_makes_no_sense_is_said():
    with pytest.raises(UserError, match="odd"):
        make(window=2)
    with pytest.raises(UserError, match=r"\[0, 1\)"):
        make(unknown_rate=1.0)
    with pytest.raises(UserError, match=r"dropout .*lies in \[0, 1\)"):
        make(dropout=(0.1, 1.0))
    with pytest.raises(UserError, match="rngs="):
        compiled(make())(TOKENS)
