"""Check tagging as a task: losses, averages and scores against enumeration and single sentences."""

import dataclasses
import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from learners import drawn_params

from dynskip_jax import functional as F
from dynskip_jax.data.batches import Batch
from dynskip_jax.data.tag_schemes import allowed_transitions, first_problem
from dynskip_jax.data.tagged import TaggedSentence, tagged_examples
from dynskip_jax.data.vocabularies import tagger_vocabulary
from dynskip_jax.models import Tagger
from dynskip_jax.nn import CharCNN
from dynskip_jax.tasks import Learner, Tagging
from dynskip_jax.tasks.tagging import OfTags

TAGS = ("O", "B-X", "I-X", "E-X", "S-X")
RNG = np.random.default_rng(0)
GREEDY = F.Policy("greedy")
HOW = dict(policy=GREEDY, rngs=jax.random.key(0), shared_key=None)
SENTENCES = [
    TaggedSentence(RNG.choice(["a", "b", "cc", "Dd", "e"], size=len(tags)).tolist(), tags, [])
    for tags in map(
        str.split, ("S-X", "O B-X E-X", "B-X I-X E-X O S-X", "O S-X O B-X E-X O O O", "O O")
    )
]
VOCABULARY = tagger_vocabulary([s.words for s in SENTENCES], TAGS, word_length=4)
IDS = [[TAGS.index(tag) for tag in s.tags] for s in SENTENCES]


def task_of(output="crf", **options):
    def make(rngs):
        characters = [CharCNN(VOCABULARY.num_characters, char_features=2, filters=3, rngs=rngs)]
        allowed = allowed_transitions(TAGS, "BIOES") if output == "crf" else None
        sizes = dict(embedding_features=3, characters=characters, allowed=allowed)
        skips = [F.parse_time_skip("dynamic:3")]
        return Tagger(len(VOCABULARY.words), len(TAGS), 4, skips, output=output, **sizes, rngs=rngs)

    split = tagged_examples([TaggedSentence(s.words, [], []) for s in SENTENCES], IDS, VOCABULARY)
    split = dataclasses.replace(split, buckets=(8, 16))
    options = dict(scheme="BIOES", gold={"dev": [s.tags for s in SENTENCES]}) | options
    options |= dict(tags=TAGS, batch_size=4, evaluation_rows=5)
    return Tagging({"train": split, "dev": split}, make, **options)


def model_of(task):
    return Learner(task).model(drawn_params(Learner(task), seed=1))


def one_batch():
    """Return a batch of all sentences."""
    examples = task_of().splits["train"]
    return jax.tree.map(
        jnp.asarray, examples.batch(np.arange(len(examples)), None, 1)._replace(index=None)
    )


def test_a_crf_can_be_trained_without_decoding():
    """Training then counts only the loss; evaluation still counts the accuracies."""
    batch, task = one_batch(), task_of(decode_in_training=False)

    def counted(deterministic):
        model = nnx.eval_shape(lambda: task.make_model(nnx.Rngs(0)))
        read = nnx.eval_shape(
            lambda m: task.forward(m, batch, (), deterministic=deterministic, **HOW), model
        )
        return list(
            jax.eval_shape(lambda read: task.compute_loss(read, batch), read.log_probs).counted
        )

    assert counted(False) == ["nll"] and counted(True) == ["accuracy", "nll", "sentence_accuracy"]
    assert task.primary_metric == "nll"


def test_a_sentence_is_right_if_its_own_words_are_and_rows_that_fill_a_batch_do_not_count():
    best = np.array([[1, 2, 0, 0], [1, 2, 3, 4], [0, 2, 3, 0], [1, 1, 1, 1]], np.int32)
    targets = np.array([[1, 2, 4, 4], [1, 2, 3, 4], [1, 2, 3, 4], [1, 1, 1, 1]], np.int32)
    lengths, mask = np.array([2, 4, 3, 4], np.int32), np.array([True, True, True, False])
    marginals = np.full((4, 4, len(TAGS)), -1.0, np.float32)
    task, batch = Tagging({}, None, tags=TAGS), Batch(None, targets, mask, lengths)
    scored = task.compute_loss(OfTags(np.full(4, -1.0, np.float32), marginals, best), batch)
    right = [[1, 1, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1]]  # 0 past the end
    assert np.asarray(scored.counted["accuracy"]).tolist() == right
    assert np.asarray(scored.counted["sentence_accuracy"]).tolist() == [1, 1, 0, 1]
    learner = Learner.__new__(Learner)
    learner.skips = (F.Previous(),)
    sums = learner._sums(
        scored, batch._replace(inputs=targets), [SimpleNamespace(action=targets, update=None)]
    )
    sums = {name: (float(mean.total), float(mean.count)) for name, mean in sums.items()}
    assert (
        sums["sentence_accuracy"] == (2, 3) and sums["accuracy"] == (8, 9) and sums["nll"] == (3, 3)
    )


@pytest.mark.slow
def test_what_a_crf_says_of_three_words_by_enumeration():
    task = task_of(rewards_words=True)
    batch = jax.tree.map(lambda leaf: leaf[1:2], one_batch())

    @nnx.jit
    def of(model):
        read = task.forward(model, batch, (), deterministic=True, **HOW)
        out = model(batch.inputs, seq_lengths=batch.seq_lengths, deterministic=True)
        scored, best = task.compute_loss(read.log_probs, batch), task.predict(read.log_probs, batch)
        return (*out.crf, out.emissions[0]), scored, best

    parts, scored, predicted = jax.device_get(of(model_of(task)))
    t, s, e, emissions = (np.asarray(part, np.float64) for part in parts)
    scores = {
        tags: s[tags[0]]
        + e[tags[-1]]
        + sum(emissions[i, tag] for i, tag in enumerate(tags))
        + sum(t[a, b] for a, b in itertools.pairwise(tags))
        for tags in itertools.product(range(len(TAGS)), repeat=3)
    }
    total = np.logaddexp.reduce(list(scores.values()))
    truth, best = tuple(IDS[1]), max(scores, key=scores.get)
    np.testing.assert_allclose(scored.nll[0], total - scores[truth], rtol=1e-5)
    assert tuple(predicted[0, :3].tolist()) == best
    for i in range(3):
        p = sum(np.exp(score - total) for tags, score in scores.items() if tags[i] == truth[i])
        np.testing.assert_allclose(scored.rewarded[0, i], np.log(p), rtol=1e-4, atol=1e-6)
    assert not np.asarray(scored.rewarded)[0, 3:].any()
    assert np.asarray(scored.correct)[0, :3].tolist() == [
        a == b for a, b in zip(best, truth, strict=True)
    ]


def test_samples_are_averaged_into_the_allowed_sequence_with_most_right_tags():
    task, rng, rows = task_of(), np.random.default_rng(3), 20
    lengths = np.resize([3, 2], rows).astype(np.int32)
    p = rng.dirichlet(np.ones(5) / 2, size=(rows, 2, 3))  # rows, samples, time
    target = rng.uniform(-3, -1, size=(rows, 2))
    of_tags = np.log(p).reshape(2 * rows, 3, 5).astype(np.float32)
    leaves = (target.reshape(2 * rows).astype(np.float32), of_tags)
    batch = Batch(None, None, seq_lengths=jnp.asarray(lengths))
    average = jax.jit(lambda log_probs: task.average(log_probs, batch, 2))
    found = average(OfTags(*leaves, jnp.zeros((2 * rows, 3), jnp.int32)))
    np.testing.assert_allclose(found.target, np.log(np.exp(target).mean(axis=1)), rtol=1e-5)
    np.testing.assert_allclose(np.exp(found.marginals), p.mean(axis=1), rtol=1e-4, atol=1e-7)
    for row, length in enumerate(lengths):
        means = p[row].mean(axis=0)
        right = {
            tags: sum(means[t, tag] for t, tag in enumerate(tags))
            for tags in itertools.product(range(5), repeat=int(length))
            if first_problem([TAGS[tag] for tag in tags], "BIOES") is None
        }
        assert tuple(np.asarray(found.best)[row, :length].tolist()) == max(right, key=right.get)


def test_a_tag_that_stands_for_unknown_ones_is_never_predicted():
    task = task_of("softmax", scheme=None, unknown_tag=2)
    model, batch = model_of(task), one_batch()
    model.allowed = None
    model.emissions.bias[...] = model.emissions.bias[...].at[2].set(50.0)
    read = nnx.jit(lambda m: task.forward(m, batch, (), deterministic=True, **HOW).log_probs)(model)
    again = jax.tree.map(lambda leaf: jnp.repeat(leaf, 2, axis=0), read)
    averaged = jax.jit(lambda again: task.average(again, batch, 2))(again)
    inside = np.arange(batch.targets.shape[1]) < np.asarray(batch.seq_lengths)[:, None]
    np.testing.assert_allclose(averaged.target, read.target, rtol=1e-5)
    for found in (read, averaged):
        assert (np.asarray(found.best)[inside] != 2).all()
    assert task.score == "accuracy" and task.host_metrics("dev", []) == {}
