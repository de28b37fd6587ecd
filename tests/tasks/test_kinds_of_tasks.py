"""Check what every kind of task does with the samples of a row, and with rows in an order of their
own.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import StepTask, classification, drawn_params, plain, together

from dynskip_jax.config.experiment import NAMES, find_experiment
from dynskip_jax.data import Examples
from dynskip_jax.data.batches import Batch
from dynskip_jax.experiments.code.task import CodeModelling
from dynskip_jax.experiments.recall.task import OfAsked, Recall
from dynskip_jax.tasks import Classification, ExampleTask, SentencePairs, Tagging, Task
from dynskip_jax.tasks.language import CachedLanguageModelling, LanguageModelling, OfTargets
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.tasks.tagging import OfTags

# Probabilities of three answers by two samples of two rows. Of the first row each sample is right
# or wrong by little, and the mean is right; of the second row, the mean is wrong, and so is only
# one sample.
SAMPLES = np.array(
    [[[0.7, 0.2, 0.1], [0.4, 0.5, 0.1]], [[0.45, 0.15, 0.4], [0.2, 0.1, 0.7]]], np.float32
)
TRUTH = np.array([0, 0], np.int32)
MEANS = SAMPLES.mean(axis=1)
FLAT = np.log(SAMPLES.reshape(4, 3))  # samples of a row are adjacent
STEPS = FLAT[:, None]  # of rows with one step
OF_TRUTH = STEPS[..., 0]
RIGHT = (STEPS.argmax(-1) == 0).astype(np.float32)
ASKED = 1  # the step of a row of 16 words that asks
TAGS = dict(tags=("a", "b", "c"), gold={})
WORDS = Batch(TRUTH[:, None], TRUTH[:, None], seq_lengths=np.ones(2, np.int32))
ROWS = Batch(TRUTH[:, None], TRUTH)
RECALLED = np.where(np.arange(16) == ASKED, 0, -1)[None].repeat(2, axis=0).astype(np.int32)
CACHES = dict(size=1, flatness=[1.0], weight=[0.5])

# Task, what its `forward` says of these samples, and the batch.
KINDS = {
    Classification: (Classification({}, None), FLAT, ROWS),
    StepTask: (StepTask({}, None), STEPS, WORDS),
    Tagging: (Tagging({}, None, **TAGS), OfTags(OF_TRUTH, STEPS, STEPS.argmax(-1)), WORDS),
    "Tagging, CRF": (Tagging({}, None, **TAGS), OfTags(FLAT[:, 0], STEPS, STEPS.argmax(-1)), WORDS),
    LanguageModelling: (LanguageModelling(None, None), OfTargets(OF_TRUTH, RIGHT), WORDS),
    CachedLanguageModelling: (
        CachedLanguageModelling(LanguageModelling(None, None), **CACHES),
        (OfTargets(OF_TRUTH, RIGHT), OF_TRUTH[..., None, None]),
        WORDS,
    ),
    CodeModelling: (
        plain(CodeModelling, LanguageModelling, None, None),
        (OfTargets(OF_TRUTH, RIGHT), np.log(1 / (1 + (STEPS[..., :1] < STEPS).sum(-1)))),
        WORDS,
    ),
    Recall: (
        plain(Recall, ExampleTask, {}, None),
        OfAsked(OF_TRUTH, STEPS),
        Batch(RECALLED, RECALLED),
    ),
    SentencePairs: (SentencePairs({}, None), FLAT, Batch(None, np.array([1.0, 1.0], np.float32))),
}


def test_every_kind_of_task_is_here():
    for name in NAMES:
        assert find_experiment(name).task_class
    found, new = set(), [Task]
    while new:
        new = [kind for parent in new for kind in parent.__subclasses__()]
        found |= {kind for kind in new if kind.__module__.startswith("dynskip_jax.")}
    # Others have only data, models or texts of their own.
    computing = {"forward", "read", "average", "compute_loss", "predict"}
    found = {kind for kind in found if computing & vars(kind).keys()}
    assert found == KINDS.keys() - {StepTask, "Tagging, CRF"}


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_are_averaged_before_the_best_answer_is_taken(kind):
    task, log_probs, batch = KINDS[kind]
    means = task.average(jax.tree.map(jnp.asarray, log_probs), batch, 2)
    scored = task.compute_loss(means, batch)
    own = np.asarray(scored.nll)
    if kind is Recall:
        assert not np.delete(own, ASKED, axis=1).any()
        own = own[:, ASKED]
    np.testing.assert_allclose(own.reshape(2), -np.log(MEANS[:, 0]), rtol=1e-5)
    assert MEANS.argmax(-1).tolist() == [0, 2]
    if kind is SentencePairs:  # a rating is the mean of a distribution, which is linear
        np.testing.assert_allclose(task.predict(means, batch), MEANS @ [1, 2, 3], rtol=1e-5)
        return
    if "accuracy" in scored.counted:
        right = np.asarray(scored.counted["accuracy"])
        right = right[:, ASKED] if kind is Recall else right.reshape(2)
        assert right.tolist() == [1, 0]
    else:  # which word is best is not known
        assert scored.correct is None
    predicted = task.predict(means, batch)
    if not isinstance(predicted, tuple):
        assert np.asarray(predicted).reshape(2).tolist() == [0, 2]


# Examples in another order than that of the split; the last row fills the batch with a second copy.
ORDER = np.array([2, 0, 1, 2], np.int32)
LENGTHS = np.array([2, 3, 1, 2], np.int32)
NO_MASK = None
OF_ROWS = np.array([True, True, True, False])
# Of 1: nothing.
OF_STEPS = np.array([[True, False, False], [False, True, True], [False] * 3, [False] * 3])


@pytest.mark.parametrize("mask", [NO_MASK, OF_ROWS, OF_STEPS], ids=["none", "rows", "steps"])
@pytest.mark.parametrize("kind", [Classification, StepTask, LanguageModelling])
def test_predictions_are_put_in_order_with_any_mask(kind, mask):
    task, log_probs, batch = KINDS[kind]
    one = task.predict(jax.tree.map(lambda leaf: leaf[:2], log_probs), batch)
    shape = (4,) if np.ndim(one) == 1 else (4, 3)
    found = (
        () if isinstance(one, tuple) else np.stack([np.arange(np.prod(shape)).reshape(shape)] * 2)
    )
    rows = slice(3 if mask is None else 4)
    cut = Batch(None, None, None if mask is None else mask[rows], LENGTHS[rows], ORDER[rows])
    learner = Learner.__new__(Learner)
    learner.seeds = (0, 1)
    ordered = learner._in_order([(cut, jax.tree.map(lambda leaf: leaf[:, rows], found))])
    if isinstance(one, tuple):
        assert ordered == [[], []]
        return
    for of_seed in ordered:
        steps = [[3, 4, 5], [6], [0, 1]] if len(shape) > 1 else [1, 2, 0]
        assert [np.asarray(each).tolist() for each in of_seed] == steps


def test_an_example_with_no_step_that_counts_is_scored_on_the_host():
    """The task masks steps itself, as `Recall` does, but predicts classes."""

    class Masked(StepTask):
        def evaluation_batches(self, split, rows, samples):
            for batch in super().evaluation_batches(split, rows, samples):
                yield batch._replace(mask=(batch.targets >= 0) & batch.mask[:, None])

        def host_metrics(self, split, predictions):
            return {"count": float(len(predictions))}

    targets = np.array([[0, 1], [-1, -1], [2, -1]], np.int32)
    splits = {"dev": Examples(np.zeros((3, 2), np.int32), targets)}
    learner = classification(splits, task=Masked, skip="lstm", evaluation_rows=2)
    found = learner.evaluate(
        together(drawn_params(learner)), "dev", jax.random.split(jax.random.key(0), 1)
    )
    assert found["dev_count"] == [3]
