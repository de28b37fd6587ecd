"""Check the training loop: seeds, resuming bit for bit, selection on dev, interruptions."""

import functools
import os
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import classification, language_modelling, letters, symbols
from marks import and_slow
from scripted import NUM_BATCHES, Scripted, assert_identical, metrics, run, shared_programs  # noqa: F401

from dynskip_jax.config.settings import Agent
from dynskip_jax.errors import UserError
from dynskip_jax.storage.folder import RunDir
from dynskip_jax.tasks import Learner
from dynskip_jax.training.asgd import ALL
from dynskip_jax.training.loop import Stopped
from dynskip_jax.training.optimizer import make_optimizer
from dynskip_jax.training.step import seed_keys

SEEDS = (3, 4)
EPOCHS = 3
CLIPPED = make_optimizer("sgd", clip=5.0, agent_learning_rate=0.01)


class Watched(Learner):
    """Learner that records the parameters that are evaluated."""

    def evaluate(self, params, split, keys):
        self.evaluated.append(jax.tree.map(np.asarray, params))
        return super().evaluate(params, split, keys)


@functools.cache
def learner_of(kind, seeds):
    """Return one learner with all sources of noise for all runs, whose evaluation compiles once."""
    options = dict(model={"dropout": 0.3}, cell={"recurrent_dropout": 0.2})
    options |= dict(evaluation_mode="sample", learner=Watched)
    if kind == "classification":
        objective = Agent(baseline="rollouts", rollouts=2)
        return classification(symbols(43, 17), seeds, mix=0.5, objective=objective, **options)
    objective = Agent(baseline="batch", entropy_coef=0.1)
    return language_modelling(letters(26), seeds, objective=objective, **options)


KINDS = and_slow(["classification", "language_modelling"], lambda kind: kind == "classification")


def train(kind, folder, seeds=SEEDS, stop_after=None):
    """Run a short training; return (learner, result, the parameters that were evaluated)."""
    task = learner_of(kind, seeds)
    task.evaluated = evaluated = []
    # The rate follows the dev history, so that a history lost in resuming would show.
    rate = lambda epoch, history: 0.2 / (1 + history.sum(axis=0) / 10)
    options = dict(optimizer=CLIPPED, learning_rate=rate, log_every=2)
    stop = lambda step: step == stop_after
    return (
        task,
        run(task, folder, seeds=seeds, epochs=EPOCHS, should_stop=stop, **options),
        evaluated,
    )


@pytest.fixture(scope="module", params=KINDS)
def whole(request, tmp_path_factory):
    """Return an uninterrupted run: (kind, learner, result, evaluated parameters, folder)."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, *train(request.param, folder), folder


@pytest.mark.parametrize("after_an_epoch", and_slow([False, True], lambda after: not after))
def test_stopped_run_resumes_bit_for_bit(after_an_epoch, whole, tmp_path):
    kind, task, result, evaluated, folder = whole
    assert task.num_batches > 3
    stop_after = task.num_batches + (0 if after_an_epoch else 3)
    with pytest.raises(Stopped, match=f"after step {stop_after} of {EPOCHS * task.num_batches}"):
        train(kind, tmp_path, stop_after=stop_after)
    assert len(metrics(tmp_path)) < len(metrics(folder))
    _, resumed, again = train(kind, tmp_path)
    assert_identical(resumed.params, result.params)
    assert_identical(again[-1], evaluated[-1])
    assert (tmp_path / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    assert resumed.best_epoch.tolist() == result.best_epoch.tolist()
    assert resumed.epochs == result.epochs == EPOCHS


def test_seeds_trained_together_are_those_trained_alone(whole, tmp_path):
    # Not the first one.
    (kind, _, together, _, folder) = whole
    index = 1
    single = train(kind, tmp_path, SEEDS[1:])[1]
    for one, both in zip(
        jax.tree.leaves(single.params), jax.tree.leaves(together.params), strict=True
    ):
        np.testing.assert_allclose(one[0], both[index], rtol=1e-3, atol=1e-5)
    assert single.best_epoch[0] == together.best_epoch[index]
    for one, both in zip(metrics(tmp_path), metrics(folder), strict=True):
        assert one.keys() == both.keys() and one.pop("split") == both.pop("split")
        for name, value in both.items():
            # An entry for each seed.
            expected = [value[index]] if isinstance(value, list) else value
            np.testing.assert_allclose(one[name], expected, rtol=1e-3, atol=1e-6)


def test_no_two_steps_draw_the_same_noise(tmp_path):
    class Noisy(Scripted):
        def loss(self, params, carry, batch, keys, scheduled, axis_name=None):
            sums = {"step": jax.random.normal(keys[0]), "carry": carry[0], "loss": jnp.zeros(())}
            return -params["steps"], (carry, sums | {"batches": jnp.ones(())})

        def summarise(self, sums):
            # Sums of the epoch so far.
            return {name: sums[name] for name in ("step", "carry", "loss")}

    run(Noisy([3, 2, 1]), tmp_path, seeds=(0,), epochs=3, log_every=1)
    logged = [record for record in metrics(tmp_path) if record["split"] == "train"]
    epochs = np.array([record["train_step"] for record in logged]).reshape(3, NUM_BATCHES)
    assert len(set(np.diff(epochs, axis=1, prepend=0).round(4).ravel())) == 3 * NUM_BATCHES
    # New in each epoch.
    assert len({record["train_carry"][0] for record in logged[::NUM_BATCHES]}) == 3


def test_the_best_dev_epoch_is_returned_and_records_have_steps_and_rates(whole):
    _, task, result, evaluated, folder = whole
    records = metrics(folder)
    n = task.num_batches
    dev = [record for record in records if record["split"] == "dev"]
    scores = np.array([record[task.monitor] for record in dev]) * (
        -1 if task.higher_is_better else 1
    )
    assert result.best_epoch.tolist() == (scores.argmin(axis=0) + 1).tolist()
    for index, epoch in enumerate(scores.argmin(axis=0)):
        wanted, found = (
            jax.tree.map(lambda a, i=index: a[i], t) for t in (evaluated[epoch], result.params)
        )
        assert_identical(found, wanted)
    assert [(record["step"], record["epoch"]) for record in dev] == [(n * e, e) for e in (1, 2, 3)]
    logged = [record["step"] for record in records if record["split"] == "train"]
    assert logged == sorted({*range(2, 3 * n + 1, 2), n, 2 * n, 3 * n})
    for epoch, record in enumerate(dev):
        rates = 0.2 / (1 + scores[:epoch].sum(axis=0) / 10)
        np.testing.assert_allclose(record["learning_rate"], rates, rtol=1e-6)


# --- Selection on dev ---


@pytest.mark.parametrize(
    ("script", "patience", "epochs", "best"),
    [
        ([5, 4, 4.5, 4.2, 3, 2], 2, 4, 2),
        ([5, 4, 4.5, 4.2, 3, 2], 0, 6, 6),
        ([5, 5, 5, 5, 5, 5], 3, 4, 1),  # an equal metric is not better
        ([np.nan, 7, np.nan, 6, np.nan, np.nan], 2, 6, 4),
    ],
)
@pytest.mark.parametrize("sign", and_slow([1, -1], lambda sign: sign == 1))
def test_training_ends_when_patience_does(script, patience, epochs, best, sign):
    task = Scripted(sign * np.array(script, float), higher_is_better=sign == -1)
    result = run(task, seeds=(0,), epochs=6, patience=patience)
    assert (result.epochs, result.best_epoch.tolist()) == (epochs, [best])
    assert result.params["steps"].tolist() == [best * NUM_BATCHES]


@pytest.mark.parametrize(("halving", "epochs"), [([8, 8], 4), ([8, 4], 5)])
def test_training_ends_when_the_rates_of_all_seeds_are_tiny(halving, epochs, caplog):
    rate = lambda epoch, history: 0.1 / np.array(halving, float) ** epoch
    with caplog.at_level("INFO", logger="dynskip_jax"):
        assert (
            run(Scripted(range(6), range(6)), seeds=(0, 1), epochs=6, learning_rate=rate).epochs
            == epochs
        )
    assert caplog.messages == [
        f"stopped after epoch {epochs}: the learning rate fell below a thousandth of the first",
    ]


def test_each_seed_stops_and_is_selected_for_itself():
    # Trained alone, the first seed would have stopped after epoch 4, so its later metrics do not
    # count.
    task = Scripted([5, 4, 4.5, 4.2, 3, 2, 1, 0], [9, 8, 7, 6, 5, 5, 5, 0])
    result = run(task, seeds=(0, 1), epochs=8, patience=2)
    assert (result.epochs, len(task.counts), result.best_epoch.tolist()) == (7, 7, [2, 5])
    assert result.params["steps"].tolist() == [2 * NUM_BATCHES, 5 * NUM_BATCHES]


def test_records_count_the_examples_that_were_seen(tmp_path):
    class Uneven(Scripted):
        def train_batch_sizes(self, epoch):
            return [[10, 3, 7], [3, 7, 10]][epoch % 2]

    run(Uneven([3, 2]), tmp_path, seeds=(0,), epochs=2, log_every=1)
    records = [
        (record["split"], record["step"], record["examples"]) for record in metrics(tmp_path)
    ]
    steps = [("train", step, seen) for step, seen in enumerate((10, 13, 20, 23, 30, 40), 1)]
    assert records == [*steps[:3], ("dev", 3, 20), *steps[3:], ("dev", 6, 40)]


# --- Crashes and interruptions ---

SCRIPT = [3, 2, 2.5, 1]


def scripted(folder, **options):
    return run(Scripted(SCRIPT), folder, seeds=(0,), epochs=len(SCRIPT), log_every=1, **options)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Return a check that a run is as one that was never interrupted."""
    whole = tmp_path_factory.mktemp("uninterrupted")
    expected = scripted(whole)
    text = (whole / "metrics.jsonl").read_bytes()

    def check(result, folder):
        assert_identical(result.params, expected.params)
        assert (result.epochs, result.best_epoch.tolist()) == (
            expected.epochs,
            expected.best_epoch.tolist(),
        )
        assert (folder / "metrics.jsonl").read_bytes() == text

    return check


def crash(*_):
    raise RuntimeError("the machine went down")


def at(step, action):
    """Return a `should_stop` that acts after a step, and never stops training itself."""
    return lambda now: bool(now == step and action() and False)


@pytest.mark.parametrize(
    ("step", "minutes", "resumes"),
    [
        (1, 10, None),
        (2 * NUM_BATCHES + 2, 10, 2 * NUM_BATCHES),
        (NUM_BATCHES + 2, 0, NUM_BATCHES + 1),
    ],
)
def test_a_crashed_run_goes_on(step, minutes, resumes, tmp_path, uninterrupted, caplog):
    with pytest.raises(RuntimeError, match="went down"):
        scripted(tmp_path, should_stop=at(step, crash), checkpoint_minutes=minutes)
    caplog.clear()
    with caplog.at_level("INFO", logger="dynskip_jax"):
        uninterrupted(scripted(tmp_path), tmp_path)
    wanted = [f"resuming after step {resumes}"] if resumes else []
    assert [record.getMessage().partition(" (epoch")[0] for record in caplog.records] == wanted
    # A finished run is not trained again.
    task = Scripted(SCRIPT)
    uninterrupted(run(task, tmp_path, seeds=(0,), epochs=len(SCRIPT), log_every=1), tmp_path)
    assert task.counts == []


@pytest.mark.parametrize("stopped_before", [False, True])
def test_crash_between_an_epochs_records_and_its_checkpoint_repeats_no_record(
    stopped_before, tmp_path, uninterrupted, monkeypatch
):
    if stopped_before:
        with pytest.raises(Stopped):
            scripted(tmp_path, should_stop=lambda step: step == NUM_BATCHES)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="went down"):
        patch.setattr(RunDir, "save", crash)
        scripted(tmp_path)
    uninterrupted(scripted(tmp_path), tmp_path)


LATER = "later"
INT = signal.SIGINT
TERM = signal.SIGTERM
HANDLED = (INT, TERM, signal.SIGHUP, signal.SIGUSR1)  # the last two come from clusters


@pytest.mark.parametrize(
    ("signals", "error", "message"),
    [
        ([INT], Stopped, "stopped after step 5 of 12; progress is saved"),
        ([signal.SIGUSR1], Stopped, "stopped after step 5 of 12; progress is saved"),
        ([INT, LATER, INT], KeyboardInterrupt, "steps after the last checkpoint are lost"),
        # `timeout` sends one to the process, and one to its group.
        ([INT, INT], Stopped, "progress is saved"),
        # Systems may repeat their signal. Only a second Ctrl-C interrupts at once.
        ([TERM, INT], Stopped, "progress is saved"),
    ],
    ids=str,
)
def test_signal_saves_and_stops_and_the_handlers_come_back(
    signals, error, message, tmp_path, uninterrupted
):
    before = [signal.getsignal(number) for number in HANDLED]

    def send():
        for number in signals:
            if number == LATER:
                time.sleep(1.1)
            else:
                os.kill(os.getpid(), number)

    with pytest.raises(error, match=message):
        scripted(tmp_path, should_stop=at(NUM_BATCHES + 1, send))
    uninterrupted(scripted(tmp_path), tmp_path)
    assert [signal.getsignal(number) for number in HANDLED] == before


@pytest.mark.parametrize("number", [INT, signal.SIGHUP])
def test_a_signal_that_is_ignored_stays_ignored(number, tmp_path, uninterrupted):
    """`nohup` starts a run with SIGHUP ignored, a shell's background job with SIGINT ignored."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        result = scripted(tmp_path, should_stop=lambda step: os.kill(os.getpid(), number))
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)
    uninterrupted(result, tmp_path)


# --- What is trained ---


def test_averages_of_iterates_are_what_is_evaluated_and_kept(tmp_path):
    # Seed 0 is never averaged, seed 1 from the second epoch on. `steps` counts updates, so its
    # averages are known. Training continues from the iterates, also after a stop in the middle.
    def train(folder, **options):
        task = Scripted([0] * 3, [0] * 3)
        average = lambda history: np.array([1, ALL if len(history) else 1])
        return task, run(task, folder, seeds=(3, 4), epochs=3, average=average, **options)

    task, result = train(tmp_path / "whole")
    N = NUM_BATCHES
    iterates = np.arange(3 * N + 1)
    expected = [
        [N, N],
        [2 * N, iterates[N : 2 * N + 1].mean()],
        [3 * N, iterates[N : 3 * N + 1].mean()],
    ]
    np.testing.assert_allclose(task.counts, expected, rtol=1e-6)
    np.testing.assert_allclose(result.params["steps"], expected[0])  # the first of equal dev scores
    with pytest.raises(Stopped):
        train(tmp_path / "parts", should_stop=lambda step: step == 2 * N + 1)
    again, _ = train(tmp_path / "parts")
    np.testing.assert_allclose(again.counts[-1], expected[-1], rtol=1e-6)


class Broken(Scripted):
    """Task whose loss is NaN in the batches `broken`, for seeds with a positive `second`."""

    def __init__(self, *scripts, broken):
        super().__init__(*scripts)
        self.broken = jnp.array(broken)

    @property
    def program(self):
        return self

    def loss(self, params, carry, batch, keys, scheduled, axis_name=None):
        loss, (after, sums) = super().loss(params, carry, batch, keys, scheduled, axis_name)
        number = (batch[0] - 1) * NUM_BATCHES + batch[1]
        bad = jnp.any(self.broken == number) & (params["second"] > 0)
        return jnp.where(bad, jnp.nan, 1.0) * loss, (after * jnp.where(bad, jnp.nan, 1.0), sums)

    def start(self, seeds):
        params = jax.vmap(self.init)(seed_keys(seeds).init)
        return {**params, "second": jnp.array([0.0, 1.0])}


def test_steps_that_are_not_finite_change_nothing():
    # After its one update in the first epoch, the second seed reads its script at index -1, then at
    # index 0.
    tasks = [Broken([3.0, 2.0], [3.0, 5.0], broken=broken) for broken in ((-1,), (1, 2, 4))]
    found = [run(task, seeds=(0, 1), epochs=2, start=task.start((0, 1))) for task in tasks]
    whole, skipped = (result.params for result in found)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(skipped))
    # `steps` counts the updates: the second seed made three of six, the first one all.
    np.testing.assert_allclose(skipped["steps"], [6, 3])
    assert found[1].skipped.tolist() == [0, 3]
    np.testing.assert_allclose(skipped["w"][0], whole["w"][0], rtol=1e-6)
    assert not np.allclose(skipped["w"][1], whole["w"][1])


def test_a_run_that_is_never_finite_again_ends_and_says_where(tmp_path):
    task = Broken([3.0] * 4, [3.0] * 4, broken=range(4, 12))
    options = dict(start=task.start((7, 8)), max_skipped=3, log_every=1)
    with pytest.raises(
        UserError, match=r"at step 8 loss or gradient of seed 8 was not finite for 4"
    ):
        run(task, tmp_path, seeds=(7, 8), epochs=4, **options)


def test_a_task_that_yields_fewer_batches_than_it_said_is_noticed():
    class Short(Scripted):
        def train_batches(self, epoch):
            return super().train_batches(epoch)[: NUM_BATCHES - 1 if epoch else NUM_BATCHES]

    with pytest.raises(UserError, match="expected 3 batches, got 2 in epoch 2"):
        run(Short([3.0, 2.0]), seeds=(0,), epochs=2)
