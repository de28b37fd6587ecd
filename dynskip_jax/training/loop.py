"""The training loop: all seeds in one compiled program, resumable bit for bit."""

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
from dynskip_jax.runs.progress import Progress
from dynskip_jax.runs.run_dir import RunDir
from dynskip_jax.training.hooks import Recorder, Saver, check_finite, interruptions
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
    """How long and how to train.

    Attributes:
        seeds: one model is trained for each, all in one program.
        epochs: passes over the training split.
        optimizer: direction of descent; see `make_optimizer`.
        learning_rate: from (epoch, dev history (epochs so far, seeds)) to a rate for each seed, (seeds,). In
            this history lower is better: a metric of which more is better is negated.
        average: from the same history to whether each seed's iterates are averaged from
            now on, (seeds,); the averages are then what is evaluated and kept. None never averages.
        start: parameters to start from in place of fresh ones, (seeds, ...).
        patience: stop a seed after this many epochs without a better dev metric; 0 never stops.
        max_skipped: steps in a row that a seed may skip because its loss or gradient is not finite, before
            training ends.
        log_every: steps between records of training metrics.
        checkpoint_minutes: at most this much work is lost to a crash (an epoch's end always saves).
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
    """What training leaves.

    Attributes:
        params: the parameters of each seed's best epoch on dev, (seeds, ...).
        best_epoch: 1-based, (seeds,).
        epochs: how many epochs were run.
        seconds: time spent, earlier parts of a resumed run included.
        skipped: steps of each seed that changed nothing because loss or gradient were not finite, (seeds,).
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
    """Trains, keeps the parameters of the best epoch on dev, and resumes what the run folder holds.

    Interrupted (Ctrl-C, SIGTERM) it saves after the step in progress (several processes: within about a
    second), or after the evaluation that follows an epoch's last step, and raises `Stopped`.

    Args:
        task: what to train.
        settings: how.
        run_dir: receives metrics and checkpoints, the same ones on one device and on many: a run may go on
            with another number of devices than it began with. Of several processes only the first has one.
        parallel: on which devices, and how; by default one.
        should_stop: asked where it could stop, with the number of steps taken.

    Returns:
        The best parameters of each seed.

    Raises:
        Stopped: it was interrupted; the same call continues bit for bit.
        KeyboardInterrupt: it was interrupted twice; the message says from which step the same call continues.
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
            """Whether to stop, and whether to save."""
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
                    if progress.step % settings.log_every == 0:
                        recorder.log("train", epoch.metrics(state), rates)
                        epoch.check(state, progress, saver.latest_step)
                    # The end of the epoch saves, after its records: one checkpoint per step.
                    if progress.batch < task.num_batches:
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
    """What an epoch consists of: its rates, its steps, and the look at what came out.

    Args:
        task: what is trained.
        settings: how.
        keys: of the seeds.
        parallel: on which devices.
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
        self._compiled: dict[Any, set] = {}  # from what is static in a schedule to the shapes of batches
        self._step = make_step(task, settings.optimizer, parallel)
        self._initial_carry = jax.jit(jax.vmap(task.initial_carry))
        self._select = jax.jit(where_each)
        self._train_keys = parallel.place(keys.train, PER_SEED)

    def start_state(self) -> TrainState:
        """Returns where training begins."""
        s, averaged = self._settings, self._settings.average is not None
        options = dict(averaged=averaged, initial_carry=self._initial_carry)
        return start_state(self._task, s.optimizer, self._keys, s.start, **options)

    def _losses(self, progress: TrainProgress) -> np.ndarray:
        """The dev history, lower being better."""
        return -progress.history if self._task.higher_is_better else progress.history

    def rates(self, progress: TrainProgress) -> Any:
        """Returns the learning rate of each seed, (seeds,)."""
        return jnp.asarray(self._settings.learning_rate(progress.epoch, self._losses(progress)), jnp.float32)

    def steps(
        self, state: TrainState, progress: TrainProgress, rates: Any, bar: Progress
    ) -> Iterator[TrainState]:
        """Takes the steps that are left of the epoch; yields the state after each, `progress` being moved on.

        Args:
            state: to go on from.
            progress: how far training has come.
            rates: the learning rate of each seed.
            bar: is told what is compiled.

        Raises:
            UserError: the task yields fewer batches than it said.
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
        """Tells the bar where the step is compiled, as for each new shape of batches and each new mode."""
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
        """A fresh carry, and sums of nothing."""
        parallel = self._parallel
        carry = self._initial_carry(parallel.gather(state.params), of_epoch(self._keys.carry, progress.epoch))
        sums = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), parallel.gather(state.sums))
        return state._replace(carry=parallel.place(carry, PER_EXAMPLE), sums=parallel.place(sums, PER_SEED))

    def _say_memory(self, *arguments: Any) -> None:
        if not self._has_said_memory:
            memory = program_memory(self._step, *arguments)
            if memory is not None:
                logger.info("%s", memory_line(memory))
            self._has_said_memory = True

    def metrics(self, state: TrainState) -> Metrics:
        """Returns the training metrics of the epoch so far."""
        sums = self._parallel.gather(state.sums)
        with np.errstate(invalid="ignore", divide="ignore"):  # of a seed that has skipped every step
            return self._task.summarise(jax.tree.map(np.asarray, sums))

    def shown(self, state: TrainState) -> dict[str, Callable[[], float]]:
        """Returns what stands beside the progress bar. With several processes a metric takes all of them to
        fetch, and nothing stands there."""
        if self._parallel.processes.count > 1:
            return {}
        primary_metric = self._task.primary_metric
        return {primary_metric: lambda: float(np.mean(self.metrics(state)[primary_metric]))}

    def check(self, state: TrainState, progress: TrainProgress, latest_step: int) -> None:
        """See `check_finite`."""
        skipped = self._parallel.gather(state.skipped)
        check_finite(skipped, self._settings.seeds, self._settings.max_skipped, progress, latest_step)

    def evaluate(self, state: TrainState, bar: Progress) -> tuple[Metrics, Metrics, PyTree]:
        """Returns the epoch's training metrics, dev metrics, and the parameters that were evaluated.

        Before iterates are averaged, their average is the last one. The bar is told that the first evaluation
        compiles.
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
        """Returns the new parameters of seeds that have become better, and the old ones of the others."""
        return self._select(jnp.asarray(better), params, best)
