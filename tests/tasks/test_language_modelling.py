"""Check language modelling: perplexity against one long forward pass, carried state, dropout, sizes."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from flax import nnx
from learners import drawn_params, language_modelling, one_seed, scheduled_of

from dynskip_jax import functional as F
from dynskip_jax.data import LanguageCorpus, Vocabulary, make_corpus
from dynskip_jax.data.vocabularies import character_table
from dynskip_jax.errors import UserError
from dynskip_jax.models import LanguageModelDropout
from dynskip_jax.nn import CharEmbedding
from dynskip_jax.nn.initializers import uniform
from dynskip_jax.tasks.language import CachedLanguageModelling, CacheGrid
from dynskip_jax.training.agent_settings import AgentSettings

WORDS = list("abcdefghijk")


def corpus_of(train=60, dev=37, test=23):
    """Return a corpus of random text; the sizes are numbers of tokens, of which the last is a line end."""
    rng = np.random.default_rng(0)
    lines = {}
    for split, size in (("train", train), ("dev", dev), ("test", test)):
        tokens = rng.choice(WORDS, size - 1)
        tokens[4::9] = "\n"
        lines[split] = " ".join(tokens).split("\n")
    corpus = make_corpus("letters", lines, "here")
    assert [corpus.sizes[split] for split in lines] == [train, dev, test]
    return corpus


def learner_of(skip="dynamic:3", corpus=None, *, seeds=(0,), cell=None, task=None, model=None, **options):
    """Return a learner of models in which the past matters."""
    defaults = dict(skips=("lstm", skip), features=8, batch_size=3, num_steps=5, init_scale=0.8)
    cell = {"kernel_init": uniform(1.5)} | (cell or {})
    return language_modelling(
        corpus or corpus_of(), seeds, cell=cell, task=task, model=model, **defaults | options
    )


@cache
def usual(skip="dynamic:3", num_seeds=1):
    """Return a learner of one-layer models, and the parameters of each model."""
    learner = learner_of(skips=(skip,), seeds=tuple(range(num_seeds)))
    return learner, [drawn_params(learner, seed) for seed in range(num_seeds)]


def both_of(params):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)


def loss_of(learner, params, batch, carry=None, key=1):
    """Compute the loss of a segment, compiled; return it with its auxiliary results."""
    carry = learner.initial_carry(params, jax.random.key(3)) if carry is None else carry
    keys = jax.random.key(key) if isinstance(key, int) else key
    return jax.jit(learner.loss)(params, carry, batch, keys, scheduled_of(learner))


def nll_of(logits, targets):
    """Compute -log softmax at `targets` in float64; the result and `targets` are (..., time)."""
    logits = np.asarray(logits, float)
    total = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    return total - np.take_along_axis(logits, np.asarray(targets)[..., None], axis=-1)[..., 0]


def long_pass_of(learner):
    """Return a function (params, inputs, targets) -> -log p of each token of one stream.

    It reads the stream in one call without a mask.
    """

    @jax.jit
    def logits_of(params, inputs):
        return learner.model(params)(inputs[None], policy=F.Policy("greedy")).logits[0]

    def nll(params, inputs, targets):
        return nll_of(logits_of(params, jnp.asarray(inputs, jnp.int32)), targets)

    return nll


def stream_of(learner, split):
    """Return the inputs and targets of a whole split: each input is the previous token, the first <eos>."""
    corpus = learner.task.corpus
    tokens = getattr(corpus, split)
    return np.concatenate([[corpus.vocabulary.index["<eos>"]], tokens[:-1]]), tokens


def train_batches(learner):
    """Return the training batches of the first epoch as JAX arrays, as the compiled step receives them."""
    return [jax.tree.map(jnp.asarray, batch) for batch in learner.train_batches(0)]


KEYS = jax.random.split(jax.random.key(5), 1)
TWO_KEYS = jax.random.split(jax.random.key(5), 2)


@pytest.mark.parametrize(
    ("batch_size", "num_steps"),
    [
        (50, 3),
        *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((2, 5), (4, 150), (5, 7))),
    ],
)
def test_perplexity_of_several_streams_counts_every_token_once(batch_size, num_steps, monkeypatch):
    # The 37 tokens never fill the rows exactly. With 50 rows, some rows have no tokens.
    learner = learner_of(skips=("dynamic:3",), corpus=corpus_of(train=600), num_steps=num_steps)
    params = drawn_params(learner)
    counted = []
    summarise = learner.summarise
    monkeypatch.setattr(
        learner, "summarise", lambda sums, task: counted.append(sums["nll"].count) or summarise(sums, task)
    )
    found = learner.evaluate(one_seed(params), "dev", KEYS, batch_size=batch_size)

    inputs, targets = stream_of(learner, "dev")
    length = -(-len(targets) // batch_size)
    long_pass = long_pass_of(learner)
    nll = np.concatenate(
        [
            long_pass(params, inputs[start : start + length], targets[start : start + length])
            for start in range(0, len(targets), length)
        ]
    )
    assert len(nll) == 37
    assert np.ravel(counted).tolist() == [37]
    np.testing.assert_allclose(found["dev_perplexity"], [np.exp(nll.mean())], rtol=1e-4)


def test_one_stream_does_not_depend_on_where_it_is_cut():
    corpus = corpus_of(train=1200, dev=1003)
    found = []
    for num_steps in (5, 1100):  # segments of 400 and of 1,100 steps
        learner = learner_of(corpus=corpus, skips=("dynamic:3",), num_steps=num_steps, batch_size=1)
        params = one_seed(drawn_params(learner))
        found.append(learner.evaluate(params, "dev", KEYS, batch_size=1))
    for other in found[1:]:
        for name, value in found[0].items():
            np.testing.assert_allclose(other[name], value, rtol=1e-5, err_msg=name)


def test_training_segments_carry_the_state_on():
    # The 60 tokens form 3 rows of 20, cut into 4 segments. Choices are sampled with the carry's keys.
    learner, (params,) = usual()
    assert learner.num_batches == 4
    carry = start = learner.initial_carry(params, jax.random.key(3))
    loss = jax.jit(learner.loss)
    total, tokens = 0.0, 0
    for number, batch in enumerate(train_batches(learner)):
        _, (carry, sums) = loss(params, carry, batch, jax.random.key(number), scheduled_of(learner))
        total, tokens = total + float(sums["nll"].total), tokens + int(sums["nll"].count)
    inputs, targets = (leaf.reshape(3, 20) for leaf in stream_of(learner, "train"))
    output = compiled(learner.model(params))(jnp.asarray(inputs, jnp.int32), initial_carry=start[0])
    assert tokens == 60
    np.testing.assert_allclose(total, nll_of(output.logits, targets).sum(), rtol=1e-4)


def second_segment(learner, params, *forgets):
    """Return losses of the second training segment, one for each of `forgets`, applied to the first carry."""
    first, second, *_ = train_batches(learner)
    loss, scheduled, key = jax.jit(learner.loss), scheduled_of(learner), jax.random.key(4)
    _, (carry, _) = loss(params, learner.initial_carry(params, jax.random.key(3)), first, key, scheduled)
    return [float(loss(params, forget(carry), second, key, scheduled)[0]) for forget in forgets]


def keep_newest(carry):
    def zero_older(slots):
        slots = np.array(slots)
        slots[:, 1:] = 0
        return jnp.asarray(slots)

    layers, average = carry
    layers = tuple(layer._replace(slots=jax.tree.map(zero_older, layer.slots)) for layer in layers)
    return layers, average


def test_restarted_buffer_keeps_the_newest_state_alone():
    restarting, plain = (learner_of("fixed:3", task={"restart_buffer": again}) for again in (True, False))
    params = drawn_params(plain)

    def keep(carry):
        return carry

    def nothing(carry):
        return plain.initial_carry(params, jax.random.key(3))

    kept, forgotten, lost = second_segment(plain, params, keep, keep_newest, nothing)
    (restarted,) = second_segment(restarting, params, keep)
    assert abs(kept - forgotten) > 1e-3
    assert restarted == pytest.approx(forgotten, rel=1e-6)
    # The newest state survives: with nothing carried over, the loss differs.
    assert abs(restarted - lost) > 1e-4


def test_evaluation_samples_only_if_asked_and_with_the_given_keys():
    learner, (params,) = usual()
    other = jax.random.split(jax.random.key(6), 1)

    def perplexity(keys, **options):
        return float(learner.evaluate(one_seed(params), "dev", keys, **options)["dev_perplexity"][0])

    assert perplexity(KEYS) == perplexity(other) == perplexity(KEYS, mode="greedy")
    sampled = perplexity(KEYS, mode="sample")
    assert sampled == perplexity(KEYS, mode="sample") != perplexity(other, mode="sample")


def test_loss_is_summed_over_the_segment_and_averaged_over_streams():
    learner = learner_of("lstm")
    batch = train_batches(learner)[0]
    loss, (_, sums) = loss_of(learner, drawn_params(learner), batch)
    assert batch.inputs.shape == (3, 5)
    np.testing.assert_allclose(loss, sums["nll"].total / 3, rtol=1e-6)


@pytest.mark.slow
def test_rollouts_of_a_stream_are_streams_of_their_own():
    # Three rollouts of each of 3 streams equal 9 streams in which each text is read three times.
    objective = AgentSettings(rollouts=3, baseline="rollouts", discount=0.5, entropy_coef=0.0)
    learner = learner_of(objective=objective, model={"dropout": 0.4})
    params = drawn_params(learner)
    carry = learner.initial_carry(params, jax.random.key(3))
    assert carry[0][1].slots.h.shape[0] == 9
    batch = train_batches(learner)[0]
    keys = jax.random.split(jax.random.key(1), 3)
    scheduled = scheduled_of(learner)
    gradient = jax.jit(jax.value_and_grad(learner.loss, has_aux=True))
    (_, (end, sums)), actual = gradient(params, carry, batch, keys, scheduled)
    assert sums["nll"].count == 9 * 5 and end[0][1].slots.h.shape[0] == 9

    model = learner.model(params)
    tokens, targets = (np.repeat(leaf, 3, axis=0) for leaf in (batch.inputs, batch.targets))
    output = compiled(model)(jnp.asarray(tokens), initial_carry=carry[0], rngs=jnp.repeat(keys, 3))
    nll = nll_of(output.logits, targets)
    np.testing.assert_allclose(sums["nll"].total, nll.sum(), rtol=1e-5)
    chosen = output.decisions[1].action.tolist()
    assert any(len(set(map(tuple, chosen[i : i + 3]))) > 1 for i in (0, 3, 6))  # rollouts choose separately

    # Eq. 4 to 6, with the mean return of the other two rollouts as the baseline, position by position.
    returns = np.zeros((9, 5))
    for t in reversed(range(5)):
        returns[:, t] = -nll[:, t] + (0.5 * returns[:, t + 1] if t < 4 else 0)
    others = np.stack([returns[i // 3 * 3 : i // 3 * 3 + 3].sum(axis=0) - returns[i] for i in range(9)]) / 2

    def both(params):
        output = learner.model(params)(jnp.asarray(tokens), initial_carry=carry[0], rngs=jnp.repeat(keys, 3))
        picked = jnp.take_along_axis(jax.nn.log_softmax(output.logits), jnp.asarray(targets)[..., None], -1)
        weighed = output.decisions[1].log_prob * jnp.asarray(returns - others)
        return (-picked.sum() - weighed.sum()) / 9

    expected = jax.jit(jax.grad(both))(params)
    for found, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_averaged_predictions_are_means_of_probabilities(batch_size):
    learner, (params,) = usual()
    found = learner.evaluate(one_seed(params), "dev", KEYS, mode="sample", batch_size=batch_size, samples=4)

    # By hand: one long pass reads each stream four times.
    inputs, targets = stream_of(learner, "dev")
    rows = -(-len(targets) // batch_size)
    padded = [
        np.pad(leaf, (0, rows * batch_size - len(leaf))).reshape(batch_size, rows)
        for leaf in (inputs, targets)
    ]
    tokens, truth = (np.repeat(leaf, 4, axis=0) for leaf in padded)
    model = learner.model(params)
    carry = learner.task.initial_carry(model, 4 * batch_size, KEYS[0])
    output = compiled(model)(jnp.asarray(tokens, jnp.int32), initial_carry=carry)
    probabilities = np.exp(-nll_of(output.logits, truth)).reshape(batch_size, 4, rows).mean(axis=1)
    nll = -np.log(probabilities).ravel()[:37].mean()
    np.testing.assert_allclose(found["dev_perplexity"], [np.exp(nll)], rtol=1e-4)
    # Jensen's inequality: the logarithm of the mean probability is above the mean of the logarithms.
    each = np.exp(nll_of(output.logits, truth).reshape(batch_size, 4, rows).mean(axis=1).ravel()[:37].mean())
    assert found["dev_perplexity"][0] < each
    # Agent metrics are averaged over the samples.
    k = np.asarray(output.decisions[0].action, float).reshape(batch_size, 4, rows).mean(axis=1)
    np.testing.assert_allclose(found["dev_agent_skip_1"], [k.ravel()[:37].mean()], rtol=1e-5)


def cached(learner, grid):
    """Return the task of `learner` with neural caches."""
    task = learner.task
    return CachedLanguageModelling(
        task.corpus, task.make_model, cache=grid, batch_size=task.batch_size, num_steps=task.num_steps
    )


def test_cached_perplexity_is_that_of_the_models_states_and_words():
    learner, params = usual("dynamic:3", 2)
    grid = CacheGrid(size=6, flatness=(0.0, 2.0), weight=(0.1, 0.6))
    how = dict(batch_size=1)
    metrics = learner.evaluate(both_of(params), "dev", TWO_KEYS, task=cached(learner, grid), **how)
    found = metrics.pop("dev_perplexity_cached")
    assert found.shape == (2, 2, 2)
    for name, value in learner.evaluate(both_of(params), "dev", TWO_KEYS, **how).items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-6, err_msg=name)

    inputs, targets = stream_of(learner, "dev")
    for seed, each in enumerate(params):
        output = compiled(learner.model(each))(jnp.asarray(inputs)[None], policy=F.Policy("greedy"))
        states = np.asarray(output.states[0], float)
        model_says = np.exp(-nll_of(output.logits[0], targets))
        for i, flatness in enumerate(grid.flatness):
            for j, weight in enumerate(grid.weight):
                p = model_says.copy()
                for t in range(1, len(targets)):
                    past = np.arange(max(0, t - 6), t)
                    alike = np.exp(flatness * states[past] @ states[t])
                    cache = alike[targets[past] == targets[t]].sum() / alike.sum()
                    p[t] = (1 - weight) * p[t] + weight * cache
                expected = np.exp(-np.log(p).mean())
                np.testing.assert_allclose(found[seed, i, j], expected, rtol=1e-4)


def test_activations_are_regularised_as_printed():
    model = {"dropout": LanguageModelDropout(outputs=0.5)}
    penalised = learner_of(model=model, task=dict(activation_coef=2.0, temporal_coef=0.7))
    plain = learner_of(model=model)
    params = drawn_params(plain)
    batch = train_batches(plain)[0]
    keys = jax.random.split(jax.random.key(1), 3)

    @jax.jit
    def read(params):
        carry = plain.initial_carry(params, jax.random.key(3))
        losses = [
            each.loss(params, carry, batch, keys, scheduled_of(plain))[0] for each in (penalised, plain)
        ]
        return losses, plain.model(params)(batch.inputs, initial_carry=carry[0], rngs=keys)

    losses, output = read(params)
    h, dropped = (np.asarray(leaf, float) for leaf in (output.states, output.dropped_states))
    assert (dropped == 0).mean() > 0.2 and not np.any(h == 0)
    expected = 2.0 * np.mean(dropped**2) + 0.7 * np.mean((h[:, 1:] - h[:, :-1]) ** 2)
    np.testing.assert_allclose(losses[0] - losses[1], 5 * expected, rtol=1e-3)


def test_random_lengths_read_the_same_text():
    corpus = corpus_of(train=1200)
    task = learner_of(corpus=corpus, num_steps=30, task={"random_lengths": True}).task
    assert len(set(task.lengths)) > 1
    text = np.concatenate([batch.targets for batch in task.train_batches(0, (0,))], axis=1)
    whole = corpus.train[: 3 * 400].reshape(3, 400)
    for epoch in range(3):
        batches = list(task.train_batches(epoch, (0,)))
        assert len(batches) == task.num_batches
        np.testing.assert_array_equal(np.concatenate([b.targets for b in batches], axis=1), text)
        assert sorted(b.targets.shape[1] for b in batches) == sorted(task.lengths)
    np.testing.assert_array_equal(text, whole[:, : text.shape[1]])
    assert [b.targets.shape[1] for b in task.train_batches(1, (0,))] != task.lengths
    for epoch in (0, 1):
        sizes = [batch.targets.size for batch in task.train_batches(epoch, (0,))]
        assert list(task.train_batch_sizes(epoch)) == sizes


def test_words_and_weights_are_dropped_for_all_streams_alike():
    dropout = LanguageModelDropout(words=0.5, weights=0.5)
    learner = learner_of("lstm", model={"dropout": dropout})
    params = drawn_params(learner)
    model = learner.model(params)
    # All streams have the same text, so they stay equal if the same units are dropped in all.
    tokens = jnp.tile(jnp.arange(5)[None], (3, 1))
    carry = model.initialize_carry(3, jax.random.key(3))
    keys = jax.random.split(jax.random.key(1), 3)
    read = partial(compiled(model), tokens, initial_carry=carry)
    found = [read(rngs=keys, shared_key=jax.random.key(k)).logits for k in (7, 8)]
    for logits in found:
        np.testing.assert_array_equal(logits, jnp.tile(logits[:1], (3, 1, 1)))
    assert not np.allclose(found[0], found[1])
    # Without `shared_key`, the dropout masks use the first stream's key. Evaluation drops nothing.
    np.testing.assert_array_equal(read(rngs=keys).logits, read(rngs=jnp.repeat(keys[:1], 3)).logits)
    assert not np.allclose(read(rngs=keys).logits, read(deterministic=True).logits)
    with pytest.raises(UserError, match="this model draws"):
        read()


@pytest.mark.parametrize("tied", [False, True])
def test_tied_weights_are_one_table(tied):
    learner = learner_of("lstm", model={"tied": tied})
    params = drawn_params(learner)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    V, D = len(learner.task.corpus.vocabulary), 8
    assert count == V * D + 2 * 4 * (2 * D * D + D) + V + (0 if tied else V * D)
    if tied:
        model = learner.model(params)
        output = compiled(model)(jnp.array([[1, 2, 3]]))
        table = np.asarray(model.embedding.embedding[...], float)
        expected = np.asarray(output.states, float) @ table.T + np.asarray(model.bias[...])
        np.testing.assert_allclose(output.logits, expected, rtol=1e-4, atol=1e-5)


def of_characters(corpus):
    """Return an embedding of the corpus's words from their characters."""
    characters, _ = character_table(corpus.vocabulary.tokens)
    options = dict(char_features=3, widths=(1, 2), maps=(4, 6), num_highway=1)
    return CharEmbedding(characters, **options, weight_init=uniform(0.8), rngs=nnx.Rngs(1))


def test_impossible_embeddings_are_refused():
    with pytest.raises(UserError, match="size"):
        learner_of("lstm", model=dict(tied=True, embedding_features=5))
    with pytest.raises(UserError, match="table of words"):
        learner_of("lstm", model=dict(tied=True, embedding=of_characters(corpus_of())))
    with pytest.raises(UserError, match="words"):
        LanguageModelDropout(words=1.0)


@pytest.mark.parametrize("skip", ["lstm", "dynamic:5"])
def test_size_of_the_papers_model(skip):
    vocabulary = Vocabulary((*(f"w{i}" for i in range(9_999)), "<eos>"))
    tokens = np.zeros(40, np.int32)
    corpus = LanguageCorpus("sized", tokens, tokens, tokens, vocabulary, "here")
    learner = learner_of(skip, corpus, features=650, cell={"agent_features": 50})
    count = sum(leaf.size for leaf in jax.tree.leaves(learner.abstract_params()))

    embedding = 10_000 * 650
    layer = 4 * (650 * 650 + 650 * 650 + 650)
    softmax = 650 * 10_000 + 10_000
    agent = (650 + 650) * 50 + 50 + 50 * 5 + 5 if skip == "dynamic:5" else 0
    assert count == embedding + 2 * layer + softmax + agent
    assert round(count / 1e6, 1) == 19.8
