"""Check the loss of copied words with other probabilities in place of π, against loops."""

import functools
import itertools

import jax
import numpy as np
import pytest
from compiled import compiled
from learners import drawn_params, language_modelling, letters, one_seed
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.nn.initializers import uniform
from dynskip_jax.tasks.interventions import copied_words

ROWS, K = 3, 4
SKIPS = {
    "dynamic": F.Dynamic(K, 0.0, agent="content"),
    "dynamic, λ": F.Dynamic(K, 0.7, agent="content"),
    "attention": F.Attention(K, 0.5, agent="content"),
}


def copying(skip):
    """Return a learner of models with the time skip `skip`, whose π is far from uniform."""
    sure = uniform(4.0)
    cell = dict(kernel_init=sure, recurrent_kernel_init=sure, agent_kernel_init=sure)
    return language_modelling(
        letters(6), skips=("lstm", skip), model={"copy": "expected"}, init_scale=4.0, cell=cell
    )


def whole_streams(learner, params, policy):
    """Read each stream of dev in one piece; return its copies, softmax, targets and mask."""
    length = -(-len(learner.task.tokens("dev")) // ROWS)
    (batch,) = learner.task.windows("dev", ROWS, length)
    model = learner.model(params)
    model.eval()
    carry = model.initialize_carry(ROWS, jax.random.key(0))
    output = compiled(model)(batch.inputs, initial_carry=carry, policy=policy, rngs=jax.random.key(1))
    copies = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), output.copies)
    softmax = np.asarray(jax.nn.softmax(output.of_softmax), np.float64)
    mask = np.ones(batch.targets.shape, bool) if batch.mask is None else np.asarray(batch.mask)
    return copies, softmax, np.asarray(batch.targets), mask


def nll(weights, copies, softmax, targets):
    """Compute -log Σ_k π_k p_k of each target by loops, with `weights` as π."""
    found = np.zeros(targets.shape)
    for b, t in np.ndindex(targets.shape):
        p, word = 0.0, targets[b, t]
        g = 1 / (1 + np.exp(-copies.gates[b, t, 0]))
        for k in range(K):
            copied = copies.words[b, t, k]
            of_k = softmax[b, t, word]
            if copied != F.NO_WORD:
                of_k = (1 - g) * of_k + g * (copied == word)
            p += weights[b, t, k] * of_k
        found[b, t] = -np.log(p)
    return found


@functools.cache
def read(name):
    """Return the learner, the results of `copied_words`, the streams of two models, and the perplexity."""
    learner = copying(SKIPS[name])
    params, other = (drawn_params(learner, seed, scale=4.0) for seed in (3, 4))
    policy = F.Policy("greedy")
    found = list(copied_words(learner, params, policy, "dev", rows=ROWS, others=[other], window=5))
    streams = [whole_streams(learner, each, policy) for each in (params, other)]
    evaluated = learner.evaluate(one_seed(params), "dev", jax.random.key(0)[None], batch_size=ROWS)
    return learner, found, *streams, evaluated["dev_perplexity"][0]


@pytest.fixture(scope="module")
def readings():
    """Return `read`, with the result of the dynamic skip already cached."""
    read("dynamic")
    return read


@pytest.mark.parametrize("name", and_slow(SKIPS, lambda name: name == "dynamic"))
def test_every_way_by_loops(name, readings):
    learner, found, own, (of_other, *_), perplexity = readings(name)
    counts, losses, of_each, likeliest = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
    copies, softmax, targets, mask = own
    shown = slice(0, targets.shape[1])
    np.testing.assert_array_equal(counts[:, shown], mask)
    assert counts.sum() == len(learner.task.tokens("dev"))

    def check(values, weights):
        expected = nll(weights, copies, softmax, targets)
        np.testing.assert_allclose(values[:, shown][mask], expected[mask], rtol=1e-4, atol=1e-5)

    even = np.full_like(copies.weights, 1 / K)
    ways = [copies.weights, even, np.roll(copies.weights, -1, axis=0), of_other.weights]
    for way, weights in enumerate(ways):
        check(losses[..., way], weights)
    one = np.eye(K)
    for k in range(K):
        check(of_each[..., k], np.broadcast_to(one[k], copies.weights.shape))
    check(likeliest, one[copies.weights.argmax(axis=-1)])
    # The alternatives differ, and the first one equals the evaluation.
    means = [losses[..., way][counts].mean() for way in range(len(ways))]
    assert min(abs(one - other) for one, other in itertools.combinations(means, 2)) > 1e-3
    np.testing.assert_allclose(np.exp(losses[..., 0][counts].mean()), perplexity, rtol=1e-4)


def test_a_single_row_has_no_other():
    learner = copying(SKIPS["dynamic"])
    params = drawn_params(learner)
    with pytest.raises(UserError, match="at least 2 rows, got 1"):
        next(copied_words(learner, params, F.Policy("greedy"), "dev", rows=1))
