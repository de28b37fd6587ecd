"""Check what all tasks share: lengths, masks, weights, scores on the host, and single examples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from flax import nnx
from learners import (
    SYMBOLS,
    classification,
    drawn_params,
    first_batch,
    language_modelling,
    letters,
    scheduled_of,
    together,
)
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.data import Examples
from dynskip_jax.data.batches import Batch
from dynskip_jax.errors import UserError
from dynskip_jax.models import SequenceClassifier
from dynskip_jax.tasks import Classification, ExampleTask, Forward, Learner
from dynskip_jax.training.agent_settings import AgentSettings

LONGEST = 8
CLASSES = 8  # equal to the number of steps to which a single example is padded
GREEDY = F.Policy("greedy")


class Tagging(ExampleTask):
    """Task with a class for each step; it records the predictions that are scored on the host."""

    score = "accuracy"
    is_of_steps = True
    has_host_metrics = True

    def forward(self, model, batch, carry, *, shared_key, **how):
        x = jax.nn.one_hot(batch.inputs, SYMBOLS)
        outputs = model.stack(x, seq_lengths=batch.seq_lengths, **how)
        log_probs = jax.nn.log_softmax(model.softmax(outputs.h))
        return Forward(log_probs, outputs.decisions, observations=outputs.observations)

    def host_metrics(self, split, predictions):
        self.seen = [*getattr(self, "seen", []), (split, predictions)]
        right = [
            bool((found == truth[: len(found)]).all())
            for found, truth in zip(predictions, self.splits[split].targets, strict=True)
        ]
        return {"whole": float(np.mean(right))}


class ScoredClassification(Classification):
    """Classification with a score on the host; it records the predictions that are scored."""

    has_host_metrics = True

    def host_metrics(self, split, predictions):
        self.seen = [*getattr(self, "seen", []), (split, predictions)]
        return {"whole": float(np.mean(np.array(predictions) == self.splits[split].targets))}


TASKS = {"classes": ScoredClassification, "tags": Tagging}


def examples_of(kind, count=13, buckets=(), seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, LONGEST + 1, size=count).astype(np.int32)
    inputs = np.where(np.arange(LONGEST) < lengths[:, None], rng.integers(SYMBOLS, size=(count, LONGEST)), 0)
    targets = rng.integers(CLASSES, size=(count, LONGEST))
    targets = targets if kind == "tags" else targets[:, 0]
    return Examples(inputs.astype(np.int32), targets, lengths, buckets=buckets)


def learner_of(kind, splits, seeds=(0,), **options):
    defaults = dict(num_classes=CLASSES, mix=0.5, batch_size=5, evaluation_rows=5, task=TASKS[kind])
    return classification(splits, seeds, **defaults | options)


@functools.cache
def trained(kind, buckets=(4, 8)):
    """Return a learner of two models and their parameters."""
    learner = learner_of(kind, {"dev": examples_of(kind, buckets=buckets)}, (0, 1))
    return learner, together(*(drawn_params(learner, seed) for seed in (3, 4)))


KEYS = jax.random.split(jax.random.key(5), 2)


@pytest.fixture(scope="module")
def evaluation():
    """Return `trained`, after an evaluation of the models of tags, so that their program is compiled."""
    learner, params = trained("tags")
    learner.evaluate(params, "dev", KEYS)
    return trained


# --- Training: single rows ---


def rows_of(batch, rows, time=None):
    """Return a batch of the given rows, without a mask; if `time` is given, cut them to `time` steps."""
    cut = {name: getattr(batch, name)[rows] for name in ("inputs", "targets", "seq_lengths", "weights")}
    if time is not None:
        cut["inputs"], cut["seq_lengths"] = cut["inputs"][:, :time], None
        cut["targets"] = cut["targets"][:, :time] if cut["targets"].ndim > 1 else cut["targets"]
    return Batch(**cut)


OBJECTIVES = {
    "classes": AgentSettings(rollouts=2, baseline="rollouts", reward="correct"),
    "tags": AgentSettings(discount=0.9),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "second"),
    and_slow([("classes", 6), ("classes", 2), ("tags", 2)], lambda kind, second: second == 6),
)
def test_a_padded_batch_is_its_rows_alone(kind, second):
    objective = OBJECTIVES[kind]
    learner = learner_of(kind, {}, objective=objective)
    params, scheduled = drawn_params(learner), scheduled_of(learner)
    rng = np.random.default_rng(1)
    lengths, weights = (
        np.array([6, second, 6, 2, 6], np.int32),
        np.array([1.0, 0.5, 2.0, 1.0, 3.0], np.float32),
    )
    targets = rng.integers(CLASSES, size=(5, 9) if kind == "tags" else 5)
    batch = Batch(
        rng.integers(SYMBOLS, size=(5, 9)).astype(np.int32),  # not 0 past the end
        targets,
        np.array([True, True, True, False, False]),
        lengths,
        weights,
    )
    keys = jax.random.split(jax.random.key(2), 5)
    gradient = jax.jit(jax.value_and_grad(learner.loss, has_aux=True))
    carry = learner.initial_carry(params, jax.random.key(0))
    (loss, (_, sums)), grads = jax.device_get(gradient(params, carry, batch, keys, scheduled))

    total, total_grads, total_sums = 0.0, jax.tree.map(np.zeros_like, params), None
    for row in range(3):
        alone = rows_of(batch, slice(row, row + 1), lengths[row])
        found = gradient(params, carry, alone, keys[row : row + 1], scheduled)
        (one, (_, own)), own_grads = jax.device_get(found)
        total += float(one)
        total_grads = jax.tree.map(np.add, total_grads, own_grads)
        total_sums = own if total_sums is None else jax.tree.map(np.add, total_sums, own)
    # The loss is a mean over all rows, including those that only fill the batch. Every example therefore has
    # the same weight in an epoch.
    np.testing.assert_allclose(5 * loss, total, rtol=1e-4)
    for found, wanted in zip(jax.tree.leaves(grads), jax.tree.leaves(total_grads), strict=True):
        np.testing.assert_allclose(5 * found, wanted, rtol=1e-3, atol=1e-5)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(total_grads)) > 0.1
    agents = {"agent_entropy_1", "agent_skip_1", "agent_share_1"}
    assert sums.keys() == total_sums.keys() == {"accuracy", "nll"} | agents
    # The mean k equals the mean under the shares.
    ks = np.arange(1, len(sums["agent_share_1"].total) + 1)
    np.testing.assert_allclose(sums["agent_share_1"].total @ ks, sums["agent_skip_1"].total, rtol=1e-5)
    for name, (value, count) in sums.items():
        np.testing.assert_allclose(value, total_sums[name].total, rtol=1e-4, atol=1e-5, err_msg=name)
        assert count == total_sums[name].count
    times = objective.rollouts
    assert sums["agent_skip_1"].count == times * (6 + second + 6)
    assert sums["nll"].count == (6 + second + 6 if kind == "tags" else times * 3)


@pytest.mark.slow
@pytest.mark.parametrize("baseline", ["batch", "moving_average"])
def test_a_batch_with_rows_that_fill_it_may_be_divided(baseline):
    """One half of the batch is nearly empty, and the baseline is that of all rows that count."""
    objective = AgentSettings(baseline=baseline, entropy_coef=0.0, baseline_decay=0.5)
    learner = learner_of("classes", {}, batch_size=6, objective=objective)
    params, scheduled, keys = (
        drawn_params(learner),
        scheduled_of(learner),
        jax.random.split(jax.random.key(2), 6),
    )
    examples = examples_of("classes", 6)
    mask, weights = np.array([True] * 4 + [False] * 2), np.array([1, 2, 1, 0.5, 9, 9], np.float32)
    batch = Batch(examples.inputs, examples.targets, mask, examples.seq_lengths, weights)

    gradient = jax.value_and_grad(learner.loss, has_aux=True)
    carry = start = learner.initial_carry(params, jax.random.key(0))
    # The moving average is empty at the first batch, so the second step is compared.
    if baseline == "moving_average":
        _, (carry, sums) = jax.jit(learner.loss)(params, start, batch, keys, scheduled)
    (loss, (after, _)), grads = jax.jit(gradient)(params, carry, batch, keys, scheduled)

    halves = jax.tree.map(lambda leaf: leaf.reshape(2, 3, *leaf.shape[1:]), (carry, batch, keys))
    divided = jax.vmap(functools.partial(gradient, axis_name="data"), (None, 0, 0, 0, None), axis_name="data")
    (losses, (ends, _)), parts = jax.jit(lambda *a: divided(*a, scheduled))(params, *halves)
    np.testing.assert_allclose(losses.mean(), loss, rtol=1e-5)
    for found, wanted in zip(jax.tree.leaves(parts), jax.tree.leaves(grads), strict=True):
        np.testing.assert_allclose(found.mean(axis=0), wanted, rtol=1e-3, atol=1e-6)
    if baseline == "moving_average":
        np.testing.assert_allclose(ends[1].mean.reshape(6), after[1].mean, rtol=1e-5)
        # By hand: the weighted mean reward of the rows that count, times 1 - decay. The average is not
        # normalized, because its weight is stored with it.
        given = jnp.asarray(batch.inputs), jnp.asarray(batch.seq_lengths)
        output = learner.model(params)(given[0], seq_lengths=given[1], rngs=keys_of(keys))
        log_probs = np.asarray(jax.nn.log_softmax(output.logits))[np.arange(6), batch.targets]
        np.testing.assert_allclose(-sums["nll"].total, log_probs[:4].sum(), rtol=1e-5)
        mean = np.average(log_probs[:4], weights=weights[:4])
        np.testing.assert_allclose(carry[1].mean, np.full(6, 0.5 * mean), rtol=1e-5)


def keys_of(keys):
    """Return the keys with which the only rollout of each row draws."""
    return jax.vmap(lambda key: jax.random.split(key, 1)[0])(keys)


# --- Evaluation ---


@pytest.mark.parametrize("kind", and_slow(TASKS, lambda kind: kind == "tags"))
def test_scores_on_the_host_see_each_prediction_once_in_order_and_unpadded(kind, evaluation):
    learner, params = evaluation(kind)
    learner.task.seen = []
    metrics = learner.evaluate(params, "dev", KEYS)
    dev = learner.task.splits["dev"]
    assert [split for split, _ in learner.task.seen] == ["dev", "dev"]  # one model after the other
    for seed, (_, predictions) in enumerate(learner.task.seen):
        own = jax.tree.map(lambda leaf, i=seed: leaf[i], params)
        assert len(predictions) == len(dev)
        right, steps = 0, 0
        for i, (found, length) in enumerate(zip(predictions, dev.seq_lengths, strict=True)):
            _, expected = learner.read(own, dev.inputs[i, :length], int(length), GREEDY)
            assert np.shape(found) == ((length,) if kind == "tags" else ())
            np.testing.assert_array_equal(found, expected)
            truth = dev.targets[i, :length] if kind == "tags" else dev.targets[i]
            right, steps = right + np.sum(found == truth), steps + np.size(found)
        np.testing.assert_allclose(metrics["dev_accuracy"][seed], right / steps, rtol=1e-6)
    one, other = (predictions for _, predictions in learner.task.seen)
    assert any(np.any(a != b) for a, b in zip(one, other, strict=True))  # two models, not one twice


@pytest.mark.parametrize("kind", and_slow(TASKS, lambda kind: kind == "tags"))
def test_an_example_read_alone_is_a_row_of_a_batch(kind):
    learner, params = trained(kind)
    own = jax.tree.map(lambda leaf: leaf[1], params)
    examples = examples_of(kind, 4, seed=2)
    batch = Batch(jnp.asarray(examples.inputs), None, seq_lengths=jnp.asarray(examples.seq_lengths))
    how = dict(policy=GREEDY, rngs=None, shared_key=None, deterministic=True)
    whole = jax.jit(lambda: learner.task.forward(learner.model(own), batch, (), **how))()
    for row, length in enumerate(examples.seq_lengths.tolist()):
        read, predicted = learner.read(own, examples.inputs[row, :length], length, GREEDY)
        steps = slice(length) if kind == "tags" else slice(None)
        expected = whole.log_probs[row][steps]
        assert read.log_probs.shape == ((length, CLASSES) if kind == "tags" else (CLASSES,))
        np.testing.assert_allclose(read.log_probs, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(predicted, expected.argmax(-1))
        assert len(read.decisions) == 1
        for trace, wanted in zip(*map(jax.tree.leaves, (read.decisions, whole.decisions)), strict=True):
            assert trace.shape == (length,)
            np.testing.assert_allclose(trace, wanted[row, :length], rtol=1e-5, atol=1e-6)


def test_another_task_scores_the_same_model_in_its_own_way():
    class Errors(Tagging):
        def metrics(self, means):
            return {"error": 1 - means["accuracy"]}

    learner, params = trained("tags")
    other = Errors(learner.task.splits, learner.task.make_model, evaluation_rows=5)
    plain, found = learner.evaluate(params, "dev", KEYS), learner.evaluate(params, "dev", KEYS, task=other)
    assert found.keys() == {"dev_error", "dev_whole"}
    np.testing.assert_allclose(found["dev_error"], 1 - plain["dev_accuracy"], rtol=1e-6)


def test_critics_need_to_be_told_what_agents_see():
    class Silent(Classification):
        def forward(self, *arguments, **how):
            return super().forward(*arguments, **how)._replace(observations=None)

    split = examples_of("classes", 5)
    objective = AgentSettings(baseline="learned")
    learner = learner_of("classes", {"train": split}, task=Silent, objective=objective)
    params = drawn_params(learner)
    batch = Batch(split.inputs, split.targets, seq_lengths=split.seq_lengths)
    with pytest.raises(UserError, match="what agents observe: choose another one"):
        jax.eval_shape(
            learner.loss,
            params,
            ((), ()),
            batch,
            jax.random.split(jax.random.key(0), 5),
            scheduled_of(learner),
        )


def test_a_model_is_used_without_data():
    def make_model(rngs):
        return SequenceClassifier(SYMBOLS, 6, 3, [F.Dynamic(3)], rngs=rngs)

    learner = Learner(Classification({}, make_model))
    assert learner.num_batches == 0
    params = drawn_params(learner)
    read, predicted = learner.read(params, np.array([1, 2, 3], np.int32), 3, GREEDY)
    model = compiled(nnx.merge(learner.graphdef, params))
    logits = np.asarray(model(jnp.array([[1, 2, 3]]), policy=GREEDY).logits[0])
    np.testing.assert_allclose(read.log_probs, jax.nn.log_softmax(logits), rtol=1e-5, atol=1e-6)
    assert predicted == logits.argmax()


# --- The loop ---


@pytest.mark.parametrize("with_gradient", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_steps_that_are_masked_are_no_part_of_the_loss(with_gradient):
    learner = language_modelling(
        letters(12), skips=("dynamic:3",), objective=AgentSettings(discount=0.9, entropy="exact")
    )
    params, key = drawn_params(learner), jax.random.key(1)
    batch = first_batch(learner)
    mask = np.ones(batch.targets.shape, bool)
    mask[:, 4:] = False
    short = batch._replace(inputs=batch.inputs[:, :4], targets=batch.targets[:, :4], mask=mask[:, :4])
    keys = jax.random.split(key, len(mask))

    def loss_and_gradient(params, batch):
        def loss(params):
            return learner.loss(
                params, learner.initial_carry(params, key), batch, keys, scheduled_of(learner)
            )[0]

        return jax.value_and_grad(loss)(params) if with_gradient else loss(params)

    batches = batch._replace(mask=mask), short
    found, expected = jax.jit(lambda params: [loss_and_gradient(params, each) for each in batches])(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected)
