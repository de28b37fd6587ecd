"""Language modelling: perplexity against one long forward pass, carried state, dropout, sizes."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.data import LanguageCorpus, Vocabulary, make_corpus
from dynskip_jax.errors import UserError
from dynskip_jax.functional import Previous, parse_time_skip
from dynskip_jax.models import LanguageModelDropout
from dynskip_jax.tasks.language_modelling import (
    CacheGrid,
    LanguageModelling,
    LanguageModellingSettings,
    uniform,
)
from dynskip_jax.training.objective import AgentObjective
from dynskip_jax.training.stage import of_model

WORDS = list("abcdefghijk")


def corpus_of(train=60, valid=37, test=23):
    """Random text; the sizes are tokens, of which the last is the end of a line."""
    rng = np.random.default_rng(0)
    lines = {}
    for split, size in (("train", train), ("valid", valid), ("test", test)):
        tokens = rng.choice(WORDS, size - 1)
        tokens[4::9] = "\n"
        lines[split] = " ".join(tokens).split("\n")
    corpus = make_corpus("letters", lines, "here")
    assert [corpus.sizes[split] for split in lines] == [train, valid, test]
    return corpus


def task_of(model="dynamic:3", corpus=None, **settings):
    defaults = dict(
        skips=(Previous(), parse_time_skip(model)),
        features=8,
        batch_size=3,
        num_steps=5,
        dropout=0.0,
        init_scale=0.8,  # large enough that the past matters
        cell_options=({}, {"agent_features": 4, "kernel_init": uniform(1.5)}),
        objective=AgentObjective(),
    )
    return LanguageModelling(corpus or corpus_of(), LanguageModellingSettings(**defaults | settings))


def nll_of(logits, targets):
    """-log softmax at the targets, in float64; both (..., time)."""
    logits = np.asarray(logits, float)
    total = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    return total - np.take_along_axis(logits, np.asarray(targets)[..., None], axis=-1)[..., 0]


def long_pass_of(task):
    """Returns (params, inputs, targets) -> each token's -log p: one stream, one call, no mask."""

    @jax.jit
    def logits_of(params, inputs):
        model = nnx.merge(task.graphdef, params)
        return model(inputs[None], policy=F.Policy("greedy")).logits[0]

    def nll(params, inputs, targets):
        return nll_of(logits_of(params, jnp.asarray(inputs, jnp.int32)), targets)

    return nll


def stream_of(task, split):
    """Inputs and targets of a whole split: each token after the one before, the first after <eos>."""
    tokens = getattr(task.corpus, split)
    return np.concatenate([[task.corpus.vocabulary.index["<eos>"]], tokens[:-1]]), tokens


def train_batches(task):
    """As the compiled step sees them."""
    return [jax.tree.map(jnp.asarray, batch) for batch in task.train_batches(0)]


def one_seed(params):
    return jax.tree.map(lambda leaf: leaf[None], params)


KEYS = jax.random.split(jax.random.key(5), 1)


@pytest.mark.parametrize("model", ["fixed:2", "attention:3", "dynamic:3"])
def test_perplexity_of_one_stream_is_that_of_one_long_pass(model):
    task = task_of(model)
    params = [task.init(jax.random.key(seed)) for seed in (0, 1)]
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
    keys = jax.random.split(jax.random.key(5), 2)
    long_pass = long_pass_of(task)
    for split, name in (("valid", "dev"), ("test", "test")):
        expected = [np.exp(long_pass(each, *stream_of(task, split)).mean()) for each in params]
        found = task.evaluate(both, name, keys, batch_size=1)
        np.testing.assert_allclose(found[f"{name}_perplexity"], expected, rtol=1e-4)


@pytest.mark.parametrize(("batch_size", "num_steps"), [(2, 5), (4, 150), (5, 7), (30, 4), (50, 3)])
def test_perplexity_of_several_streams_counts_every_token_once(batch_size, num_steps, monkeypatch):
    # A whole number of rows never fits; with 30 and 50 rows some have nothing to read at all.
    task = task_of(corpus=corpus_of(train=600), num_steps=num_steps)
    params = task.init(jax.random.key(0))
    counted = []
    summarise = task.summarise
    monkeypatch.setattr(task, "summarise", lambda sums: counted.append(sums["tokens"]) or summarise(sums))
    found = task.evaluate(one_seed(params), "dev", KEYS, batch_size=batch_size)

    inputs, targets = stream_of(task, "valid")
    length = -(-len(targets) // batch_size)
    long_pass = long_pass_of(task)
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
    corpus = corpus_of(train=1200, valid=1003)
    found = []
    for num_steps in (5, 501, 1100):  # segments of 400, 501 and 1,100 steps
        task = task_of("dynamic:3", corpus, num_steps=num_steps, batch_size=1)
        params = one_seed(task.init(jax.random.key(0)))
        found.append(task.evaluate(params, "dev", KEYS, batch_size=1))
    for other in found[1:]:
        for name, value in found[0].items():
            np.testing.assert_allclose(other[name], value, rtol=1e-5, err_msg=name)


def test_training_segments_carry_the_state_on():
    # 60 tokens are 3 rows of 20, cut into 4 segments; choices are sampled, from the carry's own keys.
    task = task_of()
    assert task.num_batches == 4
    params = task.init(jax.random.key(0))
    carry = start = task.initial_carry(params, jax.random.key(3))
    total, tokens = 0.0, 0
    for number, batch in enumerate(train_batches(task)):
        _, (carry, sums) = task.loss(params, carry, batch, jax.random.key(number), of_model(task.stage(0), 0))
        total, tokens = total + float(sums["nll"]), tokens + int(sums["tokens"])
    inputs, targets = (leaf.reshape(3, 20) for leaf in stream_of(task, "train"))
    output = nnx.merge(task.graphdef, params)(jnp.asarray(inputs, jnp.int32), initial_carry=start)
    assert tokens == 60
    np.testing.assert_allclose(total, nll_of(output.logits, targets).sum(), rtol=1e-4)


def second_segment(task, params, forget):
    """Loss of the second training segment, after `forget` was applied to the carry of the first."""
    first, second, *_ = train_batches(task)
    carry = task.initial_carry(params, jax.random.key(3))
    _, (carry, _) = task.loss(params, carry, first, jax.random.key(4), of_model(task.stage(0), 0))
    return float(task.loss(params, forget(carry), second, jax.random.key(4), of_model(task.stage(0), 0))[0])


def keep_newest(carry):
    def zero_older(slots):
        slots = np.array(slots)
        slots[:, 1:] = 0
        return jnp.asarray(slots)

    return tuple(layer._replace(slots=jax.tree.map(zero_older, layer.slots)) for layer in carry)


def test_restarted_buffer_keeps_the_newest_state_alone():
    settings = dict(skips=(Previous(), parse_time_skip("fixed:3")))
    restarting, plain = task_of(restart_buffer=True, **settings), task_of(**settings)
    params = plain.init(jax.random.key(0))
    kept = second_segment(plain, params, lambda carry: carry)
    forgotten = second_segment(plain, params, keep_newest)
    restarted = second_segment(restarting, params, lambda carry: carry)
    assert abs(kept - forgotten) > 1e-3
    assert restarted == pytest.approx(forgotten, rel=1e-6)
    # The newest state survives: with nothing at all carried over the loss is another one.
    nothing = second_segment(plain, params, lambda _: plain.initial_carry(params, jax.random.key(3)))
    assert abs(restarted - nothing) > 1e-4


def test_restarting_the_buffer_is_nothing_to_a_plain_lstm():
    settings = dict(skips=(Previous(), Previous()))
    params = task_of(**settings).init(jax.random.key(0))
    losses = [
        second_segment(task_of(restart_buffer=restart, **settings), params, lambda carry: carry)
        for restart in (True, False)
    ]
    assert losses[0] == losses[1]


def test_dropout_is_for_training_alone():
    plain = task_of()
    top = plain.settings.cell_options[1] | {"recurrent_dropout": 0.5}
    dropped = task_of(dropout=0.5, cell_options=({}, top))
    params = plain.init(jax.random.key(0))
    found = [task.evaluate(one_seed(params), "dev", KEYS) for task in (plain, dropped, dropped)]
    assert found[0] == found[1] == found[2]
    batch = train_batches(plain)[0]
    carry = plain.initial_carry(params, jax.random.key(3))
    with_dropout, without = (
        [
            float(task.loss(params, carry, batch, jax.random.key(k), of_model(task.stage(0), 0))[1][1]["nll"])
            for k in (1, 1, 2)
        ]
        for task in (dropped, plain)
    )
    assert with_dropout[0] == with_dropout[1] != with_dropout[2]
    assert without[0] == without[1] == without[2] != with_dropout[0]


def test_evaluation_samples_only_if_asked_and_with_the_given_keys():
    task = task_of()
    params = one_seed(task.init(jax.random.key(0)))
    other = jax.random.split(jax.random.key(6), 1)

    def perplexity(keys, **options):
        return float(task.evaluate(params, "dev", keys, **options)["dev_perplexity"][0])

    assert perplexity(KEYS) == perplexity(other) == perplexity(KEYS, mode="greedy")
    assert perplexity(KEYS, mode="sample") == perplexity(KEYS, mode="sample")
    assert perplexity(KEYS, mode="sample") != perplexity(other, mode="sample")


def test_loss_is_summed_over_the_segment_and_averaged_over_streams():
    task = task_of("lstm")
    params = task.init(jax.random.key(0))
    batch = train_batches(task)[0]
    carry = task.initial_carry(params, jax.random.key(3))
    loss, (_, sums) = task.loss(params, carry, batch, jax.random.key(1), of_model(task.stage(0), 0))
    assert batch.inputs.shape == (3, 5)
    np.testing.assert_allclose(loss, sums["nll"] / 3, rtol=1e-6)


def test_trace_has_one_choice_for_each_token():
    task = task_of()
    params = one_seed(task.init(jax.random.key(0)))
    tokens, chosen = task.trace(params, "dev", KEYS, layer=-1)
    inputs, _ = stream_of(task, "valid")
    assert chosen.shape == (1, 37)
    assert set(np.unique(chosen)) <= {1, 2, 3}
    np.testing.assert_array_equal(np.sort(tokens), np.sort(inputs))


@pytest.mark.slow
def test_rollouts_of_a_stream_are_streams_of_their_own():
    # Three rollouts of each of 3 streams are what 9 streams would be, of which three read the same text.
    objective = AgentObjective(rollouts=3, baseline="rollouts", discount=0.5, entropy_coef=0.0)
    task = task_of(objective=objective, dropout=0.4)
    params = task.init(jax.random.key(0))
    carry = task.initial_carry(params, jax.random.key(3))
    assert carry[1].slots.h.shape[0] == 9
    batch = train_batches(task)[0]
    keys = jax.random.split(jax.random.key(1), 3)
    stage = of_model(task.stage(0), 0)
    _, (end, sums) = task.loss(params, carry, batch, keys, stage)
    assert sums["tokens"] == 9 * 5 and end[1].slots.h.shape[0] == 9

    model = nnx.merge(task.graphdef, params)
    tokens, targets = (np.repeat(leaf, 3, axis=0) for leaf in (batch.inputs, batch.targets))
    output = model(jnp.asarray(tokens), initial_carry=carry, rngs=jnp.repeat(keys, 3))
    nll = nll_of(output.logits, targets)
    np.testing.assert_allclose(sums["nll"], nll.sum(), rtol=1e-5)
    chosen = output.decisions[1].action.tolist()
    assert any(len(set(map(tuple, chosen[i : i + 3]))) > 1 for i in (0, 3, 6))  # they choose for themselves

    # Eq. 4 to 6, with the mean return of the other two rollouts as the baseline, position by position.
    returns = np.zeros((9, 5))
    for t in reversed(range(5)):
        returns[:, t] = -nll[:, t] + (0.5 * returns[:, t + 1] if t < 4 else 0)
    others = np.stack([returns[i // 3 * 3 : i // 3 * 3 + 3].sum(axis=0) - returns[i] for i in range(9)]) / 2

    def both(params):
        model = nnx.merge(task.graphdef, params)
        output = model(jnp.asarray(tokens), initial_carry=carry, rngs=jnp.repeat(keys, 3))
        picked = jnp.take_along_axis(jax.nn.log_softmax(output.logits), jnp.asarray(targets)[..., None], -1)
        weighed = output.decisions[1].log_prob * jnp.asarray(returns - others)
        return (-picked.sum() - weighed.sum()) / 9

    actual = jax.grad(lambda p: task.loss(p, carry, batch, keys, stage)[0])(params)
    for found, expected in zip(jax.tree.leaves(actual), jax.tree.leaves(jax.grad(both)(params)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-5)


def test_relaxed_epochs_read_each_stream_once():
    objective = AgentObjective(rollouts=3, baseline="rollouts", relaxation="soft", relaxed_epochs=1)
    task, alone = (
        task_of(objective=objective),
        task_of(objective=replace(objective, rollouts=1, baseline="none")),
    )
    params = task.init(jax.random.key(0))
    batch = train_batches(task)[0]
    starts = [each.initial_carry(params, jax.random.key(3)) for each in (task, alone)]
    found = [
        each.loss(params, carry, batch, jax.random.key(1), of_model(each.stage(0), 0))
        for each, carry in zip((task, alone), starts, strict=True)
    ]
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6)
    ends = [carry[1].slots.h for _, (carry, _) in found]
    np.testing.assert_allclose(ends[0], jnp.repeat(ends[1], 3, axis=0), rtol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_averaged_predictions_are_means_of_probabilities(batch_size):
    task = task_of()
    params = task.init(jax.random.key(0))
    found = task.evaluate(one_seed(params), "dev", KEYS, mode="sample", batch_size=batch_size, samples=4)

    # The same by hand: each stream four times, in one long pass.
    inputs, targets = stream_of(task, "valid")
    rows = -(-len(targets) // batch_size)
    padded = [
        np.pad(leaf, (0, rows * batch_size - len(leaf))).reshape(batch_size, rows)
        for leaf in (inputs, targets)
    ]
    tokens, truth = (np.repeat(leaf, 4, axis=0) for leaf in padded)
    model = nnx.merge(task.graphdef, params)
    carry = task.initial_carry(params, KEYS[0], batch_size=4 * batch_size)
    output = model(jnp.asarray(tokens, jnp.int32), initial_carry=carry)
    probabilities = np.exp(-nll_of(output.logits, truth)).reshape(batch_size, 4, rows).mean(axis=1)
    nll = -np.log(probabilities).ravel()[:37].mean()
    np.testing.assert_allclose(found["dev_perplexity"], [np.exp(nll)], rtol=1e-4)
    # Jensen: the mean of probabilities is above the mean of their logarithms.
    each = np.exp(nll_of(output.logits, truth).reshape(batch_size, 4, rows).mean(axis=1).ravel()[:37].mean())
    assert found["dev_perplexity"][0] < each


def test_cached_perplexity_is_that_of_the_models_states_and_words():
    task = task_of()
    params = [task.init(jax.random.key(seed)) for seed in (0, 1)]
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
    grid = CacheGrid(size=6, flatness=(0.0, 2.0), weight=(0.1, 0.6))
    keys = jax.random.split(jax.random.key(5), 2)
    found = task.evaluate(both, "dev", keys, batch_size=1, cache=grid)["dev_perplexity_cached"]
    assert found.shape == (2, 2, 2)

    inputs, targets = stream_of(task, "valid")
    for seed, each in enumerate(params):
        model = nnx.merge(task.graphdef, each)
        output = model(jnp.asarray(inputs)[None], policy=F.Policy("greedy"))
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


def test_samples_have_caches_of_their_own():
    task, grid = task_of(), CacheGrid(size=6, flatness=(1.0,), weight=(0.5,))
    params = one_seed(task.init(jax.random.key(0)))
    # Greedy, all samples are the same, and so is their average.
    once, thrice = (
        task.evaluate(params, "dev", KEYS, batch_size=2, samples=samples, cache=grid) for samples in (1, 3)
    )
    for name, value in once.items():
        np.testing.assert_allclose(thrice[name], value, rtol=1e-5, err_msg=name)


def test_activations_are_regularised_as_printed():
    settings = dict(dropout=LanguageModelDropout(outputs=0.5), activation_coef=2.0, temporal_coef=0.7)
    task, plain = task_of(**settings), task_of(dropout=settings["dropout"])
    params = task.init(jax.random.key(0))
    batch = train_batches(task)[0]
    carry, keys = task.initial_carry(params, jax.random.key(3)), jax.random.split(jax.random.key(1), 3)
    losses = [each.loss(params, carry, batch, keys, of_model(each.stage(0), 0))[0] for each in (task, plain)]
    output = nnx.merge(task.graphdef, params)(jnp.asarray(batch.inputs), initial_carry=carry, rngs=keys)
    h, dropped = (np.asarray(leaf, float) for leaf in (output.states, output.dropped_states))
    assert (dropped == 0).mean() > 0.2 and not np.any(h == 0)
    expected = 2.0 * np.mean(dropped**2) + 0.7 * np.mean((h[:, 1:] - h[:, :-1]) ** 2)
    np.testing.assert_allclose(losses[0] - losses[1], 5 * expected, rtol=1e-3)


def test_random_lengths_read_the_same_text():
    corpus = corpus_of(train=1200)
    task = task_of(corpus=corpus, num_steps=30, random_lengths=True)
    assert len(set(task.lengths)) > 1
    text = np.concatenate([batch.targets for batch in task.train_batches(0)], axis=1)
    whole = corpus.train[: 3 * 400].reshape(3, 400)
    for epoch in range(3):
        batches = list(task.train_batches(epoch))
        assert len(batches) == task.num_batches
        np.testing.assert_array_equal(np.concatenate([b.targets for b in batches], axis=1), text)
        assert sorted(b.targets.shape[1] for b in batches) == sorted(task.lengths)
    np.testing.assert_array_equal(text, whole[:, : text.shape[1]])
    assert [b.targets.shape[1] for b in task.train_batches(1)] != task.lengths


def test_words_and_weights_are_dropped_for_all_streams_alike():
    dropout = LanguageModelDropout(words=0.5, weights=0.5)
    task = task_of("lstm", dropout=dropout)
    params = task.init(jax.random.key(0))
    model = nnx.merge(task.graphdef, params)
    # The same text in every stream: whatever is dropped alike leaves them alike.
    tokens = jnp.tile(jnp.arange(5)[None], (3, 1))
    carry = model.initialize_carry(3, jax.random.key(3))
    keys = jax.random.split(jax.random.key(1), 3)
    read = partial(model, tokens, initial_carry=carry)
    found = [read(rngs=keys, shared_key=jax.random.key(k)).logits for k in (7, 8)]
    for logits in found:
        np.testing.assert_array_equal(logits, jnp.tile(logits[:1], (3, 1, 1)))
    assert not np.allclose(found[0], found[1])
    # Without a key of their own they are dropped with the first stream's; in evaluation not at all.
    np.testing.assert_array_equal(read(rngs=keys).logits, read(rngs=jnp.repeat(keys[:1], 3)).logits)
    assert not np.allclose(read(rngs=keys).logits, read(deterministic=True).logits)
    with pytest.raises(UserError, match="dropped words and weights need rngs="):
        read()


@pytest.mark.parametrize("tied", [False, True])
def test_tied_weights_are_one_table(tied):
    task = task_of("lstm", tied=tied)
    params = task.init(jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    V, D = len(task.corpus.vocabulary), 8
    assert count == V * D + 2 * 4 * (2 * D * D + D) + V + (0 if tied else V * D)
    if tied:
        model = nnx.merge(task.graphdef, params)
        output = model(jnp.array([[1, 2, 3]]))
        table = np.asarray(model.embedding.embedding[...], float)
        expected = np.asarray(output.states, float) @ table.T + np.asarray(model.bias[...])
        np.testing.assert_allclose(output.logits, expected, rtol=1e-4, atol=1e-5)


def test_impossible_embeddings_are_refused():
    with pytest.raises(UserError, match="size"):
        task_of("lstm", tied=True, embedding_features=5)
    with pytest.raises(UserError, match="table of words"):
        task_of("lstm", tied=True, character_options=CHARACTERS)
    with pytest.raises(UserError, match="vimco"):
        task_of(objective=AgentObjective(estimator="vimco", rollouts=2, entropy="exact"))
    with pytest.raises(UserError, match="words"):
        LanguageModelDropout(words=1.0)


CHARACTERS = dict(char_features=3, widths=(1, 2), maps=(4, 6), num_highway=1)


@pytest.mark.slow
def test_a_model_of_characters_trains_and_is_evaluated():
    task = task_of(character_options=CHARACTERS, activation_coef=0.1)
    params = task.init(jax.random.key(0))
    carry = task.initial_carry(params, jax.random.key(3))
    batch = train_batches(task)[0]
    grads = jax.grad(lambda p: task.loss(p, carry, batch, jax.random.key(1), of_model(task.stage(0), 0))[0])(
        params
    )
    shapes = [leaf.shape for leaf in jax.tree.leaves(grads)]
    assert (len(WORDS) + 3, 3) in shapes  # letters, <eos> as one symbol, and two marks; no row for padding
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))
    # Evaluation looks words up in a table, made once; the model reads characters.
    found = task.evaluate(one_seed(params), "dev", KEYS, batch_size=1)["dev_perplexity"]
    expected = np.exp(long_pass_of(task)(params, *stream_of(task, "valid")).mean())
    np.testing.assert_allclose(found, [expected], rtol=1e-4)


@pytest.mark.parametrize("model", ["lstm", "dynamic:5"])
def test_size_of_the_papers_model(model):
    vocabulary = Vocabulary((*(f"w{i}" for i in range(9_999)), "<eos>"))
    tokens = np.zeros(40, np.int32)
    corpus = LanguageCorpus("sized", tokens, tokens, tokens, vocabulary, "here")
    task = task_of(model, corpus, features=650, cell_options=({}, {"agent_features": 50}))
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    count = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))

    embedding = 10_000 * 650
    layer = 4 * (650 * 650 + 650 * 650 + 650)
    softmax = 650 * 10_000 + 10_000
    agent = (650 + 650) * 50 + 50 + 50 * 5 + 5 if model == "dynamic:5" else 0
    assert count == embedding + 2 * layer + softmax + agent
    assert round(count / 1e6, 1) == 19.8


@pytest.mark.parametrize("model", ["lstm", "fixed:2", "attention:3", "dynamic:3"])
def test_gradients_through_carried_segments_are_those_of_one_long_pass(model):
    # The buffer of K states is part of the carry: what enters a segment from before it has its gradient too.
    task = task_of(model)
    params = task.init(jax.random.key(0))
    tokens, targets = (jnp.asarray(leaf[:20].reshape(2, 10), jnp.int32) for leaf in stream_of(task, "train"))
    pieces = [(0, 1), (1, 3), (3, 10)]

    def loss(params, pieces):
        model = nnx.merge(task.graphdef, params)
        carry, total = model.initialize_carry(2, jax.random.key(3)), 0.0
        for start, end in pieces:
            carry, output = model(tokens[:, start:end], initial_carry=carry, return_carry=True)
            log_probs = jax.nn.log_softmax(output.logits)
            total = total - jnp.take_along_axis(log_probs, targets[:, start:end, None], axis=-1).sum()
            total = total + sum((d.log_prob * 0.3).sum() for d in output.decisions)
        return total

    cut, whole = (jax.jit(jax.grad(partial(loss, pieces=parts)))(params) for parts in (pieces, [(0, 10)]))
    for found, expected in zip(jax.tree.leaves(cut), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert any(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(whole))
