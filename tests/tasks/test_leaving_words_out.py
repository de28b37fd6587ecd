"""Check how tasks train and score Skip RNN and LSTM-Jump: words read, their cost, reinforced choices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from flax import nnx
from learners import drawn_params
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.analysis.reading import connections
from dynskip_jax.data import Examples
from dynskip_jax.models import SequenceClassifier
from dynskip_jax.tasks import Classification, Learner
from dynskip_jax.training.agent_settings import AgentSettings

RNG = np.random.default_rng(0)
LENGTHS = RNG.integers(2, 10, size=11).astype(np.int32)
EXAMPLES = Examples(
    RNG.integers(4, size=(11, 9)).astype(np.int32),
    RNG.integers(3, size=11).astype(np.int32),
    LENGTHS,
    buckets=(5, 9),
)
SKIPS = {
    "skip-rnn": F.SkipRNN(update_bias=-1.0),
    "lstm-jump": F.LSTMJump(max_jump=3, read_steps=1, max_jumps=2),
}
KEY = jax.random.key(3)


def learner_of(skip, **options):
    def make(rngs):
        return SequenceClassifier(4, 5, 3, [F.Previous(), skip], rngs=rngs)

    dev = dataclasses.replace(EXAMPLES, buckets=())
    task = Classification({"train": EXAMPLES, "dev": dev}, make, batch_size=4, evaluation_rows=4)
    return Learner(task, (0,), **options)


def one(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], tree)


def gradient(learner, params, batch, scheduled):
    def loss(params):
        return learner.loss(params, learner.initial_carry(params, KEY), batch, KEY, scheduled)[0]

    return nnx.to_pure_dict(jax.jit(jax.grad(loss))(params))


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("name", and_slow(SKIPS, lambda name: name == "skip-rnn"))
def test_the_share_of_words_read_is_counted_over_words(name):
    learner = learner_of(SKIPS[name])
    params = drawn_params(learner, scale=3.0)
    metrics = learner.evaluate(jax.tree.map(lambda leaf: leaf[None], params), "dev", KEY[None])
    model = learner.model(params)
    model.eval()
    output = compiled(model)(jnp.asarray(EXAMPLES.inputs), seq_lengths=jnp.asarray(LENGTHS))
    before_end = np.arange(9) < LENGTHS[:, None]
    read = np.asarray(output.decisions[1].update)[before_end]
    assert set(read) == {0, 1}
    np.testing.assert_allclose(metrics["dev_read_fraction_2"], [read.mean()], rtol=1e-6)
    np.testing.assert_allclose(metrics["dev_read_fraction"], [read.mean()], rtol=1e-6)
    assert "dev_read_fraction_1" not in metrics  # the first layer reads everything


@pytest.mark.slow
def test_the_cost_of_updates_is_in_the_gradient_of_skip_rnn():
    """The loss includes Campos et al. (2018), Eq. 6: cost times number of words read, averaged over rows."""
    free, paid = (learner_of(SKIPS["skip-rnn"], objective=AgentSettings(update_cost=c)) for c in (0.0, 0.25))
    params = free.init(KEY)
    # This batch has rows that only fill it.
    batch = next(batch for batch in map(one, free.train_batches(0)) if not batch.mask.all())
    steps = np.arange(batch.inputs.shape[1]) < np.asarray(batch.seq_lengths)[:, None]
    counts = steps & np.asarray(batch.mask)[:, None]

    def reads(params):
        output = free.model(params)(
            jnp.asarray(batch.inputs), seq_lengths=jnp.asarray(batch.seq_lengths), deterministic=True
        )
        return jnp.where(counts, output.decisions[1].update, 0).sum() / len(batch.mask)

    expected = leaves(nnx.to_pure_dict(jax.jit(jax.grad(reads))(params)))
    a, b = (leaves(gradient(own, params, batch, one(own.scheduled(0)))) for own in (free, paid))
    assert max(np.abs(leaf).max() for leaf in expected) > 1e-3
    for without, with_cost, cost in zip(a, b, expected, strict=True):
        np.testing.assert_allclose(with_cost - without, 0.25 * cost, rtol=1e-3, atol=1e-6)


def test_connections_lead_from_each_word_read_to_the_one_before():
    zeros = jnp.zeros(6)
    update = jnp.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    decision = F.Decision(jnp.ones(6, jnp.int32), zeros, zeros, update)
    np.testing.assert_array_equal(connections(decision), [1, 0, 0, 3, 1, 0])
    np.testing.assert_array_equal(connections(decision, reverse=True), [3, 0, 0, 1, 2, 0])
    late = decision._replace(update=jnp.array([0.0, 1.0, 0.0, 0.0, 0.0, 1.0]))
    np.testing.assert_array_equal(connections(late), [0, 2, 0, 0, 0, 4])
    chosen = F.Decision(jnp.array([1, 3, 2]), zeros[:3], zeros[:3])
    np.testing.assert_array_equal(connections(chosen), [1, 3, 2])
