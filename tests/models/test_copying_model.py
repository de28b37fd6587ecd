"""A language model that copies: its probabilities, its carry, and whose choice it goes by."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from flax import nnx
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.analysis.reading import distribution, generate
from dynskip_jax.errors import UserError
from dynskip_jax.models import LanguageModel
from dynskip_jax.nn.initializers import uniform

VOCABULARY, K, BATCH, TIME = 9, 4, 3, 12
SKIPS = {
    "by content": F.Dynamic(K, 0.5, agent="content"),
    "by an MLP": F.Dynamic(K, 0.5),
    "attention": F.ContentAttention(K, 0.5),
    "random": F.Random(K, 0.5, rates=(1.0, 2.0, 3.0, 0.0)),
    "mean": F.Mean(K, 0.5),
}
TOKENS = jax.random.randint(jax.random.key(1), (BATCH, TIME), 0, VOCABULARY)


def model(skip, copy):
    return LanguageModel(
        VOCABULARY, 6, (F.Previous(), skip), copy=copy, weight_init=uniform(0.7), rngs=nnx.Rngs(0)
    )


@pytest.mark.parametrize(
    ("copy", "name"),
    and_slow(
        itertools.product(["chosen", "expected"], SKIPS),
        lambda copy, name: (copy == "chosen") == (list(SKIPS).index(name) % 2 == 0),
    ),
)
def test_probabilities_sum_to_one_and_segments_go_on_where_the_last_one_stopped(name, copy):
    trained = model(SKIPS[name], copy)
    trained.eval()
    start = trained.initialize_carry(BATCH, jax.random.key(2))
    read = compiled(trained)
    _, whole = read(TOKENS, initial_carry=start, return_carry=True)
    np.testing.assert_allclose(np.exp(whole.logits).sum(-1), 1, rtol=1e-5)
    of_targets = np.take_along_axis(np.asarray(whole.logits), np.asarray(TOKENS)[..., None], -1)[..., 0]
    np.testing.assert_allclose(whole.log_likelihood(TOKENS), of_targets, rtol=1e-4, atol=1e-5)
    carry, first = read(TOKENS[:, :5], initial_carry=start, return_carry=True)
    _, rest = read(TOKENS[:, 5:], initial_carry=carry, return_carry=True)
    parts = np.concatenate([first.logits, rest.logits], axis=1)
    np.testing.assert_allclose(parts, whole.logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["by content", "by an MLP", "attention"])
def test_what_is_expected_is_the_agents_own_distribution(name):
    trained = model(SKIPS[name], "expected")
    output = compiled(trained)(TOKENS, rngs=jax.random.key(3))
    for row in range(BATCH):
        observation = jax.tree.map(lambda leaf, row=row: leaf[row], output.observations[-1])
        found = distribution(trained.stack.layers[-1].cell, observation)
        np.testing.assert_allclose(output.copies.weights[row], found, rtol=1e-5, atol=1e-6)


def test_what_is_chosen_is_the_word_behind_the_state_that_entered():
    trained = model(SKIPS["by content"], "chosen")
    trained.eval()
    output = compiled(trained)(TOKENS, policy=F.Policy("sample"), rngs=jax.random.key(3))
    for (row, t), k in np.ndenumerate(np.asarray(output.decisions[-1].action)):
        expected = int(TOKENS[row, t - k + 1]) if t - k + 1 >= 0 else F.NO_WORD
        assert int(output.copies.words[row, t, 0]) == expected
    relaxed = compiled(trained)(TOKENS, policy=F.Policy("soft"))
    assert relaxed.copies.words.shape == (BATCH, TIME, K)
    assert relaxed.copies.gates.shape == (BATCH, TIME, 1)


def test_in_training_a_word_that_is_chosen_counts_by_the_mean_over_all_choices():
    trained, targets = model(F.Dynamic(K, 0.0, agent="content"), "chosen"), TOKENS[:, 1:]
    start = trained.initialize_carry(BATCH, jax.random.key(2))
    read = dict(initial_carry=start, rngs=jax.random.key(3))
    output = compiled(trained)(TOKENS[:, :-1], **read)  # λ = 0: no choice changes what follows
    trained.eval()
    chosen, of_each = compiled(trained), []
    for k in range(1, K + 1):
        actions = (None, jnp.full((BATCH, TIME - 1), k))
        of_each.append(chosen(TOKENS[:, :-1], actions=actions, **read).log_likelihood(targets))
    told = chosen(TOKENS[:, :-1], **read).log_likelihood_of_each(targets)
    np.testing.assert_allclose(told, np.stack(of_each, axis=-1), rtol=1e-4, atol=1e-5)
    expected = np.einsum("btk,kbt->bt", output.copies.weights, np.stack(of_each))
    np.testing.assert_allclose(output.log_likelihood(targets), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("copy", "name"),
    and_slow(
        itertools.product(["chosen", "expected"], ["by content", "attention"]),
        lambda copy, name: (copy == "chosen") == (name == "by content"),
    ),
)
def test_a_gradient_reaches_the_agent_through_what_is_copied(name, copy):
    graphdef, params = nnx.split(model(SKIPS[name], copy))

    def loss(params):
        output = nnx.merge(graphdef, params)(TOKENS[:, :-1], policy=F.Policy("greedy"))
        return -output.log_likelihood(TOKENS[:, 1:]).sum()

    gradient = jax.jit(jax.grad(loss))(params)["stack"]["layers"][1]["cell"]["agent"]
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient))


def test_a_restarted_carry_forgets_the_words_too():
    trained = model(SKIPS["by content"], "expected")
    carry, _ = compiled(trained)(TOKENS, rngs=jax.random.key(0), return_carry=True)
    assert (np.asarray(carry.words) == np.asarray(TOKENS[:, -(K - 1) :])).all()
    assert (np.asarray(trained.restart_carry(carry).words) == F.NO_WORD).all()


def test_it_writes_on():
    prompt = jnp.arange(5)
    tokens, _ = generate(model(SKIPS["by content"], "expected"), prompt, 6, jax.random.key(0))
    assert tokens.shape == (6,)


def test_what_copies_needs_a_choice():
    with pytest.raises(UserError, match="no distribution"):
        model(F.Fixed(3), "expected")(TOKENS)


@pytest.mark.parametrize("options", [{"agent": "content"}, {"agent_input": "mean"}], ids=str)
def test_after_a_restart_with_a_carried_first_step_it_copies_by_the_agents_distribution(options):
    trained = model(F.Dynamic(K, 0.5, first_step="carried", **options), "expected")
    trained.eval()
    read = compiled(trained)
    carry, _ = read(TOKENS, initial_carry=trained.initialize_carry(BATCH), return_carry=True)
    output = read(TOKENS, initial_carry=trained.restart_carry(carry))
    weights = np.asarray(output.copies.weights)[:, 1:]
    entropy = -(weights * np.log(weights)).sum(-1)
    np.testing.assert_allclose(entropy, output.decisions[-1].entropy[:, 1:], rtol=1e-4, atol=1e-5)


def test_what_it_draws_needs_a_key():
    trained = model(SKIPS["by content"], "expected")
    with pytest.raises(UserError, match="pass rngs="):
        trained(TOKENS)
    with pytest.raises(UserError, match="PRNGKey makes legacy ones"):
        trained(TOKENS, rngs=jax.random.PRNGKey(0))
    trained(TOKENS, deterministic=True)
