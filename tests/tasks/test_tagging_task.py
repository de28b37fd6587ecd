"""Check tagging as a task: losses, rewards, averages, scores, against enumeration and single sentences."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from learners import drawn_params, together
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.data.batches import Batch
from dynskip_jax.data.tag_schemes import allowed_transitions, first_problem
from dynskip_jax.data.tagged import tagged_examples
from dynskip_jax.data.tagged_files import TaggedSentence
from dynskip_jax.data.vocabularies import tagger_vocabulary
from dynskip_jax.models import Tagger
from dynskip_jax.nn import CharCNN
from dynskip_jax.tasks import Learner, Tagging
from dynskip_jax.tasks.label_score import score_labels
from dynskip_jax.tasks.tagging import OfTags
from dynskip_jax.training.agent_settings import AgentSettings

TAGS = ("O", "B-X", "I-X", "E-X", "S-X")
RNG = np.random.default_rng(0)
PIECES = [["O"], ["S-X"], ["B-X", "E-X"], ["B-X", "I-X", "E-X"]]


def sentence(size):
    tags = []
    while len(tags) < size:
        piece = PIECES[RNG.integers(4)]
        tags += piece if len(tags) + len(piece) <= size else ["O"]
    return RNG.choice(["a", "b", "cc", "Dd", "e"], size=size).tolist(), tags


SENTENCES = [sentence(size) for size in (1, 3, 5, 8, 9, 12, 2, 7, 1, 16)]
WORDS, GOLD = ([pair[i] for pair in SENTENCES] for i in (0, 1))
VOCABULARY = tagger_vocabulary(WORDS, TAGS, word_length=4)
IDS = [[TAGS.index(tag) for tag in tags] for tags in GOLD]


def make(rngs, output="crf", skip="dynamic:3"):
    characters = [CharCNN(VOCABULARY.num_characters, char_features=2, filters=3, rngs=rngs)]
    return Tagger(
        len(VOCABULARY.words),
        len(TAGS),
        4,
        [F.parse_time_skip(skip)],
        embedding_features=3,
        characters=characters,
        output=output,
        allowed=allowed_transitions(TAGS, "BIOES") if output == "crf" else None,
        rngs=rngs,
    )


def task_of(output="crf", longest=16, **options):
    kept = [row for row, words in enumerate(WORDS) if len(words) <= longest]
    words, ids, gold = ([column[row] for row in kept] for column in (WORDS, IDS, GOLD))
    split = tagged_examples([TaggedSentence(of, [], []) for of in words], ids, VOCABULARY)
    split = dataclasses.replace(split, buckets=tuple(size for size in (8, 16) if size <= longest))
    options = dict(scheme="BIOES", gold={"dev": gold, "test": gold}) | options
    return Tagging(
        {"train": split, "dev": split}, lambda rngs: make(rngs, output), tags=TAGS, batch_size=4,
        evaluation_rows=5, **options,
    )  # fmt: skip


def model_of(task, seed=0):
    learner = Learner(task, (0,))
    return learner.model(drawn_params(learner, seed))


def one_batch(extra=0):
    """Return a batch of all sentences, padded by `extra` more steps."""
    examples = task_of().splits["train"]
    batch = examples.batch(np.arange(len(examples)), None, len(examples.buckets) - 1)

    def wide(leaf):
        return np.pad(leaf, ((0, 0), (0, extra), *((0, 0),) * (leaf.ndim - 2)), constant_values=1)

    inputs = type(batch.inputs)(*map(wide, batch.inputs))
    return batch._replace(inputs=inputs, targets=wide(batch.targets), index=None)


@pytest.fixture(scope="module")
def padded():
    """Return a function: (loss, gradient, tags) of a batch and of the same batch with more padding."""

    @functools.cache
    def get(output, reward_of):
        task = task_of(output, rewards_words=reward_of == "words")
        # Rewards of every kind reach the loss, including those of layers that read from the end.
        learner = Learner(task, (0,), objective=AgentSettings(entropy_coef=0.1, discount=0.9))
        scheduled = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], learner.scheduled(0))
        batches, key = (one_batch(), one_batch(5)), jax.random.key(5)

        @jax.jit
        def of(params):
            found = []
            for batch in batches:
                loss = lambda p, batch=batch: learner.loss(p, ((), ()), batch, key, scheduled)[0]
                tags = learner.predict(params, batch._replace(targets=None), F.Policy("greedy"))
                found.append((*jax.value_and_grad(loss)(params), tags))
            return found

        return jax.device_get(of(drawn_params(learner)))

    get("crf", "words")
    return get


@pytest.mark.parametrize(
    ("output", "reward_of"),
    [("crf", "words"), pytest.param("softmax", "sentence", marks=pytest.mark.slow)],
)
def test_longer_padding_changes_no_loss_and_no_tag(output, reward_of, padded):
    (loss, grad, tags), (wider, wider_grad, more) = padded(output, reward_of)
    np.testing.assert_allclose(loss, wider, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(grad), jax.tree.leaves(wider_grad), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    for row, words in enumerate(WORDS):
        assert tags[row, : len(words)].tolist() == more[row, : len(words)].tolist()


def test_a_crf_can_be_trained_without_decoding(monkeypatch):
    """Training then counts only the loss; evaluation still counts the accuracies."""
    batch = jax.tree.map(jnp.asarray, one_batch())
    how = dict(policy=F.Policy("greedy"), rngs=jax.random.key(0), shared_key=None)
    decoded, decode = [], F.crf_decode
    monkeypatch.setattr(F, "crf_decode", lambda *args: decoded.append(1) or decode(*args))

    def traced(deterministic, decode_in_training):
        task = task_of(decode_in_training=decode_in_training)
        model = model_of(task)
        read = jax.eval_shape(lambda: task.forward(model, batch, (), deterministic=deterministic, **how))
        return jax.eval_shape(lambda read: task.compute_loss(read, batch), read.log_probs)

    scored = traced(False, False)
    assert not decoded and list(scored.counted) == ["nll"] and scored.correct is None
    for deterministic, decode_in_training in ((True, False), (False, True)):
        assert list(traced(deterministic, decode_in_training).counted) == [
            "accuracy",
            "nll",
            "sentence_accuracy",
        ]
    assert len(decoded) == 2
    assert task_of(decode_in_training=False).primary_metric == "nll"


def brute(crf, emissions, tags_of_length):
    """Compute the log-probability of every tag sequence of one sentence in float64."""
    scores = {}
    t, s, e = (np.asarray(part, np.float64) for part in crf)
    for tags in itertools.product(range(len(TAGS)), repeat=tags_of_length):
        score = s[tags[0]] + e[tags[-1]] + sum(emissions[i, tag] for i, tag in enumerate(tags))
        scores[tags] = score + sum(t[a, b] for a, b in itertools.pairwise(tags))
    total = np.logaddexp.reduce(list(scores.values()))
    return {tags: score - total for tags, score in scores.items()}


@pytest.mark.slow
def test_what_a_crf_says_of_three_words_by_enumeration():
    task = task_of(rewards_words=True)
    model = model_of(task, seed=1)
    row = next(i for i, words in enumerate(WORDS) if len(words) == 3)
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf[row : row + 1]), one_batch())
    how = dict(policy=F.Policy("greedy"), rngs=jax.random.key(0), shared_key=None, deterministic=True)

    @nnx.jit
    def of(model):
        read = task.forward(model, batch, (), **how)
        out = model(batch.inputs, seq_lengths=batch.seq_lengths, deterministic=True)
        return (
            out.crf,
            out.emissions,
            task.compute_loss(read.log_probs, batch),
            task.predict(read.log_probs, batch),
        )

    crf, emissions, scored, predicted = jax.device_get(of(model))
    every = brute(crf, np.asarray(emissions[0], np.float64), 3)
    truth = tuple(IDS[row])
    np.testing.assert_allclose(scored.nll[0], -every[truth], rtol=1e-5)
    best = max(every, key=every.get)
    assert tuple(predicted[0, :3].tolist()) == best
    for t in range(3):
        p = sum(np.exp(log_p) for tags, log_p in every.items() if tags[t] == truth[t])
        np.testing.assert_allclose(scored.rewarded[0, t], np.log(p), rtol=1e-4, atol=1e-6)
    assert not np.asarray(scored.rewarded)[0, 3:].any()
    right = [float(a == b) for a, b in zip(best, truth, strict=True)]
    assert np.asarray(scored.correct)[0, :3].tolist() == right
    assert float(scored.counted["sentence_accuracy"][0]) == float(all(right))


def test_samples_are_averaged_into_the_allowed_sequence_with_most_right_tags():
    task, rng = task_of(), np.random.default_rng(3)
    lengths = np.array([3, 2], np.int32)
    p = rng.dirichlet(np.ones(5) / 2, size=(2, 2, 3))  # rows, samples, time
    target = rng.uniform(-3, -1, size=(2, 2))
    batch = Batch(None, None, seq_lengths=jnp.asarray(lengths))
    log_probs = OfTags(
        jnp.asarray(target.reshape(4), jnp.float32),
        jnp.asarray(np.log(p).reshape(4, 3, 5), jnp.float32),
        jnp.zeros((4, 3), jnp.int32),
    )
    found = jax.jit(lambda log_probs: task.average(log_probs, batch, 2))(log_probs)
    np.testing.assert_allclose(found.target, np.log(np.exp(target).mean(axis=1)), rtol=1e-5)
    np.testing.assert_allclose(np.exp(found.marginals), p.mean(axis=1), rtol=1e-4, atol=1e-7)
    for row, length in enumerate(lengths):
        allowed = [
            tags for tags in itertools.product(range(5), repeat=int(length))
            if first_problem([TAGS[tag] for tag in tags], "BIOES") is None
        ]  # fmt: skip
        means = p[row].mean(axis=0)
        best = max(allowed, key=lambda tags, means=means: sum(means[t, tag] for t, tag in enumerate(tags)))
        assert tuple(np.asarray(found.best)[row, :length].tolist()) == best


@functools.cache
def evaluated(output):
    """Return a learner, the sentences of its split, the parameters of two models, and their metrics."""
    longest = 8 if output == "crf" else 16
    learner = Learner(task_of(output, longest), (0, 1))
    sentences = [words for words in WORDS if len(words) <= longest]
    keys = jax.random.split(jax.random.key(4), 2)
    params = together(*(drawn_params(learner, seed) for seed in range(2)))
    return learner, sentences, params, learner.evaluate(params, "dev", keys)


@pytest.fixture(scope="module")
def evaluation():
    """Return `evaluated`, with the result of the CRF already cached."""
    evaluated("crf")
    return evaluated


@pytest.mark.parametrize("output", and_slow(["crf", "softmax"], lambda output: output == "crf"))
def test_f1_is_that_of_all_sentences_read_alone(output, evaluation):
    learner, sentences, params, metrics = evaluation(output)
    gold = learner.task.gold["dev"]
    for seed in range(2):
        own = jax.tree.map(lambda leaf, i=seed: leaf[i], params)
        policy, found = F.Policy("greedy"), []
        for words in sentences:
            _, tags = learner.read(own, VOCABULARY.encode(words), len(words), policy)
            found.append([TAGS[tag] for tag in np.asarray(tags)])
        score = score_labels(gold, found, has_entities=True)
        right = np.mean(
            [a == b for pair in zip(gold, found, strict=True) for a, b in zip(*pair, strict=True)]
        )
        np.testing.assert_allclose(metrics["dev_f1"][seed], score.overall.f1)
        np.testing.assert_allclose(metrics["dev_accuracy"][seed], right, rtol=1e-6)
        whole = np.mean([a == b for a, b in zip(gold, found, strict=True)])
        np.testing.assert_allclose(metrics["dev_sentence_accuracy"][seed], whole, rtol=1e-6)
    assert learner.monitor == "dev_f1"


@pytest.mark.slow
@pytest.mark.parametrize("output", and_slow(["crf", "softmax"], lambda output: output == "crf"))
def test_a_tag_that_stands_for_unknown_ones_is_never_predicted(output):
    task = task_of(output, scheme=None, unknown_tag=2)
    model = model_of(task)
    model.allowed = None
    model.emissions.bias[...] = model.emissions.bias[...].at[2].set(50.0)
    batch = jax.tree.map(jnp.asarray, one_batch())
    how = dict(policy=F.Policy("greedy"), rngs=jax.random.key(0), shared_key=None, deterministic=True)
    read = nnx.jit(lambda m: task.forward(m, batch, (), **how))(model)
    inside = np.arange(batch.targets.shape[1]) < np.asarray(batch.seq_lengths)[:, None]
    assert (np.asarray(read.log_probs.best)[inside] != 2).all()
    again = jax.tree.map(lambda leaf: jnp.repeat(leaf, 2, axis=0), read.log_probs)
    average = jax.jit(lambda again: task.average(again, batch, 2))
    assert (np.asarray(average(again).best)[inside] != 2).all()
    assert task.score == "accuracy" and task.host_metrics("dev", []) == {}
