"""Check classifiers' penalties, ratings of pairs, and words that Skip RNN and LSTM-Jump leave
out.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from flax import nnx
from learners import classification, drawn_params, together
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.data import Examples
from dynskip_jax.data.batches import Batch
from dynskip_jax.tasks import Classification, SentencePairs

RNG = np.random.default_rng(0)
LENGTHS = RNG.integers(2, 10, size=11).astype(np.int32)
INPUTS = RNG.integers(4, size=(11, 9)).astype(np.int32)
EXAMPLES = Examples(INPUTS, RNG.integers(3, size=11).astype(np.int32), LENGTHS, buckets=(5, 9))
INSIDE = np.arange(9) < LENGTHS[:, None]
KEY = jax.random.key(3)


def test_penalties_are_means_over_the_steps_of_sequences():
    learner = classification({}, skip="lstm")
    model = learner.model(drawn_params(learner))
    task = Classification({}, None, activation_coefs=(2.0, 3.0))
    mask = np.array([True] * 10 + [False])  # the last row fills the batch
    batch = Batch(jnp.asarray(INPUTS), None, jnp.asarray(mask), seq_lengths=jnp.asarray(LENGTHS))
    how = dict(shared_key=None, policy=None, rngs=None, deterministic=True)

    @nnx.jit
    def both(model):
        h = model(INPUTS, seq_lengths=LENGTHS, deterministic=True).states
        return sum(mean for mean, _ in task.forward(model, batch, (), **how).penalties), h

    penalty, h = both(model)
    rows = [
        np.asarray(own)[:length].astype(float)
        for own, length in zip(h[:10], LENGTHS[:10], strict=True)
    ]
    squares = np.concatenate(rows) ** 2
    changes = np.concatenate([np.diff(own, axis=0) for own in rows]) ** 2
    np.testing.assert_allclose(penalty, 2 * squares.mean() + 3 * changes.mean(), rtol=1e-5)


RATINGS = np.array([1.0, 4.6, 5.0, 2.2], np.float32)


def test_the_loss_of_a_rating_is_the_divergence_from_the_two_points():
    task = SentencePairs({}, None)
    log_probs = np.log(RNG.dirichlet(np.ones(5), size=4))
    scored = task.compute_loss(jnp.asarray(log_probs), Batch(None, jnp.asarray(RATINGS)))
    for row, y in enumerate(RATINGS.astype(float)):
        low = int(np.floor(y))
        points = {low: low + 1 - y, low + 1: y - low}
        kl = sum(p * (np.log(p) - log_probs[row, r - 1]) for r, p in points.items() if p > 0)
        np.testing.assert_allclose(scored.nll[row], kl, rtol=1e-4)
    said = task.predict(jnp.asarray(log_probs), Batch(None, None))
    np.testing.assert_allclose(said, np.exp(log_probs) @ np.arange(1, 6), rtol=1e-5)


def test_scores_of_ratings_by_hand():
    task = SentencePairs({"dev": Examples(np.zeros((4, 1), np.int32), RATINGS)}, None)
    said = np.array([2.0, 4.0, 4.0, 1.0])
    scores = task.host_metrics("dev", list(said))
    np.testing.assert_allclose(scores["pearson"], np.corrcoef(said, RATINGS)[0, 1], rtol=1e-6)
    ranks = np.corrcoef([2, 3.5, 3.5, 1], [1, 4, 3, 2])[0, 1]
    np.testing.assert_allclose(scores["spearman"], ranks, rtol=1e-6)
    np.testing.assert_allclose(scores["mse"], ((said - RATINGS) ** 2).mean(), rtol=1e-6)
    assert task.host_metrics("dev", [3.0] * 4)["pearson"] == 0


SKIPS = {
    "skip-rnn": F.SkipRNN(update_bias=-1.0),
    "lstm-jump": F.LSTMJump(max_jump=3, read_steps=1, max_jumps=2),
}


@pytest.mark.parametrize("name", and_slow(SKIPS, lambda name: name == "skip-rnn"))
def test_the_share_of_words_read_is_counted_over_words(name):
    learner = classification({"dev": EXAMPLES}, skip=SKIPS[name], evaluation_rows=4)
    params = drawn_params(learner, scale=3.0)
    metrics = learner.evaluate(together(params), "dev", KEY[None])
    output = compiled(learner.model(params))(INPUTS, seq_lengths=LENGTHS, policy=F.Policy("greedy"))
    read = np.asarray(output.decisions[0].update)[INSIDE]
    assert set(read) == {0, 1}
    for metric in ("dev_read_fraction_1", "dev_read_fraction"):
        np.testing.assert_allclose(metrics[metric], [read.mean()], rtol=1e-6)
