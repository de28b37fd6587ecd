"""Run the training loop: all seeds in one compiled program, resumable bit for bit."""

import contextlib
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

from dynskip_jax.devices.memory import memory_line, program_memory
from dynskip_jax.devices.parallel import PER_EXAMPLE, PER_SEED, OneDevice, Parallel, batch_spec
from dynskip_jax.errors import Stopped, UserError
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.training.folder import RunDir
from dynskip_jax.training.hooks import Recorder, Saver, check_finite, interruptions
from dynskip_jax.training.progress import Progress
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
from dynskip_jax.training.train_progress import TrainProgress

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """Settings of `fit`.

    Attributes:
        seeds: Seed of each model; all models are trained in one program.
        epochs: Number of passes over the training split.
        optimizer: Direction of descent; see `make_optimizer`.
        learning_rate: Function from the epoch, from 0, and the dev history, (epochs so far, seeds), to the
            rate of each seed, (seeds,). In the history lower is better; other metrics are negated.
        average: Function from the same history to whether each seed's iterates are averaged in the next
            epoch, (seeds,). The means are then evaluated and kept as parameters. None never averages.
        start: Initial parameters, (seeds, ...); None for random ones.
        patience: Number of epochs without a better dev metric after which a seed stops; 0 never stops.
        max_skipped: Largest number of consecutive steps that a seed may skip because its loss or gradient is
            not finite. With more, training ends.
        log_every: Number of steps between two records of training metrics. The end of an epoch always
            writes one.
        checkpoint_minutes: Minutes between two checkpoints; the end of an epoch always saves one.
    """

    seeds: tuple[int, ...]
    epochs: int
    optimizer: optax.GradientTransformation
    learning_rate: Callable[[int, np.ndarray], np.ndarray]
    average: Callable[[np.ndarray], np.ndarray] | None = None
    start: PyTree | None = None
    patience: int = 0
    max_skipped: int = 100
    log_every: int = 100
    checkpoint_minutes: float = 10.0


@dataclasses.dataclass(frozen=True)
class FitResult:
    """Result of `fit`.

    Attributes:
        params: Parameters of each seed's best epoch on dev, (seeds, ...).
        best_epoch: Best epoch of each seed, from 1, (seeds,).
        epochs: Number of epochs that were run.
        seconds: Training time in seconds, including earlier parts of a resumed run.
        skipped: Number of steps that each seed skipped because its loss or gradient was not finite, (seeds,).
    """

    params: PyTree
    best_epoch: np.ndarray
    epochs: int
    seconds: float
    skipped: np.ndarray


def fit(
    task: Trainable,
    settings: FitSettings,
    run_dir: RunDir | None,
    *,
    parallel: Parallel | None = None,
    should_stop: Callable[[int], bool] = lambda step: False,
) -> FitResult:
    """Train all seeds, and keep the parameters of each seed's best epoch on dev.

    If the run folder contains a checkpoint, training resumes from it. On Ctrl-C or a termination signal (see
    `interruptions`), save after the current step and raise `Stopped`. With several processes this takes about
    a second. After the last step of an epoch, the evaluation on dev is finished first.

    Args:
        task: Task to train.
        settings: Settings of training.
        run_dir: Run folder for metrics and checkpoints. A run can be resumed on another number of devices.
            None saves nothing. With several processes, only process 0 passes a folder.
        parallel: Backend that runs the steps; by default one device.
        should_stop: Function called with the number of steps taken, wherever training can stop. Training
            stops if it returns True.

    Returns:
        The best parameters of each seed, with statistics.

    Raises:
        Stopped: If training was interrupted. The same call continues bit for bit.
        KeyboardInterrupt: If training was interrupted twice. The message names the step from which the same
            call continues.
    """
    parallel = parallel or OneDevice()
    processes = parallel.processes
    keys = seed_keys(settings.seeds)
    epoch = Epoch(task, settings, keys, parallel)
    state = epoch.start_state()
    best, progress = jax.tree.map(jnp.copy, state.params), TrainProgress.start(len(settings.seeds))

    with (
        Saver(run_dir, parallel, settings.checkpoint_minutes) as saver,
        interruptions(lambda: saver.latest_step) as interrupted,
    ):
        state, best, progress = saver.restore(state, best, progress)
        recorder = Recorder(task, run_dir, progress)
        total = settings.epochs * task.num_batches

        def asked(now: bool = False) -> tuple[bool, ...]:
            """Return whether to stop, and whether to save."""
            return processes.anyone(interrupted() or should_stop(progress.step), saver.is_due(), now=now)

        def stopped() -> Stopped:
            return Stopped(f"stopped after step {progress.step:,} of {total:,}; progress is saved")

        console = None if processes.first else Console(quiet=True)
        start = progress.epoch * task.num_batches + progress.batch
        with Progress(total, "training", start=start, console=console) as bar:
            while progress.epoch < settings.epochs and not progress.finished(settings.patience):
                rates = epoch.rates(progress)
                for after in epoch.steps(state, progress, rates, bar):
                    state = after
                    bar.advance(1, **epoch.shown(state))
                    if progress.batch == task.num_batches:
                        continue  # the epoch's records are written below, and then its checkpoint
                    if progress.step % settings.log_every == 0:
                        recorder.log("train", epoch.metrics(state), rates)
                        epoch.check(state, progress, saver.latest_step)
                    stopping, saving = asked()
                    if stopping or saving:
                        saver.save(state, best, progress)
                    if stopping:
                        raise stopped()
                epoch.check(state, progress, saver.latest_step)
                train, dev, params = epoch.evaluate(state, bar)
                better = progress.finish_epoch(dev[task.monitor], task.higher_is_better, settings.patience)
                best = epoch.keep_better(better, params, best)
                recorder.end_epoch(bar.console, settings.epochs, train, dev, rates)
                saver.save(state, best, progress)
                stopping, _ = asked(now=True)
                if stopping:
                    raise stopped()
        progress.seconds = saver.seconds()
    skipped = np.asarray(parallel.gather(state.skipped))[:, 1]
    return FitResult(best, progress.best_epoch, progress.epoch, progress.seconds, skipped)


class Epoch:
    """The parts of an epoch: learning rates, training steps, metrics and evaluation.

    Args:
        task: Task to train.
        settings: Settings of training.
        keys: PRNG keys of the seeds.
        parallel: Backend that runs the steps.
    """

    def __init__(
        self,
        task: Trainable,
        settings: FitSettings,
        keys: SeedKeys,
        parallel: Parallel,
    ):
        self._task, self._settings, self._keys, self._parallel = task, settings, keys, parallel
        self._has_said_memory = self._has_evaluated = False
        self._compiled: dict[Any, set] = {}  # from the static part of scheduled values to shapes of batches
        self._step = make_step(task, settings.optimizer, parallel)
        self._initial_carry = jax.jit(jax.vmap(task.initial_carry))
        self._select = jax.jit(where_each)
        self._train_keys = parallel.place(keys.train, PER_SEED)

    def start_state(self) -> TrainState:
        """Return the initial training state."""
        s, averaged = self._settings, self._settings.average is not None
        options = dict(averaged=averaged, initial_carry=self._initial_carry)
        return start_state(self._task, s.optimizer, self._keys, s.start, **options)

    def _losses(self, progress: TrainProgress) -> np.ndarray:
        """Return the dev history, negated if higher is better, (epochs so far, seeds)."""
        return -progress.history if self._task.higher_is_better else progress.history

    def rates(self, progress: TrainProgress) -> Any:
        """Return the learning rate of each seed, (seeds,)."""
        return jnp.asarray(self._settings.learning_rate(progress.epoch, self._losses(progress)), jnp.float32)

    def steps(
        self, state: TrainState, progress: TrainProgress, rates: Any, bar: Progress
    ) -> Iterator[TrainState]:
        """Run the remaining steps of the epoch, and yield the state after each step.

        Args:
            state: Training state to start from.
            progress: Progress of training, which is updated before each state is yielded.
            rates: Learning rate of each seed, (seeds,).
            bar: Progress bar, which shows when a program is compiled.

        Raises:
            UserError: If the task yields fewer batches than `num_batches`.
        """
        task, parallel = self._task, self._parallel
        rates = parallel.place(rates, PER_SEED)
        scheduled = parallel.place(task.scheduled(progress.epoch), PER_SEED)
        averaged = np.zeros(len(self._settings.seeds), bool)
        if self._settings.average is not None:
            averaged = self._settings.average(self._losses(progress))
        averaged = parallel.place(jnp.asarray(averaged), PER_SEED)
        if progress.batch == 0:
            state = self._begin(state, progress)
        batches = itertools.islice(task.train_batches(progress.epoch), progress.batch, task.num_batches)
        for batch in batches:
            with self._compiling(batch, scheduled, bar):
                batch = parallel.place(batch, batch_spec(task.batch_axis))
                arguments = state, batch, self._train_keys, progress.step, rates, scheduled, averaged
                self._say_memory(*arguments)
                state = self._step(*arguments)
            progress.step += 1
            progress.batch += 1
            yield state
        if progress.batch < task.num_batches:
            raise UserError(
                f"the task yielded {progress.batch} batches in epoch {progress.epoch + 1} "
                f"and said that there would be {task.num_batches}"
            )

    def _compiling(
        self, batch: PyTree, scheduled: PyTree, bar: Progress
    ) -> contextlib.AbstractContextManager:
        """Return a context that shows on the bar that this step is compiled, or a null context if it is not.

        The step is compiled for each new shape of batches and for each new mode of the policy.
        """
        lengths, shapes = self._task.train_lengths, tuple(map(np.shape, jax.tree.leaves(batch)))
        compiled = self._compiled.setdefault(jax.tree.structure(scheduled), set())
        if shapes in compiled:
            return contextlib.nullcontext()
        compiled.add(shapes)
        what, count = "compiling the training step", len(compiled)
        time_axis = 1 if self._task.batch_axis is None else 2
        length = next((shape[time_axis] for shape in shapes if len(shape) > time_axis), None)
        if len(lengths) > 1 and length in lengths:
            what = f"compiling for length {length} ({count} of {len(lengths)})"
        return bar.compiling(what, pending=max(0, len(lengths) - count))

    def _begin(self, state: TrainState, progress: TrainProgress) -> TrainState:
        """Return the state with the epoch's initial carry and with sums of zero."""
        parallel = self._parallel
        carry = self._initial_carry(parallel.gather(state.params), of_epoch(self._keys.carry, progress.epoch))
        carry = self._task.carry_over(state.carry, parallel.place(carry, PER_EXAMPLE))
        sums = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), parallel.gather(state.sums))
        return state._replace(carry=carry, sums=parallel.place(sums, PER_SEED))

    def _say_memory(self, *arguments: Any) -> None:
        if not self._has_said_memory:
            memory = program_memory(self._step, *arguments)
            if memory is not None:
                logger.info("%s", memory_line(memory))
            self._has_said_memory = True

    def metrics(self, state: TrainState) -> Metrics:
        """Return the training metrics of the epoch so far."""
        sums = self._parallel.gather(state.sums)
        with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 if every step was skipped
            return self._task.summarise(jax.tree.map(np.asarray, sums))

    def shown(self, state: TrainState) -> dict[str, Callable[[], float]]:
        """Return functions that compute the metrics next to the progress bar, by name.

        With several processes the result is empty: fetching a metric takes a call on all of them.
        """
        if self._parallel.processes.count > 1:
            return {}
        primary_metric = self._task.primary_metric
        return {primary_metric: lambda: float(np.mean(self.metrics(state)[primary_metric]))}

    def check(self, state: TrainState, progress: TrainProgress, latest_step: int) -> None:
        """See `check_finite`."""
        skipped = self._parallel.gather(state.skipped)
        check_finite(skipped, self._settings.seeds, self._settings.max_skipped, progress, latest_step)

    def evaluate(self, state: TrainState, bar: Progress) -> tuple[Metrics, Metrics, PyTree]:
        """Return the epoch's training metrics, its dev metrics, and the evaluated parameters.

        With averaging, the mean of the iterates is evaluated; before the trigger it is the last iterate. The
        bar shows that the first evaluation is compiled.
        """
        task, parallel = self._task, self._parallel
        params = state.params if state.average is None else state.average.mean
        train, params = self.metrics(state), parallel.gather(params)
        first, self._has_evaluated = not self._has_evaluated, True
        with bar.compiling("compiling the evaluation", steps=0) if first else contextlib.nullcontext():
            dev = task.evaluate(parallel.spread(params), "dev", parallel.spread(self._keys.evaluate))
        dev = parallel.processes.agree(dev)
        return train, {name: np.asarray(value) for name, value in dev.items()}, params

    def keep_better(self, better: np.ndarray, params: PyTree, best: PyTree) -> PyTree:
        """Return `params` for seeds with `better` True, and `best` for the others."""
        return self._select(jnp.asarray(better), params, best)
