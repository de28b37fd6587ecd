"""Support the training loop: record metrics, save checkpoints, handle signals, stop runs that diverge."""

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Array
from rich.console import Console

from dynskip_jax.devices.parallel import Parallel
from dynskip_jax.errors import UserError
from dynskip_jax.training.checkpoint import Checkpoints
from dynskip_jax.training.folder import RunDir
from dynskip_jax.training.step import LAYOUT, Metrics, PyTree, Trainable, TrainState
from dynskip_jax.training.train_progress import TrainProgress

logger = logging.getLogger(__name__)


class Recorder:
    """A writer of metrics to the run folder, and of one line for each epoch to the console.

    Args:
        task: Task that is trained.
        run_dir: Run folder that receives the records; None writes no records.
        progress: Current progress of training; the loop updates this object.
    """

    def __init__(self, task: Trainable, run_dir: RunDir | None, progress: TrainProgress):
        self._task, self._run_dir, self._progress = task, run_dir, progress

    def log(self, split: str, metrics: Metrics, rates: Array) -> None:
        """Add a record of a split's metrics and of the learning rates to the run folder."""
        if self._run_dir is not None:
            self._run_dir.log(_record(self._task, self._progress, split, metrics, rates))

    def end_epoch(self, console: Console, epochs: int, train: Metrics, dev: Metrics, rates: Array) -> None:
        """Add the records of an epoch to the run folder, and print a line with its mean metrics."""
        self.log("train", train, rates)
        self.log("dev", dev, rates)
        line = _epoch_line(self._task, self._progress, epochs, train, dev, rates)
        console.print(line, markup=False, highlight=False, soft_wrap=True)


class Saver:
    """A context manager that restores and saves checkpoints of the training state.

    Several processes use the folder of process 0, and restore and save together.

    Args:
        run_dir: Run folder with the checkpoints; None without one, and in all processes except process 0.
        parallel: Backend that places the state on its devices.
        minutes: Minutes after which the next checkpoint is due.
    """

    def __init__(self, run_dir: RunDir | None, parallel: Parallel, minutes: float):
        self._run_dir, self._parallel, self._minutes = run_dir, parallel, minutes
        self._checkpoints: Checkpoints | None = None
        self._started = self._last_save = time.monotonic()
        self._seconds_before = 0.0

    def __enter__(self) -> "Saver":
        processes = self._parallel.processes
        folder = processes.agree(self._run_dir and str(self._run_dir.checkpoints.absolute()))
        if folder is not None:
            self._checkpoints = Checkpoints(folder, processes=processes)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._checkpoints is not None:
            self._checkpoints.__exit__(*exception)

    def restore(
        self, state: TrainState, best: PyTree, progress: TrainProgress
    ) -> tuple[TrainState, PyTree, TrainProgress]:
        """Return the content of the newest intact checkpoint, or the arguments if there is none.

        The state is placed on its devices. The run folder is rewound to the step of the checkpoint.
        """
        restored = self._checkpoints and self._checkpoints.restore_latest({"state": state, "best": best})
        if restored is not None:
            state, best = restored.state["state"], restored.state["best"]
            for line in restored.skipped:
                logger.warning("%s", line)
            progress = TrainProgress.from_meta(restored.meta)
            logger.info("resuming after step %s (epoch %d)", f"{progress.step:,}", progress.epoch + 1)
        if self._run_dir is not None:
            self._run_dir.rewind(progress.step)
            self._run_dir.go_on()
        self._seconds_before = progress.seconds
        return self._each(self._parallel.place, state), best, progress

    def seconds(self) -> float:
        """Return the training time in seconds, including earlier parts of a resumed run."""
        return self._seconds_before + time.monotonic() - self._started

    def save(self, state: TrainState, best: PyTree, progress: TrainProgress) -> None:
        """Write a checkpoint, and store the training time in `progress`."""
        progress.seconds = self.seconds()
        if self._checkpoints is not None:
            whole = {"state": self._each(self._parallel.whole, state), "best": best}
            self._checkpoints.save(progress.step, whole, progress.to_meta())
        self._last_save = time.monotonic()

    def is_due(self) -> bool:
        """Return whether the next checkpoint is due, by this process's clock."""
        return time.monotonic() - self._last_save > 60 * self._minutes

    @property
    def latest_step(self) -> int:
        """Step of the newest checkpoint; 0 if there is none."""
        return (self._checkpoints and self._checkpoints.latest_step) or 0

    @staticmethod
    def _each(move: Callable, state: TrainState) -> TrainState:
        return TrainState(*(move(part, spec) for part, spec in zip(state, LAYOUT, strict=True)))


def check_finite(
    skipped: Array, seeds: tuple[int, ...], max_skipped: int, progress: TrainProgress, latest_step: int
) -> None:
    """Check that no seed has skipped too many steps in a row.

    Args:
        skipped: `TrainState.skipped`, (seeds, 2).
        seeds: The seeds, for the error message.
        max_skipped: Largest allowed number of consecutive skipped steps.
        progress: Current progress of training.
        latest_step: Step of the newest checkpoint.

    Raises:
        UserError: If a seed has skipped more steps.
    """
    in_a_row, _ = np.asarray(skipped).T
    stuck = np.flatnonzero(in_a_row > max_skipped)
    if stuck.size:
        raise UserError(
            f"at step {progress.step:,} loss or gradient of seed {', '.join(str(seeds[i]) for i in stuck)} "
            f"was not finite for {in_a_row[stuck].max()} steps in a row; the last checkpoint is of step "
            f"{latest_step:,}: lower --learning-rate or set --clip"
        )


def _record(task: Trainable, progress: TrainProgress, split: str, metrics: Metrics, rates: Array) -> dict:
    """Return one line of metrics.jsonl: each metric is a list with one value for each seed."""
    values = {f"{split}_{name.removeprefix(split + '_')}": value for name, value in metrics.items()}
    values["learning_rate"] = np.asarray(rates, float)
    each = {name: np.asarray(value, float).tolist() for name, value in values.items()}
    # Within an epoch, `epoch` is fractional; at its end it is the number of finished epochs.
    epoch = progress.epoch + progress.batch / task.num_batches
    sizes = task.train_batch_sizes(progress.epoch)
    seen = progress.epoch * sum(sizes) + sum(sizes[: progress.batch])
    return {"step": progress.step, "epoch": round(epoch, 4), task.unit: seen, "split": split, **each}


def _epoch_line(
    task: Trainable, progress: TrainProgress, epochs: int, train: Metrics, dev: Metrics, rates
) -> str:
    numbers = [f"train_{task.primary_metric} {np.mean(train[task.primary_metric]):.4g}"]
    numbers += [f"{name} {np.mean(value):.4g}" for name, value in dev.items() if np.ndim(value) == 1]
    return (
        f"epoch {progress.epoch}/{epochs}  {'  '.join(numbers)}  lr {float(np.mean(np.asarray(rates))):.3g}"
    )


# SIGHUP and SIGUSR1 do not exist on Windows.
STOPPING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)
)


@contextlib.contextmanager
def interruptions(latest_step: Callable[[], int] = lambda: 0) -> Iterator[Callable[[], bool]]:
    """Catch Ctrl-C and termination signals, and yield a function that returns whether one has arrived.

    The signals are SIGINT (Ctrl-C), SIGTERM, SIGHUP, and SIGUSR1, which clusters send before they end a job.
    A second Ctrl-C raises `KeyboardInterrupt` at once. Outside the main thread no signal is caught.

    Args:
        latest_step: Function that returns the step of the newest checkpoint, for the error message.
    """
    received: list[int] = []

    def handler(number, frame):
        received.append(number)
        if received.count(signal.SIGINT) > 1:
            raise KeyboardInterrupt(
                f"interrupted at once: nothing was saved, and the next start goes on from step "
                f"{latest_step():,}"
            )

    try:
        previous = {number: signal.signal(number, handler) for number in STOPPING}
    except ValueError:  # signals can only be handled in the main thread
        previous = {}
    try:
        yield lambda: bool(received)
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
