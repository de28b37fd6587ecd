"""Check ratings of pairs (loss and scores, against NumPy and by hand) and the penalties of classifiers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.data import Examples
from dynskip_jax.data.batches import Batch
from dynskip_jax.models import SentencePairModel, SequenceClassifier
from dynskip_jax.tasks import Classification, SentencePairs

RNG = np.random.default_rng(0)
LENGTHS = np.array([5, 3, 6, 4], np.int32)
MARKS = (np.arange(6)[None, :] >= 2).astype(np.int32).repeat(4, axis=0)
RATINGS = np.array([1.0, 4.6, 3.0, 2.2], np.float32)
EXAMPLES = Examples(
    {"tokens": RNG.integers(5, size=(4, 6)).astype(np.int32), "sentences": MARKS},
    RATINGS,
    LENGTHS,
    buckets=(4, 6),
)


def make(rngs):
    return SentencePairModel(nnx.Embed(5, 3, rngs=rngs), 4, 5, [F.Dynamic(2)], rngs=rngs)


def test_the_loss_is_the_divergence_from_the_two_points():
    task = SentencePairs({}, make)
    log_probs = np.log(RNG.dirichlet(np.ones(5), size=4))
    scored = task.compute_loss(jnp.asarray(log_probs), Batch(None, jnp.asarray(RATINGS)))
    for row, y in enumerate(RATINGS.astype(float)):
        low = int(np.floor(y))
        points = {low: low + 1 - y, low + 1: y - low}
        kl = sum(p * (np.log(p) - log_probs[row, r - 1]) for r, p in points.items() if p > 0)
        np.testing.assert_allclose(scored.nll[row], kl, rtol=1e-4)
    said = task.predict(jnp.asarray(log_probs), Batch(None, None))
    np.testing.assert_allclose(said, np.exp(log_probs) @ np.arange(1, 6), rtol=1e-5)
    slope = jax.grad(lambda logits: task.compute_loss(logits, Batch(None, jnp.asarray(RATINGS))).nll.sum())
    assert np.isfinite(slope(jnp.asarray(log_probs))).all()


def test_scores_by_hand():
    task = SentencePairs({"dev": EXAMPLES}, make)
    said = np.array([2.0, 4.0, 4.0, 1.0])
    scores = task.host_metrics("dev", list(said))
    np.testing.assert_allclose(scores["pearson"], np.corrcoef(said, RATINGS)[0, 1], rtol=1e-6)
    # Ranks 2, 3.5, 3.5, 1 and 1, 4, 3, 2.
    ranks = np.corrcoef([2, 3.5, 3.5, 1], [1, 4, 3, 2])[0, 1]
    np.testing.assert_allclose(scores["spearman"], ranks, rtol=1e-6)
    np.testing.assert_allclose(scores["mse"], ((said - RATINGS) ** 2).mean(), rtol=1e-6)
    alike = task.host_metrics("dev", [3.0] * 4)
    assert (alike["pearson"], alike["spearman"]) == (0, 0)


@pytest.mark.parametrize("coefs", [(2.0, 0.0), (0.0, 3.0)], ids=["activation", "temporal"])
def test_penalties_are_means_over_the_steps_of_sequences(coefs):
    def classifier(rngs):
        return SequenceClassifier(5, 4, 2, [F.Previous()], rngs=rngs)

    task = Classification({}, classifier, activation_coef=coefs[0], temporal_coef=coefs[1])
    model = nnx.jit(classifier)(nnx.Rngs(0))
    mask = np.array([True, True, True, False])  # the last row fills the batch
    tokens = jnp.asarray(EXAMPLES.inputs["tokens"])
    batch = Batch(tokens, None, jnp.asarray(mask), seq_lengths=jnp.asarray(LENGTHS))
    how = dict(shared_key=None, policy=None, rngs=None, deterministic=True)

    @nnx.jit
    def both(model):
        h = model.stack(jax.nn.one_hot(tokens, 5), seq_lengths=jnp.asarray(LENGTHS), deterministic=True).h
        penalties = task.forward(model, batch, (), **how).penalties
        return sum(mean for mean, _ in penalties), h

    penalty, h = both(model)
    h = np.asarray(h)
    rows = [own[:length].astype(float) for own, length in zip(h[mask], LENGTHS[mask], strict=True)]
    squares = np.concatenate([own.ravel() ** 2 for own in rows])
    changes = np.concatenate([np.diff(own, axis=0).ravel() ** 2 for own in rows])
    np.testing.assert_allclose(penalty, coefs[0] * squares.mean() + coefs[1] * changes.mean(), rtol=1e-5)
