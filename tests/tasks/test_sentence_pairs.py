"""Check ratings of pairs (loss and scores, against NumPy and by hand) and the penalties of classifiers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from flax import nnx
from learners import drawn_params

from dynskip_jax import functional as F
from dynskip_jax.data import Examples
from dynskip_jax.data.batches import Batch
from dynskip_jax.errors import UserError
from dynskip_jax.models import SentencePairModel, SequenceClassifier
from dynskip_jax.tasks import Classification, Learner, SentencePairs
from dynskip_jax.tasks.interventions import single_interventions
from dynskip_jax.training.agent_settings import AgentSettings

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


def test_ratings_refuse_vimco():
    """The mean of exp(-KL) over rollouts is not the likelihood of the averaged prediction."""
    objective = AgentSettings(estimator="vimco", rollouts=2, entropy_coef=0.0)
    with pytest.raises(UserError, match=r"^the estimator vimco .*: choose reinforce$"):
        Learner(SentencePairs({}, make), objective=objective)


@pytest.mark.slow
def test_a_task_has_the_host_metrics_that_its_score_needs():
    """Pearson's r is not a mean, so without host metrics no epoch of a rating task could be selected."""
    assert SentencePairs({"dev": EXAMPLES}, make).has_host_metrics
    assert not Classification({}, make).has_host_metrics
    assert Classification({}, make, class_names=("a", "b"), has_macro_f1=True).has_host_metrics
    learner = Learner(SentencePairs({"dev": EXAMPLES}, make))
    params = jax.tree.map(lambda leaf: leaf[None], drawn_params(learner))
    assert learner.monitor in learner.evaluate(params, "dev", jax.random.key(0)[None])


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


@pytest.mark.slow
def test_pairs_are_learnt_and_scored_in_their_order():
    task = SentencePairs({"train": EXAMPLES, "dev": EXAMPLES}, make, batch_size=2, evaluation_rows=2)
    learner = Learner(task, (0,))
    key = jax.random.key(0)
    params = learner.init(key)
    batch = jax.tree.map(lambda leaf: leaf[0], next(learner.train_batches(0)))
    scheduled = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], learner.scheduled(0))

    def loss(params):
        return learner.loss(params, learner.initial_carry(params, key), batch, key, scheduled)[0]

    grads = nnx.to_pure_dict(jax.jit(jax.grad(loss))(params))
    for part in ("embedding", "product", "difference", "softmax"):
        assert any(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads[part]))
    assert np.abs(grads["stack"]["cells"][0]["agent"]["w_out"]).max() > 0
    metrics = learner.evaluate(jax.tree.map(lambda leaf: leaf[None], params), "dev", key[None])
    model = learner.model(params)
    model.eval()
    logits = model(
        jnp.asarray(EXAMPLES.inputs["tokens"]), jnp.asarray(MARKS), seq_lengths=jnp.asarray(LENGTHS)
    ).logits
    said = np.asarray(jax.nn.softmax(logits)) @ np.arange(1, 6)
    np.testing.assert_allclose(metrics["dev_mse"], [((said - RATINGS) ** 2).mean()], rtol=1e-5)
    np.testing.assert_allclose(metrics["dev_pearson"], [np.corrcoef(said, RATINGS)[0, 1]], rtol=1e-3)


@pytest.mark.slow
def test_the_last_choice_of_a_pair():
    learner = Learner(SentencePairs({"dev": EXAMPLES}, make, evaluation_rows=2))
    params = drawn_params(learner)
    model, policy = learner.model(params), F.Policy("greedy")
    (piece, *_) = single_interventions(learner, params, policy, "dev", layer=0, rows=4)
    for row, number in enumerate([1, 3]):  # the first bucket
        length = int(LENGTHS[number])
        inputs = (
            jnp.asarray(EXAMPLES.inputs[name][number : number + 1, :length])
            for name in ("tokens", "sentences")
        )
        inputs, actions = tuple(inputs), np.asarray(piece.taken[row : row + 1, :length])
        for k in (1, 2):
            actions = np.concatenate([actions[:, :-1], [[k]]], axis=1)
            logits = compiled(model)(
                *inputs, actions=[jnp.asarray(actions)], policy=policy, deterministic=True
            ).logits
            scored = learner.task.compute_loss(
                jax.nn.log_softmax(logits), Batch(None, jnp.asarray(RATINGS[number : number + 1]))
            )
            np.testing.assert_allclose(piece.losses[row, length - 1, k - 1], scored.nll[0], rtol=1e-5)


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
        penalties = task.forward(model, batch, (), **how).step_penalties
        return sum(penalty.mean for penalty in penalties), h

    penalty, h = both(model)
    h = np.asarray(h)
    rows = [own[:length].astype(float) for own, length in zip(h[mask], LENGTHS[mask], strict=True)]
    squares = np.concatenate([own.ravel() ** 2 for own in rows])
    changes = np.concatenate([np.diff(own, axis=0).ravel() ** 2 for own in rows])
    np.testing.assert_allclose(penalty, coefs[0] * squares.mean() + coefs[1] * changes.mean(), rtol=1e-5)
