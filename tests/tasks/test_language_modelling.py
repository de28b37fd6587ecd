"""Check language modelling: perplexity against one long forward pass, carried state, dropout,
sizes.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from learners import drawn_params, language_modelling, scheduled_of, together

from dynskip_jax import functional as F
from dynskip_jax.data import make_corpus
from dynskip_jax.errors import UserError
from dynskip_jax.models import LanguageModelDropout
from dynskip_jax.nn.initializers import uniform
from dynskip_jax.tasks.language import CachedLanguageModelling

KEYS = jax.random.split(jax.random.key(5), 1)


def corpus_of(train=60, dev=37, test=23):
    """Return a corpus of random text; the sizes are numbers of tokens, of which the last is a line
    end.
    """
    rng = np.random.default_rng(0)
    lines = {}
    for split, size in (("train", train), ("dev", dev), ("test", test)):
        tokens = rng.choice(list("abcdefghijk"), size - 1)
        tokens[4::9] = "\n"
        lines[split] = " ".join(tokens).split("\n")
    return make_corpus("letters", lines, "here")


def learner_of(skips=("dynamic:3",), corpus=None, **options):
    """Return a learner of models in which the past matters."""
    defaults = dict(features=8, batch_size=3, num_steps=5, init_scale=0.8)
    defaults["cell"] = {"kernel_init": uniform(1.5)}
    return language_modelling(corpus or corpus_of(), skips=skips, **defaults | options)


@pytest.fixture(scope="module")
def usual():
    """Return a learner of one-layer models, and one model's parameters."""
    learner = learner_of()
    return learner, drawn_params(learner)


def nll_of(logits, targets):
    """Compute -log softmax at `targets` in float64; the result and `targets` are (..., time)."""
    logits = np.asarray(logits, float)
    total = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    return total - np.take_along_axis(logits, np.asarray(targets)[..., None], axis=-1)[..., 0]


def stream_of(learner, split):
    """Return the inputs and targets of a whole split: each input is the previous token, the first
    <eos>.
    """
    tokens = learner.task.tokens(split)
    return np.concatenate([[learner.task.end_of_line], tokens[:-1]]).astype(np.int32), tokens


def train_batches(learner):
    """Return the training batches of the first epoch as JAX arrays, as the compiled step receives
    them.
    """
    return [jax.tree.map(jnp.asarray, batch) for batch in learner.train_batches(0)]


@pytest.mark.parametrize(("rows", "size"), [(50, 37), (4, 37)])
def test_perplexity_of_several_streams_counts_every_token_once(rows, size):
    # 37 tokens never fill the rows exactly. Of 50 rows, some have no tokens.
    learner = learner_of(corpus=corpus_of(dev=size))
    params = drawn_params(learner)
    found = learner.evaluate(together(params), "dev", KEYS, batch_size=rows)
    inputs, targets = stream_of(learner, "dev")
    length = -(-size // rows)
    logits = jax.jit(
        lambda inputs: learner.model(params)(inputs[None], policy=F.Policy("greedy")).logits[0]
    )
    parts = [slice(start, start + length) for start in range(0, size, length)]
    nll = np.concatenate([nll_of(logits(inputs[part]), targets[part]) for part in parts])
    assert len(nll) == size
    np.testing.assert_allclose(found["dev_perplexity"], [np.exp(nll.mean())], rtol=1e-4)


def test_training_segments_carry_the_state_on_and_losses_are_sums_over_segments(usual):
    # The 60 tokens form 3 rows of 20, cut into 4 segments. Choices are sampled with the carry's
    # keys.
    learner, params = usual
    carry = start = learner.initial_carry(params, jax.random.key(3))
    loss = jax.jit(learner.loss)
    total, tokens = 0.0, 0
    for number, batch in enumerate(train_batches(learner)):
        _, (carry, sums) = loss(params, carry, batch, jax.random.key(number), scheduled_of(learner))
        total, tokens = total + float(sums["nll"].total), tokens + int(sums["nll"].count)
    inputs, targets = (leaf.reshape(3, 20) for leaf in stream_of(learner, "train"))
    output = compiled(learner.model(params))(inputs, initial_carry=start)
    assert tokens == 60
    np.testing.assert_allclose(total, nll_of(output.logits, targets).sum(), rtol=1e-4)

    plain = learner_of(["lstm"])  # its loss has no part of agents
    params = drawn_params(plain)
    carry = plain.initial_carry(params, jax.random.key(3))
    value, (_, sums) = jax.jit(plain.loss)(
        params, carry, batch, jax.random.key(1), scheduled_of(plain)
    )
    np.testing.assert_allclose(value, sums["nll"].total / 3, rtol=1e-6)


def test_restarted_buffer_keeps_the_newest_state_alone():
    options = [dict(restart_buffer=again) for again in (False, True)]
    plain, restarting = (learner_of(("lstm", "fixed:3"), task=of) for of in options)
    params, (first, second, *_) = drawn_params(plain), train_batches(plain)
    start, scheduled = plain.initial_carry(params, jax.random.key(3)), scheduled_of(plain)
    key, of_plain, of_restarting = jax.random.key(4), jax.jit(plain.loss), jax.jit(restarting.loss)
    _, (carry, _) = of_plain(params, start, first, key, scheduled)
    newest = [jax.tree.map(lambda slots: slots.at[:, 1:].set(0), layer.slots) for layer in carry]
    newest = tuple(layer.with_slots(slots) for layer, slots in zip(carry, newest, strict=True))
    given = (of_plain, carry), (of_plain, newest), (of_plain, start), (of_restarting, carry)
    losses = [float(loss(params, own, second, key, scheduled)[0]) for loss, own in given]
    kept, forgotten, lost, restarted = losses
    assert abs(kept - forgotten) > 1e-3 and abs(restarted - lost) > 1e-4
    assert restarted == pytest.approx(forgotten, rel=1e-6)


def test_evaluation_restarts_the_buffer_after_as_many_words_as_training():
    """Segments of dev are as long as those of train, so that the buffer restarts before each of
    them.
    """
    learner = learner_of(("fixed:3",), task=dict(restart_buffer=True), corpus=corpus_of(dev=23))
    params, task = drawn_params(learner), learner.task
    model = learner.model(params)
    read = compiled(model)
    inputs, targets = stream_of(learner, "dev")
    carry, nll = model.initialize_carry(1, jax.random.key(0)), []
    for start in range(0, 23, task.num_steps):
        part = slice(start, start + task.num_steps)
        carry, output = read(
            inputs[None, part], initial_carry=model.restart_carry(carry), return_carry=True
        )
        nll.append(nll_of(output.logits[0], targets[part]))
    found = learner.evaluate(together(params), "dev", KEYS, batch_size=1)
    np.testing.assert_allclose(
        found["dev_perplexity"], [np.exp(np.concatenate(nll).mean())], rtol=1e-5
    )


def test_evaluation_samples_only_if_asked_and_with_the_given_keys(usual):
    (learner, params), other = usual, jax.random.split(jax.random.key(6), 1)
    evaluate = lambda keys, **mode: learner.evaluate(together(params), "dev", keys, **mode)
    perplexity = lambda keys, **mode: evaluate(keys, **mode)["dev_perplexity"]
    assert perplexity(KEYS) == perplexity(other) == perplexity(KEYS, mode="greedy")
    assert perplexity(KEYS, mode="sample") != perplexity(other, mode="sample")


def test_averaged_predictions_are_means_of_probabilities(usual):
    learner, params = usual
    found = learner.evaluate(together(params), "dev", KEYS, mode="sample", batch_size=2, samples=4)
    # By hand: one long pass reads each of two streams four times.
    padded = [np.pad(leaf, (0, 1)).reshape(2, 19) for leaf in stream_of(learner, "dev")]
    tokens, truth = (np.repeat(leaf, 4, axis=0) for leaf in padded)
    model = learner.model(params)
    output = compiled(model)(tokens, initial_carry=learner.task.initial_carry(model, 8, KEYS[0]))
    nll = nll_of(output.logits, truth).reshape(2, 4, 19)

    def mean(values):
        return values.ravel()[:37].mean()

    expected = np.exp(-mean(np.log(np.exp(-nll).mean(axis=1))))
    np.testing.assert_allclose(found["dev_perplexity"], [expected], rtol=1e-4)
    assert expected < np.exp(mean(nll.mean(axis=1)))  # Jensen's inequality
    # Agent metrics are averaged over the samples.
    k = np.asarray(output.decisions[0].action, float).reshape(2, 4, 19).mean(axis=1)
    np.testing.assert_allclose(found["dev_agent_skip_1"], [mean(k)], rtol=1e-5)


@pytest.mark.parametrize("restart_token", [None, 1])
def test_cached_perplexity_is_that_of_the_models_states_and_words(usual, restart_token):
    """Where the model restarts, the cache is empty: a file's `<name-0>` is another one's."""
    learner = learner_of(seeds=(0, 1), model=dict(restart_token=restart_token))
    params = [drawn_params(learner, seed) for seed in range(2)]
    flatness, weight = (0.0, 2.0), (0.1, 0.6)
    how = dict(size=6, flatness=flatness, weight=weight)
    task = CachedLanguageModelling(learner.task, **how)
    task.num_steps = 5
    keys = jax.random.split(jax.random.key(5), 2)
    metrics = learner.evaluate(together(*params), "dev", keys, task=task, batch_size=1)
    found = metrics.pop("dev_perplexity_cached")
    plain = learner.evaluate(together(*params), "dev", keys, batch_size=1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), metrics, plain)

    inputs, targets = stream_of(learner, "dev")
    begins = np.flatnonzero(np.asarray(inputs) == restart_token)
    assert restart_token is None or len(begins) > 2
    for seed, i, j in np.ndindex(2, 2, 2):
        output = compiled(learner.model(params[seed]))(inputs[None], policy=F.Policy("greedy"))
        states = np.asarray(output.states[0], float)
        p = np.exp(-nll_of(output.logits[0], targets))
        for t in range(1, len(targets)):
            begin = max(begins[begins <= t], default=0)
            past = np.arange(max(begin, t - 6), t)
            if not len(past):
                continue
            alike = np.exp(flatness[i] * states[past] @ states[t])
            cache = alike[targets[past] == targets[t]].sum() / alike.sum()
            p[t] = (1 - weight[j]) * p[t] + weight[j] * cache
        np.testing.assert_allclose(found[seed, i, j], np.exp(-np.log(p).mean()), rtol=1e-4)


def test_activations_are_regularised_as_printed():
    model = {"dropout": LanguageModelDropout(outputs=0.5)}
    plain, task = learner_of(model=model), dict(activation_coefs=(2.0, 0.7))
    penalised = learner_of(model=model, task=task)
    params, batch = drawn_params(plain), train_batches(plain)[0]
    keys = jax.random.split(jax.random.key(1), 3)

    @jax.jit
    def read(params):
        carry = plain.initial_carry(params, jax.random.key(3))
        of = [
            each.loss(params, carry, batch, keys, scheduled_of(plain))[0]
            for each in (penalised, plain)
        ]
        return of, plain.model(params)(batch.inputs, initial_carry=carry, rngs=keys)

    losses, output = read(params)
    h, dropped = (np.asarray(leaf, float) for leaf in (output.states, output.dropped_states))
    assert (dropped == 0).mean() > 0.2 and not np.any(h == 0)
    expected = 2.0 * np.mean(dropped**2) + 0.7 * np.mean((h[:, 1:] - h[:, :-1]) ** 2)
    np.testing.assert_allclose(losses[0] - losses[1], 5 * expected, rtol=1e-3)


def test_random_lengths_read_the_same_text():
    corpus = corpus_of(train=1200)
    task = learner_of(corpus=corpus, num_steps=30, task={"random_lengths": True}).task
    orders = []
    for epoch in range(3):
        batches = list(task.train_batches(epoch, (0,)))
        text = np.concatenate([batch.targets for batch in batches], axis=1)
        np.testing.assert_array_equal(text, corpus.train.reshape(3, 400)[:, : text.shape[1]])
        orders.append([batch.targets.shape[1] for batch in batches])
        assert len(batches) == task.num_batches
        assert list(task.train_batch_sizes(epoch)) == [3 * length for length in orders[-1]]
    assert len(set(orders[0])) > 1 and orders[1] != orders[0]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])


def test_words_and_weights_are_dropped_for_all_streams_alike():
    dropout = LanguageModelDropout(words=0.5, weights=0.5)
    learner = learner_of(("lstm", "lstm"), model={"dropout": dropout})
    model = learner.model(drawn_params(learner))
    # All streams have the same text, so they stay equal if the same units are dropped in all.
    tokens, keys = jnp.tile(jnp.arange(5)[None], (3, 1)), jax.random.split(jax.random.key(1), 3)
    read = lambda **how: (
        compiled(model)(tokens, initial_carry=model.initialize_carry(3), **how).logits
    )
    found = [read(rngs=keys, shared_key=jax.random.key(k)) for k in (7, 8)]
    for logits in found:
        np.testing.assert_array_equal(logits, jnp.tile(logits[:1], (3, 1, 1)))
    assert not np.allclose(found[0], found[1])
    # Without `shared_key`, the dropout masks use the first stream's key. Evaluation drops nothing.
    np.testing.assert_array_equal(read(rngs=keys), read(rngs=jnp.repeat(keys[:1], 3)))
    assert not np.allclose(read(rngs=keys), read(deterministic=True))
    with pytest.raises(UserError, match="this model draws"):
        read()


def test_tied_weights_are_one_table():
    learner = learner_of(["lstm"], model={"tied": True})
    params = drawn_params(learner)
    model = learner.model(params)
    output, table = (
        compiled(model)(jnp.array([[1, 2, 3]])),
        np.asarray(model.embedding.embedding[...], float),
    )
    expected = np.asarray(output.states, float) @ table.T + np.asarray(model.bias[...])
    np.testing.assert_allclose(output.logits, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match="size"):
        learner_of(["lstm"], model=dict(tied=True, embedding_features=5))
