"""Make training resumable: its progress, and checkpoints of its state."""

import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dynskip_jax.errors import UserError
from dynskip_jax.storage.folder import RunDir, read_checkpoint, read_progress
from dynskip_jax.storage.results import row_of
from dynskip_jax.training.mesh import Parallel
from dynskip_jax.training.step import LAYOUT, PyTree, TrainState

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class TrainProgress:
    """Progress of training, which a checkpoint stores in addition to the training state."""

    epoch: int  # number of finished epochs
    batch: int  # number of batches used in the current epoch
    step: int  # number of steps taken
    seconds: float  # training time, including earlier parts of a resumed run
    history: np.ndarray  # monitored dev metric, (epochs so far, seeds)
    best_epoch: np.ndarray  # of each seed, from 1; 0 before the first evaluation, (seeds,)
    best_value: np.ndarray  # dev metric of that epoch; NaN before the first evaluation, (seeds,)

    @classmethod
    def start(cls, num_seeds: int) -> "TrainProgress":
        """Return the progress before the first step."""
        nothing = np.zeros((0, num_seeds)), np.zeros(num_seeds, int), np.full(num_seeds, np.nan)
        return cls(0, 0, 0, 0.0, *nothing)

    @classmethod
    def of(cls, stored: dict[str, Any], num_seeds: int) -> "TrainProgress":
        """Return the progress that a checkpoint stores; a `ValueError` says that it is none."""
        names = [field.name for field in dataclasses.fields(cls)]
        progress = cls(**{name: stored[name] for name in names})
        progress.history = np.array(progress.history, float).reshape(progress.epoch, num_seeds)
        progress.best_epoch = np.array(progress.best_epoch, int).reshape(num_seeds)
        progress.best_value = np.array(progress.best_value, float).reshape(num_seeds)
        return progress

    def finished(self, patience: int) -> np.ndarray:
        """Return which seeds have not improved for `patience` epochs; none if `patience` is 0."""
        return (self.epoch - self.best_epoch >= patience) & (patience > 0)

    def finish_epoch(self, value: np.ndarray, higher_is_better: bool, patience: int) -> np.ndarray:
        """Record the dev metric of an epoch, (seeds,), and return which seeds it is the best of.

        NaN is never the best. Seeds that have stopped, after `patience` epochs, keep their best
        epoch.
        """
        value = np.asarray(value, float)
        ahead = value < self.best_value
        if higher_is_better:
            ahead = value > self.best_value
        better = ~self.finished(patience) & (ahead | np.isnan(self.best_value)) & ~np.isnan(value)
        self.epoch = self.epoch + 1
        self.batch = 0
        self.history = np.concatenate([self.history, value[None]])
        self.best_epoch = np.where(better, self.epoch, self.best_epoch)
        self.best_value = np.where(better, value, self.best_value)
        return better


class Saver:
    """Restore and save checkpoints of the training state; the next one is due after `minutes`.

    Only the first of several processes has a `run_dir`, and writes. All of them read its folder.
    """

    def __init__(self, run_dir: RunDir | None, parallel: Parallel, minutes: float):
        self._run_dir = run_dir
        self._parallel = parallel
        self._minutes = minutes
        self._started = self._last_save = time.monotonic()

    def restore(
        self, state: TrainState, best: PyTree, progress: TrainProgress
    ) -> tuple[TrainState, PyTree, TrainProgress]:
        """Return the checkpoint's content, or the arguments, placed on their devices.

        Only then the run folder is changed.
        """
        run = self._run_dir
        processes = self._parallel.processes
        folder = processes.agree(run and run.checkpoint and str(run.checkpoint.absolute()))
        if folder is not None:
            state, best, progress = _read(Path(folder), state, best, len(progress.best_epoch))
            logger.info(
                "resuming after step %s (epoch %d)", f"{progress.step:,}", progress.epoch + 1
            )
        if run is not None:
            if run.is_finished:  # a finished run, which has also been evaluated, goes on
                progress.seconds = max(progress.seconds, row_of(run)["wall_seconds"])
            run.go_on()
        self._started -= progress.seconds
        return self._each(self._parallel.place, state), best, progress

    def seconds(self) -> float:
        """Return the training time in seconds, including earlier parts of a resumed run."""
        return time.monotonic() - self._started

    def save(self, state: TrainState, best: PyTree, progress: TrainProgress) -> None:
        """Write a checkpoint, and store the training time in `progress`."""
        progress.seconds = self.seconds()
        # Gathering the state takes a call on all processes.
        whole = {"state": self._each(self._parallel.whole, state), "best": best}
        if self._run_dir is not None:
            self._run_dir.save(progress.step, whole, vars(progress))
        self._last_save = time.monotonic()

    def is_due(self) -> bool:
        """Return whether the next checkpoint is due, by this process's clock."""
        return time.monotonic() - self._last_save > 60 * self._minutes

    @staticmethod
    def _each(move: Callable, state: TrainState) -> TrainState:
        return TrainState(*(move(part, spec) for part, spec in zip(state, LAYOUT, strict=True)))


def selected_params(run: RunDir, like: PyTree, num_models: int) -> PyTree:
    """Return the parameters of each model's best epoch, each leaf (num_models, ...).

    `like` has the parameters of one model, or their shapes.
    """
    stacked = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((num_models, *leaf.shape), leaf.dtype), like
    )
    if run.checkpoint is None:
        raise UserError(f"{run.path} has no checkpoint: copy the whole folder again")
    return read_checkpoint(run.checkpoint, {"best": stacked}, partial=True)["best"]


def _read(
    folder: Path, state: TrainState, best: PyTree, num_seeds: int
) -> tuple[TrainState, PyTree, TrainProgress]:
    """Return the content of a checkpoint, whose arrays must be those of `state` and `best`."""
    if not folder.is_dir():
        raise UserError(f"this process does not see {folder}: choose a --run-dir that all share")
    found = read_checkpoint(folder, {"state": state, "best": best})
    try:
        progress = TrainProgress.of(read_progress(folder), num_seeds)
    except ValueError as error:
        raise UserError(
            f"{folder} does not hold the progress of this run ({error}): choose another --run-dir"
        ) from None
    return found["state"], found["best"], progress
