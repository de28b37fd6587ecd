"""Check language models, with and without copying: probabilities, carries and choices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.analysis.reading import distribution
from dynskip_jax.models import LanguageModel

VOCABULARY = 9
K = 4
BATCH = 3
TIME = 12
SKIPS = {
    "by content": F.Dynamic(K, 0.5, agent="content"),
    "by an MLP": F.Dynamic(K, 0.5),
    "by what followed": F.Dynamic(K, 0.5, agent="content", agent_keys="followed"),
}
TOKENS = np.random.default_rng(1).integers(VOCABULARY, size=(BATCH, TIME)).astype(np.int32)
KEY = jax.random.key(3)


def model(skip, copy, *, training=True, **options):
    options |= dict(copy=copy, weight_init=nnx.initializers.zeros)
    make = lambda: LanguageModel(VOCABULARY, 6, (F.Previous(), skip), **options, rngs=nnx.Rngs(0))
    made = drawn(make, scale=0.3)
    if not training:
        made.eval()
    return made


@pytest.mark.parametrize(
    ("copy", "name"),
    [("none", "by an MLP"), ("chosen", "by content"), ("expected", "by what followed")],
)
def test_probabilities_sum_to_one_and_segments_go_on_where_the_last_one_stopped(name, copy):
    trained = model(SKIPS[name], copy, training=False)
    start = trained.initialize_carry(BATCH, jax.random.key(2))
    read = compiled(trained)
    end, whole = read(TOKENS, initial_carry=start, return_carry=True)
    assert jax.tree.map(jnp.shape, end) == jax.tree.map(jnp.shape, start)

    # Probabilities sum to 1, and the likelihood of targets is theirs.
    logits = np.asarray(whole.logits)
    if copy == "none":  # the others are normalised
        logits = np.asarray(jax.nn.log_softmax(logits))
    np.testing.assert_allclose(np.exp(logits).sum(-1), 1, rtol=1e-5)
    of_targets = np.take_along_axis(logits, TOKENS[..., None], -1)[..., 0]
    log_likelihood = jax.jit(lambda output: output.log_likelihood(jnp.asarray(TOKENS)))
    np.testing.assert_allclose(log_likelihood(whole), of_targets, rtol=1e-4, atol=1e-5)

    # Two segments give what one gives.
    half = TIME // 2
    carry, first = read(TOKENS[:, :half], initial_carry=start, return_carry=True)
    rest = read(TOKENS[:, half:], initial_carry=carry)
    parts = np.concatenate([first.logits, rest.logits], axis=1)
    np.testing.assert_allclose(parts, whole.logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("copy", "name"), [("chosen", "by what followed"), ("expected", "by content")]
)
def test_nothing_reaches_from_one_document_into_another(name, copy):
    """A stream of documents, cut anywhere, gives what each document gives when it is read alone."""
    documents = [[0, 3, 1, 3, 1], [0, 5], [0, 3, 2, 3, 1], [0, 4]]
    trained = model(SKIPS[name], copy, training=False, restart_token=0)
    read = compiled(trained)
    alone = [np.asarray(read(np.array([each], np.int32)).logits)[0] for each in documents]
    stream = np.concatenate([np.array(each, np.int32) for each in documents])[None]
    for cuts in ([], [2, 7]):  # inside a document, and between two
        carry = trained.initialize_carry(1)
        found = []
        for part in np.split(stream, cuts, axis=1):
            carry, output = read(part, initial_carry=carry, return_carry=True)
            found.append(np.asarray(output.logits)[0])
        found = np.concatenate(found)
        np.testing.assert_allclose(found, np.concatenate(alone), rtol=1e-4, atol=1e-5)


def test_what_is_expected_is_the_agents_own_distribution():
    trained = model(SKIPS["by content"], "expected")
    output = compiled(trained)(TOKENS, rngs=KEY)
    own = jax.jit(lambda observation: distribution(trained.stack.cells[-1], observation))
    observations = jax.tree.map(np.asarray, output.observations[-1])
    for row, weights in enumerate(output.copies.weights):
        observation = jax.tree.map(lambda leaf, row=row: leaf[row], observations)
        np.testing.assert_allclose(weights, own(observation), rtol=1e-5, atol=1e-6)


def test_the_temperature_of_a_policy_divides_the_logits_of_what_is_copied():
    """Regression: copies had the probabilities of τ = 1."""
    read = compiled(model(SKIPS["by content"], "expected", training=False))
    weights = []
    for temperature in (1.0, 2.0):
        # Greedy choices, and so the states, are those of any temperature.
        output = read(TOKENS, policy=F.Policy("greedy", temperature=temperature))
        weights.append(np.asarray(output.copies.weights, float))
    roots = np.sqrt(weights[0])
    np.testing.assert_allclose(weights[1], roots / roots.sum(axis=-1, keepdims=True), rtol=1e-4)


def test_the_mask_of_the_last_layer_says_what_is_copied():
    read = compiled(model(SKIPS["by content"], "expected", training=False))
    mask = np.arange(K) < 2
    one = read(TOKENS, policy=F.Policy("greedy", mask=mask))
    each = read(TOKENS, policy=F.Policy("greedy", mask=(np.ones(1, bool), mask)))
    np.testing.assert_array_equal(one.copies.weights, each.copies.weights)


def test_what_is_chosen_is_the_word_behind_the_state_that_entered():
    read = compiled(model(SKIPS["by content"], "chosen", training=False))
    output = read(TOKENS, policy=F.Policy("sample"), rngs=KEY)
    copied = np.asarray(output.copies.words)
    for (row, t), k in np.ndenumerate(np.asarray(output.decisions[-1].action)):
        expected = F.NO_WORD
        if t - k + 1 >= 0:
            expected = TOKENS[row, t - k + 1]
        assert int(copied[row, t, 0]) == expected
    relaxed = read(TOKENS, policy=F.Policy("soft")).copies
    assert relaxed.words.shape == (BATCH, TIME, K) and relaxed.gates.shape == (BATCH, TIME, 1)


def test_in_training_a_word_that_is_chosen_counts_by_the_mean_over_all_choices():
    trained = model(F.Dynamic(K, 0.0, agent="content"), "chosen")
    targets = jax.device_put(TOKENS[:, 1:])
    how = dict(initial_carry=trained.initialize_carry(BATCH, jax.random.key(2)), rngs=KEY)
    output = compiled(trained)(TOKENS[:, :-1], **how)  # λ = 0: choices do not change states
    trained.eval()
    read = compiled(trained)
    log_likelihood = jax.jit(lambda output: output.log_likelihood(targets))

    # The likelihood if each of the K choices is replayed at all steps.
    of_each = []
    for k in range(1, K + 1):
        actions = (None, np.full((BATCH, TIME - 1), k))
        of_each.append(log_likelihood(read(TOKENS[:, :-1], actions=actions, **how)))
    chosen = read(TOKENS[:, :-1], **how)
    found = jax.jit(lambda output: output.log_likelihood_of_each(targets))(chosen)
    np.testing.assert_allclose(found, np.stack(of_each, axis=-1), rtol=1e-4, atol=1e-5)
    expected = np.einsum("btk,kbt->bt", output.copies.weights, np.stack(of_each))
    np.testing.assert_allclose(log_likelihood(output), expected, rtol=1e-4, atol=1e-5)


def test_a_gradient_reaches_the_agent_through_what_is_copied():
    graphdef, params = nnx.split(model(SKIPS["by content"], "chosen"))

    def loss(params):
        tokens = jnp.asarray(TOKENS)
        output = nnx.merge(graphdef, params)(tokens[:, :-1], policy=F.Policy("greedy"))
        return -output.log_likelihood(tokens[:, 1:]).sum()

    gradient = jax.jit(jax.grad(loss))(params)["stack"]["cells"][1]["agent"]
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient))


def test_after_a_restart_it_has_forgotten_the_words_and_copies_by_the_agents_distribution():
    skip = F.Dynamic(K, 0.5, first_step="carried", agent="content")
    trained = model(skip, "expected", training=False)
    read = compiled(trained)
    carry, _ = read(TOKENS, initial_carry=trained.initialize_carry(BATCH), return_carry=True)
    assert (np.asarray(carry.words) == TOKENS[:, -(K - 1) :]).all()
    restarted = compiled(trained.restart_carry)(carry)
    assert (np.asarray(restarted.words) == F.NO_WORD).all()
    output = read(TOKENS, initial_carry=restarted)
    weights = np.asarray(output.copies.weights)[:, 1:]
    entropy = -(weights * np.log(weights)).sum(-1)
    np.testing.assert_allclose(
        entropy, np.asarray(output.decisions[-1].entropy)[:, 1:], rtol=1e-4, atol=1e-5
    )
