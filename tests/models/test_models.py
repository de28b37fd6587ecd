"""Check task models: padding, shapes, where dropout acts, and which weights an initializer sets."""

import jax
import numpy as np
import pytest
from compiled import compiled, drawn
from flax import nnx
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.data.vocabularies import TokenIds
from dynskip_jax.functional import parse_time_skip
from dynskip_jax.models import LanguageModel, SentencePairModel, SequenceClassifier, Tagger
from dynskip_jax.nn.initializers import uniform

SKIPS = ("lstm", "fixed:2", "attention:3", "dynamic:3")
LENGTHS = np.array([7, 3, 1, 5])
SYMBOLS = np.random.default_rng(0).integers(6, size=(4, 7)).astype(np.int32)
KEY = jax.random.key(1)


def classifier_of(model, **options):
    return drawn(lambda: SequenceClassifier(6, 8, 3, [parse_time_skip(model)], rngs=nnx.Rngs(0), **options))


def constructed(*names, **options):
    skips = [parse_time_skip(name) for name in names]
    options = dict(weight_init=uniform(0.5)) | options
    return LanguageModel(12, 12, skips, **options, rngs=nnx.Rngs(0))


def language_model_of(*names, **options):
    return drawn(lambda: constructed(*names, **options))


@pytest.mark.parametrize("mode", and_slow(["greedy", "sample"], lambda mode: mode == "sample"))
@pytest.mark.parametrize("model", and_slow(SKIPS, lambda model: model[0] in "ad"))
def test_classifier_does_not_see_the_padding(model, mode):
    classifier = compiled(classifier_of(model))
    lengths = LENGTHS
    other = np.where(np.arange(7) < LENGTHS[:, None], SYMBOLS, 5 - SYMBOLS)
    assert (other != SYMBOLS).any()
    one, two = (classifier(x, rngs=KEY, seq_lengths=lengths, policy=F.Policy(mode)) for x in (SYMBOLS, other))
    np.testing.assert_array_equal(one.logits, two.logits)
    # Decisions past the end of a sequence are zeros.
    for leaf in jax.tree.leaves(one.decisions[0]):
        assert not np.asarray(leaf)[np.arange(7) >= LENGTHS[:, None]].any()


@pytest.mark.parametrize("model", and_slow(SKIPS, lambda model: model[0] in "ad"))
def test_padded_sequence_is_classified_as_it_is_alone(model):
    classifier = compiled(classifier_of(model))
    padded = classifier(SYMBOLS, seq_lengths=LENGTHS, deterministic=True).logits
    for row, length in enumerate(LENGTHS[:3]):
        alone = classifier(SYMBOLS[row : row + 1, :length], deterministic=True).logits
        np.testing.assert_allclose(np.asarray(padded)[row], np.asarray(alone)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", and_slow(SKIPS, lambda model: model[0] == "d"))
def test_language_model_returns_one_distribution_per_position(model):
    language_model = language_model_of("lstm", model)
    carry = language_model.initialize_carry(4, KEY)
    new, output = compiled(language_model)(SYMBOLS, initial_carry=carry, return_carry=True)
    assert output.logits.shape == (4, 7, 12)
    assert [decision.action.shape for decision in output.decisions] == [(4, 7), (4, 7)]
    assert jax.tree.structure(new) == jax.tree.structure(carry)
    assert [leaf.shape for leaf in jax.tree.leaves(new)] == [leaf.shape for leaf in jax.tree.leaves(carry)]
    assert all((np.asarray(layer.step) == 7).all() for layer in new)


def models_on_tokens():
    """Return each model as a function of (*batch, 7) tokens, lengths and keys, in evaluation and training."""
    how = dict(skip=[F.Dynamic(3)], dropout=0.3)

    def pair():
        return SentencePairModel(nnx.Embed(6, 4, rngs=nnx.Rngs(1)), 8, 3, **how, rngs=nnx.Rngs(0))

    def tagger():
        return Tagger(6, 5, 8, embedding_features=4, **how, rngs=nnx.Rngs(0))

    ids = lambda x: TokenIds(x, np.zeros((*x.shape, 2), np.int32), 0 * x, np.zeros((*x.shape, 0), np.int32))
    sentences = lambda x: np.broadcast_to(np.arange(7) > 0, x.shape).astype(np.int32)
    return {
        "classifier": (classifier_of("dynamic:3", dropout=0.3), lambda x: (x,)),
        "pair": (drawn(pair), lambda x: (x, sentences(x))),
        "tagger": (drawn(tagger), lambda x: (ids(x),)),
        "language model": (language_model_of("dynamic:3", dropout=0.3), lambda x: (x,)),
    }


@pytest.mark.parametrize("name", ["classifier", "pair", "tagger", "language model"])
@pytest.mark.parametrize("shape", [(2, 2), ()], ids=str)
def test_rollouts_may_be_a_leading_batch_axis(name, shape):
    """Several batch axes, or none, give what the rows give in one axis, with the same keys."""
    model, inputs = models_on_tokens()[name]
    count = int(np.prod(shape))
    tokens, keys = SYMBOLS[:count], jax.random.split(KEY, count)
    lengths = {} if name == "language model" else {"seq_lengths": LENGTHS[:count]}
    flat = compiled(model)(*inputs(tokens), rngs=keys, **lengths)
    turn = lambda leaf: leaf.reshape((*shape, *leaf.shape[1:]))
    given = {key: turn(value) for key, value in lengths.items()}
    found = compiled(model)(*inputs(turn(tokens)), rngs=turn(keys), **given)
    for a, b in zip(found[:1] + found[-2:], flat[:1] + flat[-2:], strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, turn(b)), a, b)
    assert found.decisions[0].action.shape == (*shape, 7)
    if shape:
        assert np.isfinite(found.agent_loss(np.zeros(shape, np.float32)))


def test_language_model_reads_no_later_token():
    language_model = compiled(language_model_of("lstm", "dynamic:3"))
    changed = SYMBOLS.copy()
    changed[:, 4:] = 11 - changed[:, 4:]
    one, two = (np.asarray(language_model(x, rngs=KEY).logits) for x in (SYMBOLS, changed))
    np.testing.assert_array_equal(one[:, :4], two[:, :4])
    assert not np.allclose(one[:, 4:], two[:, 4:])


def without_inputs(language_model):
    """Set input weights to 0, and draw biases and recurrent weights, in all layers; return the model."""
    for cell in language_model.stack.cells:
        rng = np.random.default_rng(2)
        for name in ("w_x", "b", "w_h"):
            weight = getattr(cell.weights, name)
            numbers = rng.normal(size=weight.shape).astype(np.float32)
            weight[...] = jax.device_put(0 * numbers if name == "w_x" else numbers)
    return language_model


def test_dropout_is_on_inputs_and_outputs_but_not_on_recurrent_connections():
    tokens = SYMBOLS

    def states(language_model, key):
        carry, read = language_model.initialize_carry(4, KEY), compiled(language_model)
        for _ in range(2):  # the second segment starts from a state that is not zero
            carry, _ = read(
                tokens, initial_carry=carry, rngs=key, deterministic=key is None, return_carry=True
            )
        return [np.asarray(layer.slots.h) for layer in carry]

    for names in (("lstm", "fixed:2"),):
        deaf = without_inputs(language_model_of(*names, dropout=0.5))
        for still, dropped in zip(states(deaf, None), states(deaf, jax.random.key(4)), strict=True):
            assert np.abs(still).max() > 0.1
            np.testing.assert_array_equal(still, dropped)
        hearing = language_model_of(*names, dropout=0.5)
        pairs = zip(states(hearing, None), states(hearing, jax.random.key(4)), strict=True)
        assert all(not np.allclose(still, dropped) for still, dropped in pairs)


def test_dropped_outputs_are_zero_and_the_others_scaled_up():
    # With the identity as softmax layer, the logits are the top layer's h after dropout.
    rate, features = 0.25, 12
    language_model = without_inputs(language_model_of("lstm", dropout=rate))
    language_model.softmax.kernel[...] = jax.device_put(np.eye(features, dtype=np.float32))
    language_model.softmax.bias[...] = jax.device_put(np.zeros(features, np.float32))
    tokens = np.zeros((20, 30), np.int32)
    h, dropped = (
        np.asarray(compiled(language_model)(tokens, rngs=KEY, deterministic=still).logits)
        for still in (True, False)
    )
    gone = dropped == 0
    np.testing.assert_allclose(dropped[~gone], h[~gone] / (1 - rate), rtol=1e-5)
    # The fraction of 7,200 independent draws has the standard deviation 0.005.
    assert abs(gone.mean() - rate) < 0.03


@pytest.mark.parametrize("scale", [0.1, 0.05])
def test_uniform_initializer_stays_in_its_bounds_and_fills_them(scale):
    values = np.asarray(uniform(scale)(jax.random.key(0), (100, 100)))
    assert values.min() >= -scale and values.max() <= scale
    # A uniform variable on (-s, s) has the variance s² / 3.
    np.testing.assert_allclose(values.std(), scale / np.sqrt(3), rtol=0.03)
    assert abs(values.mean()) < 0.03 * scale


def test_language_models_initializers_reach_their_own_weights():
    def constant(value):
        return nnx.initializers.constant(value)

    language_model = constructed(
        "lstm",
        "dynamic:3",
        weight_init=constant(0.5),
        cell=[
            {
                "kernel_init": constant(1.0),
                "recurrent_kernel_init": constant(2.0),
                "bias_init": constant(3.0),
            },
            {"kernel_init": constant(4.0), "agent_init": F.Initializers(constant(5.0)), "forget_bias": 6.0},
        ],
    )
    bottom, top = language_model.stack.cells
    for param, value in (
        (language_model.embedding.embedding, 0.5),
        (language_model.softmax.kernel, 0.5),
        (language_model.softmax.bias, 0.5),
        (bottom.weights.w_x, 1.0),
        (bottom.weights.w_h, 2.0),
        (bottom.weights.b, 3.0),
        (top.weights.w_x, 4.0),
        (top.agent.w_h, 5.0),
        (top.agent.w_out, 5.0),
    ):
        np.testing.assert_array_equal(param[...], value)
    # Gates are g, i, f, o, so the third quarter is the forget gate's.
    np.testing.assert_array_equal(top.weights.b[...], np.repeat([0.0, 0.0, 6.0, 0.0], 12))
