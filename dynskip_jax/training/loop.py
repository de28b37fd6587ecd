"""Run the training loop: all seeds in one compiled program, resumable bit for bit."""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

from dynskip_jax.errors import Stopped, UserError
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.storage.folder import RunDir
from dynskip_jax.training.interruptions import interruptions
from dynskip_jax.training.mesh import PER_EXAMPLE, PER_SEED, Parallel, batch_spec
from dynskip_jax.training.optimizer import Schedule
from dynskip_jax.training.progress import Progress
from dynskip_jax.training.resume import Saver, TrainProgress
from dynskip_jax.training.step import (
    Metrics,
    PyTree,
    SeedKeys,
    Trainable,
    TrainState,
    make_step,
    of_epoch,
    seed_keys,
    start_state,
)

logger = logging.getLogger(__name__)

_ASK_EVERY = 10  # steps after which processes tell each other of signals


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """Settings of `fit`."""

    seeds: tuple[int, ...]  # of each model; all models are trained in one program
    epochs: int
    optimizer: optax.GradientTransformation  # direction of descent; see `make_optimizer`
    learning_rate: Schedule
    # Function from the same history to how many iterates of each seed are averaged at most in the
    # next epoch, (seeds,); 1: none are. The means are then evaluated and kept as parameters. None
    # never averages.
    average: Callable[[np.ndarray], np.ndarray] | None = None
    start: PyTree | None = None  # initial parameters, (seeds, ...), instead of random ones
    patience: int = 0  # epochs without a better dev metric after which a seed stops; 0 never stops
    max_skipped: int = 100  # largest number of steps in a row that may be skipped as not finite
    # Steps between two records of training metrics; the end of an epoch has one.
    log_every: int = 100
    checkpoint_minutes: float = 10.0  # between two checkpoints; the end of an epoch saves one


@dataclasses.dataclass(frozen=True)
class FitResult:
    """Result of `fit`."""

    params: PyTree  # of each seed's best epoch on dev, (seeds, ...)
    best_epoch: np.ndarray  # of each seed, from 1, (seeds,)
    epochs: int  # number of epochs that were run
    seconds: float  # training time, with that of earlier parts of a resumed run
    skipped: np.ndarray  # steps of each seed that were skipped as not finite, (seeds,)


def fit(
    task: Trainable,
    settings: FitSettings,
    run_dir: RunDir | None,
    *,
    parallel: Parallel | None = None,
    should_stop: Callable[[int], bool] = lambda step: False,
) -> FitResult:
    """Train all seeds, and keep the parameters of each seed's best epoch on dev.

    If the run folder contains a checkpoint, training resumes from it, on any number of devices. On
    Ctrl-C or a termination signal (see `interruptions`), save after the current step and raise
    `Stopped`. After the last step of an epoch, the evaluation on dev is finished first.

    Args:
        run_dir: Folder for metrics and checkpoints; None saves nothing. With several processes,
            only process 0 passes one.
        should_stop: Function of the number of steps taken; training stops if it returns True.
    """
    parallel = parallel or Parallel()
    processes = parallel.processes
    keys = seed_keys(settings.seeds)
    epoch = Epoch(task, settings, keys, parallel)
    averaged = settings.average is not None
    console = None if processes.first else Console(quiet=True)
    state = start_state(task, settings.optimizer, keys, settings.start, averaged=averaged)
    best = jax.tree.map(jnp.copy, state.params)
    progress = TrainProgress.start(len(settings.seeds))
    saver = Saver(run_dir, parallel, settings.checkpoint_minutes)

    with interruptions() as interrupted:
        state, best, progress = saver.restore(state, best, progress)
        total = settings.epochs * task.num_batches

        def asked() -> tuple[bool, ...]:
            """Return whether to stop, and whether to save."""
            return processes.anyone(interrupted() or should_stop(progress.step), saver.is_due())

        def log(split: str, metrics: Metrics) -> None:
            if run_dir is not None:
                run_dir.log(_record(task, progress, split, metrics, rates))

        def stopped() -> Stopped:
            """Return the error that ends a run between two steps."""
            saved = "" if run_dir is None else "; progress is saved"
            return Stopped(f"stopped after step {progress.step:,} of {total:,}{saved}")

        start = progress.epoch * task.num_batches + progress.batch
        with Progress(total, "training", start=start, console=console) as bar:
            while progress.epoch < settings.epochs and not (why := epoch.ends_early(progress)):
                rates = epoch.rates(progress)
                for after in epoch.steps(state, progress, rates, bar):
                    state = after
                    bar.advance(1, **epoch.shown(state))
                    if progress.batch == task.num_batches:
                        continue  # the epoch's records are written below, and then its checkpoint
                    if progress.step % settings.log_every == 0:
                        log("train", epoch.metrics(state))
                        epoch.check(state, progress)
                    if processes.count > 1 and progress.step % _ASK_EVERY:
                        continue
                    stopping, saving = asked()
                    if stopping or saving:
                        saver.save(state, best, progress)
                    if stopping:
                        raise stopped()
                epoch.check(state, progress)
                train, dev, params = epoch.evaluate(state, bar)
                better = progress.finish_epoch(
                    dev[task.monitor], task.higher_is_better, settings.patience
                )
                best = epoch.keep_better(jnp.asarray(better), params, best)
                log("train", train)
                log("dev", dev)
                line = _epoch_line(task, progress, settings.epochs, train, dev, rates)
                bar.print(line)
                saver.save(state, best, progress)
                stopping, _ = asked()
                if stopping:
                    raise stopped()
        if progress.epoch < settings.epochs:
            logger.info("stopped after epoch %s: %s", progress.epoch, why)
        progress.seconds = saver.seconds()
    skipped = np.asarray(parallel.gather(state.skipped))[:, 1]
    return FitResult(best, progress.best_epoch, progress.epoch, progress.seconds, skipped)


class Epoch:
    """The parts of an epoch: learning rates, training steps, metrics and evaluation."""

    def __init__(self, task: Trainable, settings: FitSettings, keys: SeedKeys, parallel: Parallel):
        self._task = task
        self._settings = settings
        self._keys = keys
        self._parallel = parallel
        self._compiled: set[Any] = set()  # static parts of scheduled values, with shapes of batches
        self._step = make_step(task, settings.optimizer, parallel)
        self._initial_carry = jax.jit(jax.vmap(task.initial_carry))
        # Of (better, params, best): the first for seeds that are better.
        self.keep_better = jax.jit(where_each)
        self._train_keys = parallel.place(keys.train, PER_SEED)

    def _losses(self, progress: TrainProgress) -> np.ndarray:
        """Return the dev history, negated if higher is better, (epochs so far, seeds)."""
        if self._task.higher_is_better:
            return -progress.history
        return progress.history

    def rates(self, progress: TrainProgress) -> Any:
        """Return the learning rate of each seed, (seeds,)."""
        rate = self._settings.learning_rate(progress.epoch, self._losses(progress))
        return jnp.broadcast_to(jnp.asarray(rate, jnp.float32), len(self._settings.seeds))

    def ends_early(self, progress: TrainProgress) -> str:
        """Return why all seeds need no more epochs; empty if one does."""
        if progress.finished(self._settings.patience).all():
            metric = self._task.monitor.replace("_", " ")
            return f"no better {metric} for {self._settings.patience} epochs"
        first = self.rates(TrainProgress.start(len(self._settings.seeds)))
        if (self.rates(progress) < first / 1000).all():
            return "the learning rate fell below a thousandth of the first"
        return ""

    def steps(
        self, state: TrainState, progress: TrainProgress, rates: Any, bar: Progress
    ) -> Iterator[TrainState]:
        """Run an epoch's remaining steps, update `progress`, and yield the state after each."""
        task = self._task
        parallel = self._parallel
        rates = parallel.place(rates, PER_SEED)
        scheduled = parallel.place(task.scheduled(progress.epoch), PER_SEED)
        most = np.ones(len(self._settings.seeds), np.int32)
        if self._settings.average is not None:
            most = self._settings.average(self._losses(progress))
        most = parallel.place(jnp.asarray(most, jnp.int32), PER_SEED)
        if progress.batch == 0 and progress.epoch > 0:
            state = self._begin(state, progress)
        batches = itertools.islice(
            task.train_batches(progress.epoch), progress.batch, task.num_batches
        )
        for batch in batches:
            # The step is compiled for each new shape of batches and for each new mode of the
            # policy.
            program = (jax.tree.structure(scheduled), *map(np.shape, jax.tree.leaves(batch)))
            if program not in self._compiled:
                self._compiled.add(program)
                bar.show("compiling the training step")
            batch = parallel.place(batch, batch_spec(task.batch_axis))
            state = self._step(
                state, batch, self._train_keys, progress.step, rates, scheduled, most
            )
            progress.step += 1
            progress.batch += 1
            yield state
        if progress.batch < task.num_batches:
            found = f"got {progress.batch} in epoch {progress.epoch + 1}"
            raise UserError(f"expected {task.num_batches} batches, {found}")

    def _begin(self, state: TrainState, progress: TrainProgress) -> TrainState:
        """Return the state with the epoch's initial carry and with sums of zero."""
        parallel = self._parallel
        carry = self._initial_carry(
            parallel.gather(state.params), of_epoch(self._keys.carry, progress.epoch)
        )
        # Not `zeros_like`, which puts them on one device, where `pmap` does not accept them.
        sums = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), parallel.gather(state.sums)
        )
        return state._replace(
            carry=parallel.place(carry, PER_EXAMPLE), sums=parallel.place(sums, PER_SEED)
        )

    def metrics(self, state: TrainState) -> Metrics:
        """Return the training metrics of the epoch so far."""
        sums = self._parallel.gather(state.sums)
        with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 if every step was skipped
            return self._task.summarise(jax.tree.map(np.asarray, sums))

    def shown(self, state: TrainState) -> dict[str, Callable[[], float]]:
        """Return functions that compute the metrics next to the progress bar, by name."""
        if self._parallel.processes.count > 1:
            return {}  # fetching a metric takes a call on all of them
        primary_metric = self._task.primary_metric
        return {
            primary_metric: lambda: float(np.mean(self.metrics(state).get(primary_metric, np.nan)))
        }

    def check(self, state: TrainState, progress: TrainProgress) -> None:
        """Raise a `UserError` if a seed has skipped too many steps in a row."""
        in_a_row, _ = np.asarray(self._parallel.gather(state.skipped)).T
        stuck = np.flatnonzero(in_a_row > self._settings.max_skipped)
        if stuck.size:
            raise UserError(
                f"at step {progress.step:,} loss or gradient of seed "
                f"{', '.join(str(self._settings.seeds[i]) for i in stuck)} was not finite for "
                f"{in_a_row[stuck].max()} steps in a row: lower --learning-rate or set --clip"
            )

    def evaluate(self, state: TrainState, bar: Progress) -> tuple[Metrics, Metrics, PyTree]:
        """Return the metrics of train and dev, and the parameters (means, with averaging)."""
        task = self._task
        parallel = self._parallel
        params = state.params
        if state.average is not None:
            params = state.average.mean
        train = self.metrics(state)
        params = parallel.gather(params)
        bar.show("evaluating")
        dev = task.evaluate(parallel.spread(params), "dev", parallel.spread(self._keys.evaluate))
        dev = parallel.processes.agree(dev)
        for name, metrics in ((task.primary_metric, train), (task.monitor, dev)):
            if name not in metrics:
                raise UserError(f"the task has no metric {name!r}, only {', '.join(metrics)}")
        return train, {name: np.asarray(value) for name, value in dev.items()}, params


def _record(
    task: Trainable, progress: TrainProgress, split: str, metrics: Metrics, rates: Any
) -> dict:
    """Return one line of metrics.jsonl: each metric is a list with one value for each seed."""
    values = {f"{split}_{name.removeprefix(split + '_')}": value for name, value in metrics.items()}
    values["learning_rate"] = rates
    each = {name: np.asarray(value, float).tolist() for name, value in values.items()}
    # Within an epoch, `epoch` is fractional; at its end it is the number of finished epochs.
    epoch = progress.epoch + progress.batch / task.num_batches
    sizes = task.train_batch_sizes(progress.epoch)
    seen = progress.epoch * sum(sizes) + sum(sizes[: progress.batch])
    return {
        "step": progress.step,
        "epoch": round(epoch, 4),
        task.unit: seen,
        "split": split,
        **each,
    }


def _epoch_line(
    task: Trainable, progress: TrainProgress, epochs: int, train: Metrics, dev: Metrics, rates: Any
) -> str:
    numbers = [f"train_{task.primary_metric} {np.mean(train[task.primary_metric]):.4g}"]
    numbers += [
        f"{name} {np.mean(value):.4g}" for name, value in dev.items() if np.ndim(value) == 1
    ]
    return f"epoch {progress.epoch}/{epochs}  {'  '.join(numbers)}  lr {float(np.mean(rates)):.3g}"
