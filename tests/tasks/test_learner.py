"""Check what all tasks share: lengths, masks, scores on the host, and single examples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import (
    SYMBOLS,
    StepTask,
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
from dynskip_jax.config.settings import Agent
from dynskip_jax.data import Examples
from dynskip_jax.data.batches import Batch
from dynskip_jax.tasks import Classification

LONGEST = 8
CLASSES = 8  # equal to the number of steps to which a single example is padded
GREEDY = F.Policy("greedy")
KEYS = jax.random.split(jax.random.key(5), 2)


class ScoredSteps(StepTask):
    """Task with a class for each step, and a score on the host: the fraction of whole sequences
    right.
    """

    def host_metrics(self, split, predictions):
        pairs = zip(predictions, self.splits[split].targets, strict=True)
        return {
            "whole": float(np.mean([(said == true[: len(said)]).all() for said, true in pairs]))
        }


TASKS = {"classes": Classification, "steps": ScoredSteps}


def examples_of(kind, buckets=()):
    rng, count = np.random.default_rng(0), 13
    lengths = rng.integers(1, LONGEST + 1, size=count).astype(np.int32)
    inputs = np.where(
        np.arange(LONGEST) < lengths[:, None], rng.integers(SYMBOLS, size=(count, LONGEST)), 0
    )
    targets = rng.integers(CLASSES, size=(count, LONGEST) if kind == "steps" else count)
    return Examples(inputs.astype(np.int32), targets, lengths, buckets=buckets)


def learner_of(kind, splits, seeds=(0,), **options):
    defaults = dict(mix=0.5, batch_size=5, evaluation_rows=5, model={"num_classes": CLASSES})
    return classification(splits, seeds, **defaults | dict(task=TASKS[kind]) | options)


@functools.cache
def trained(kind):
    """Return a learner of two models and their parameters."""
    learner = learner_of(kind, {"dev": examples_of(kind, buckets=(4, 8))}, (0, 1))
    return learner, together(*(drawn_params(learner, seed) for seed in (3, 4)))


# --- Training ---


OBJECTIVES = {
    "classes": Agent(rollouts=2, baseline="rollouts", reward="correct"),
    "steps": Agent(discount=0.9),
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "second"), [("classes", 6), ("classes", 2), ("steps", 2)])
def test_a_padded_batch_is_its_rows_alone(kind, second):
    objective = OBJECTIVES[kind]
    learner = learner_of(kind, {}, objective=objective)
    params, scheduled = drawn_params(learner), scheduled_of(learner)
    rng, lengths = np.random.default_rng(1), np.array([6, second, 6, 2, 6], np.int32)
    inputs = rng.integers(SYMBOLS, size=(5, 9)).astype(np.int32)  # not 0 past the end
    targets = rng.integers(CLASSES, size=(5, 9) if kind == "steps" else 5)
    batch = Batch(inputs, targets, np.array([True] * 3 + [False] * 2), lengths)
    keys = jax.random.split(jax.random.key(2), 5)
    gradient = jax.jit(jax.value_and_grad(learner.loss, has_aux=True))
    (loss, (_, sums)), grads = jax.device_get(gradient(params, (), batch, keys, scheduled))

    found = []
    for row in range(3):
        one, stop = slice(row, row + 1), lengths[row]
        alone = Batch(inputs[one, :stop], targets[one, :stop] if kind == "steps" else targets[one])
        found.append(jax.device_get(gradient(params, (), alone, keys[one], scheduled)))
    (total, (_, total_sums)), total_grads = functools.reduce(
        lambda a, b: jax.tree.map(np.add, a, b), found
    )
    # The loss is a mean over all rows, so that every example has the same weight in an epoch.
    np.testing.assert_allclose(5 * loss, total, rtol=1e-4)
    close = lambda ours, wanted: np.testing.assert_allclose(5 * ours, wanted, rtol=1e-3, atol=1e-5)
    jax.tree.map(close, grads, total_grads)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(total_grads)) > 0.1
    assert sums.keys() == {"accuracy", "nll", "agent_entropy_1", "agent_skip_1", "agent_share_1"}
    # The mean k equals the mean under the shares.
    ks = np.arange(1, len(sums["agent_share_1"].total) + 1)
    np.testing.assert_allclose(
        sums["agent_share_1"].total @ ks, sums["agent_skip_1"].total, rtol=1e-5
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), sums, total_sums
    )
    assert sums["agent_skip_1"].count == objective.rollouts * (6 + second + 6)
    assert sums["nll"].count == (6 + second + 6 if kind == "steps" else objective.rollouts * 3)


def test_steps_that_are_masked_are_no_part_of_the_loss():
    objective = Agent(discount=0.9, entropy="exact")
    learner = language_modelling(letters(12), skips=("dynamic:3",), objective=objective)
    params, key, batch = drawn_params(learner), jax.random.key(1), first_batch(learner)
    mask = np.ones(batch.targets.shape, bool)
    mask[:, 4:] = False
    short = batch._replace(
        inputs=batch.inputs[:, :4], targets=batch.targets[:, :4], mask=mask[:, :4]
    )
    keys = jax.random.split(key, len(mask))

    carry, scheduled = learner.initial_carry(params, key), scheduled_of(learner)
    loss = jax.jit(lambda batch: learner.loss(params, carry, batch, keys, scheduled)[0])
    np.testing.assert_allclose(loss(batch._replace(mask=mask)), loss(short), rtol=1e-4)


# --- Evaluation ---


def test_batches_of_an_evaluation_are_sampled_with_different_keys():
    """Otherwise samples of equal rows in two batches would be equal, and the mean too sure."""
    once = examples_of("classes")
    once = Examples(*(leaf[:5] for leaf in (once.inputs, once.targets, once.seq_lengths)))
    leaves = (once.inputs, once.targets, once.seq_lengths)
    twice = Examples(*(np.concatenate([leaf, leaf]) for leaf in leaves))
    learner = learner_of("classes", {"dev": once, "test": twice})
    params = together(drawn_params(learner))
    of_one = learner.evaluate(params, "dev", KEYS[:1], mode="sample")["dev_agent_skip_1"]
    of_two = learner.evaluate(params, "test", KEYS[:1], mode="sample")["test_agent_skip_1"]
    assert of_one != of_two


@pytest.mark.parametrize("kind", and_slow(TASKS, lambda kind: kind == "steps"))
def test_predictions_are_in_order_unpadded_and_those_of_each_example_alone(kind):
    learner, params = trained(kind)
    dev, task, is_of_steps = learner.task.splits["dev"], learner.task, kind == "steps"
    metrics, predictions = (
        learner.evaluate(params, "dev", KEYS),
        learner.predictions(params, "dev", KEYS),
    )
    batch = Batch(jnp.asarray(dev.inputs), None, seq_lengths=jnp.asarray(dev.seq_lengths))
    how = dict(policy=GREEDY, rngs=None, shared_key=None, deterministic=True)
    forward = jax.jit(lambda own: task.forward(learner.model(own), batch, (), **how))
    for seed, found in enumerate(predictions):
        own = jax.tree.map(lambda leaf, i=seed: leaf[i], params)
        whole, right, steps = forward(own), 0, 0
        for i, (one, length) in enumerate(zip(found, dev.seq_lengths.tolist(), strict=True)):
            read, predicted = learner.read(own, dev.inputs[i, :length], length, GREEDY)
            np.testing.assert_array_equal(one, predicted)
            expected = whole.log_probs[i, :length] if is_of_steps else whole.log_probs[i]
            np.testing.assert_allclose(read.log_probs, expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(predicted, expected.argmax(-1))
            wanted = jax.tree.map(lambda leaf, i=i, stop=length: leaf[i, :stop], whole.decisions)
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), read.decisions, wanted
            )
            truth = dev.targets[i, :length] if is_of_steps else dev.targets[i]
            right, steps = right + np.sum(one == truth), steps + np.size(one)
        np.testing.assert_allclose(metrics["dev_accuracy"][seed], right / steps, rtol=1e-6)
        for name, value in task.host_metrics("dev", found).items():
            assert metrics[f"dev_{name}"][seed] == value
    # Two models, not one twice.
    assert any(np.any(a != b) for a, b in zip(*predictions, strict=True))


# --- Programs ---


@pytest.fixture
def compiled_programs():
    """Return a list to which the name of an event is added for each program that is compiled."""
    found = []

    def listen(name, *_, **__):
        if name == "/jax/core/compile/backend_compile_duration":
            found.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def test_programs_do_not_grow_with_the_number_of_texts(compiled_programs):
    """Regression: results were cut on the device, which compiled a program for each length."""
    once = examples_of("steps", buckets=(4, 8))
    thrice = [np.concatenate([leaf] * 3) for leaf in (once.inputs, once.targets, once.seq_lengths)]
    thrice = Examples(*thrice, buckets=once.buckets)
    learner = learner_of("steps", {"dev": once, "test": thrice})
    params = drawn_params(learner)
    text = once.inputs[0]
    learner.read(params, text, LONGEST, GREEDY)
    learner.evaluate(together(params), "dev", KEYS[:1])
    learner.predictions(together(params), "dev", KEYS[:1])
    assert compiled_programs
    compiled_programs.clear()

    for length in range(1, LONGEST):
        learner.read(params, text[:length], length, GREEDY)
    learner.evaluate(together(params), "test", KEYS[:1])
    learner.predictions(together(params), "test", KEYS[:1])
    assert not compiled_programs
