"""Make training resumable: its progress, and checkpoints of its state."""

import dataclasses
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from dynskip_jax.devices.parallel import Parallel
from dynskip_jax.errors import UserError
from dynskip_jax.training.checkpoint import Checkpoints, Restored
from dynskip_jax.training.files import is_of
from dynskip_jax.training.folder import RunDir
from dynskip_jax.training.results import check_checkpoint, row_of
from dynskip_jax.training.step import LAYOUT, PyTree, TrainState

logger = logging.getLogger(__name__)

# What a checkpoint stores in addition to the training state.
_MOST_EPOCHS = 1_000_000
_NUMBER = (int, float)
_META = {
    **dict.fromkeys(("epoch", "batch", "step"), int),
    "seconds": _NUMBER,
    "history": [[_NUMBER]],
    "best_epoch": [int],
    "best_value": [_NUMBER],
    "run": (str, type(None)),
    "metrics": (str, type(None)),
}


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

    def to_meta(self) -> dict:
        """Return the progress as a dictionary that JSON can represent."""
        return {name: np.asarray(value).tolist() for name, value in vars(self).items()}

    @classmethod
    def from_meta(cls, meta: dict, num_seeds: int) -> "TrainProgress":
        """Return the progress that `to_meta` stored; a `ValueError` names wrong entries."""
        wrong = [
            name for name, form in _META.items() if not is_of(form, meta.get(name), _MOST_EPOCHS)
        ]
        if wrong:
            raise ValueError(", ".join(wrong))
        counts = (meta["epoch"], meta["batch"], meta["step"])
        is_possible = {
            "epoch, batch, step": min(counts) >= 0,
            "seconds": 0 <= meta["seconds"] < math.inf,
            "history": [len(values) for values in meta["history"]] == [num_seeds] * meta["epoch"],
            "best_epoch": len(meta["best_epoch"]) == num_seeds
            and all(0 <= epoch <= meta["epoch"] for epoch in meta["best_epoch"]),
            "best_value": len(meta["best_value"]) == num_seeds,
        }
        wrong = [name for name, holds in is_possible.items() if not holds]
        if wrong:
            raise ValueError(", ".join(wrong))
        history = np.array(meta["history"], float).reshape(-1, num_seeds)
        best = np.array(meta["best_epoch"]), np.array(meta["best_value"], float)
        return cls(*counts, meta["seconds"], history, *best)

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

    def check_patience(self, higher_is_better: bool, patience: int) -> None:
        """Raise a `UserError` if a larger patience would have kept parameters that are gone."""
        again = TrainProgress.start(len(self.best_epoch))
        for value in self.history:
            again.finish_epoch(value, higher_is_better, patience)
        if (again.best_epoch != self.best_epoch).any():
            problem = "a seed that had stopped would have a better epoch"
            raise UserError(
                f"with --patience {patience} {problem}, whose parameters were not kept: "
                "leave it as it was, or choose another --run-dir"
            )


class Saver:
    """Restore and save checkpoints of the training state; the next one is due after `minutes`.

    Several processes use the folder of process 0, the only one with a `run_dir`, and restore and
    save together.
    """

    def __init__(self, run_dir: RunDir | None, parallel: Parallel, minutes: float):
        self._run_dir = run_dir
        self._parallel = parallel
        self._minutes = minutes
        self._started = self._last_save = time.monotonic()
        folder = parallel.processes.agree(run_dir and str(run_dir.checkpoints.absolute()))
        self._checkpoints: Checkpoints | None = None
        if folder is not None:
            self._checkpoints = Checkpoints(folder, processes=parallel.processes)

    def restore(
        self,
        state: TrainState,
        best: PyTree,
        progress: TrainProgress,
        check: Callable[[TrainProgress], None],
    ) -> tuple[TrainState, PyTree, TrainProgress]:
        """Return the newest intact checkpoint's content, or the arguments, placed on their devices.

        Files that do not belong together are refused, as is a progress at which `check` raises.
        Only then the run folder is rewound to the checkpoint.
        """
        restored = self._checkpoints and self._checkpoints.restore_latest(
            {"state": state, "best": best}
        )
        if restored is not None:
            progress = _progress_of(restored, len(progress.best_epoch), self._checkpoints.directory)
        if self._run_dir is not None:
            _check_belonging(self._run_dir, restored)
            self._run_dir.checkpoint = restored and restored.fingerprint
        if restored is not None:
            state = restored.state["state"]
            best = restored.state["best"]
            for line in restored.skipped:
                logger.warning(line)
            check(progress)
            logger.info(
                "resuming after step %s (epoch %d)", f"{progress.step:,}", progress.epoch + 1
            )
        if self._run_dir is not None:
            row = row_of(self._run_dir)
            if row is not None:  # a finished run, which has also been evaluated, goes on
                progress.seconds = max(progress.seconds, row["wall_seconds"])
            self._run_dir.rewind(progress.step, restored and restored.meta.get("metrics"))
            self._run_dir.go_on()
        self._started -= progress.seconds
        return self._each(self._parallel.place, state), best, progress

    def seconds(self) -> float:
        """Return the training time in seconds, including earlier parts of a resumed run."""
        return time.monotonic() - self._started

    def save(self, state: TrainState, best: PyTree, progress: TrainProgress) -> None:
        """Write a checkpoint, and store the training time in `progress`.

        Files that others have changed meanwhile are an error, after the checkpoint has been
        written.
        """
        progress.seconds = self.seconds()
        run = self._run_dir
        if self._checkpoints is not None:
            whole = {"state": self._each(self._parallel.whole, state), "best": best}
            meta = progress.to_meta()
            if run is not None:
                run.check_present()
                meta |= {"run": run.identity, "metrics": run.digest_of_metrics()}
            fingerprint = self._checkpoints.save(progress.step, whole, meta)
            if run is not None:
                run.checkpoint = fingerprint
                run.check_unchanged()
        self._last_save = time.monotonic()

    def is_due(self) -> bool:
        """Return whether the next checkpoint is due, by this process's clock."""
        return time.monotonic() - self._last_save > 60 * self._minutes

    @staticmethod
    def _each(move: Callable, state: TrainState) -> TrainState:
        return TrainState(*(move(part, spec) for part, spec in zip(state, LAYOUT, strict=True)))


def selected_params(run: RunDir, like: PyTree, num_models: int) -> PyTree:
    """Return the parameters of each model's best epoch, each leaf (num_models, ...).

    A checkpoint that is not that of `result.json`, or is damaged, is refused: an older one may
    contain other parameters than those that were evaluated. `like` has the parameters of one model,
    or their shapes.
    """
    stacked = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((num_models, *leaf.shape), leaf.dtype), like
    )
    restored = Checkpoints(run.checkpoints).restore_latest({"best": stacked}, partial=True)
    if restored is not None and restored.skipped:
        raise UserError(
            f"{restored.skipped[0]}, and an older one may hold other parameters: restore it"
        )
    check_checkpoint(run, restored and restored.fingerprint)
    return restored.state["best"]


def _progress_of(restored: Restored, num_seeds: int, folder: Path) -> TrainProgress:
    """Return the progress that a checkpoint contains, which may be a stranger's."""
    step = restored.fingerprint["step"]
    try:
        progress = TrainProgress.from_meta(restored.meta, num_seeds)
        if progress.step != step:
            raise ValueError("step")
    except ValueError as error:
        problem = f"does not hold the progress of this run ({error})"
        raise UserError(
            f"checkpoint {step} in {folder} {problem}: restore it, or choose another --run-dir"
        ) from None
    return progress


def _check_belonging(run: RunDir, restored: Restored | None) -> None:
    """Refuse a folder whose checkpoint, result and metrics are not those of one run at one time."""
    remedy = "restore it, or choose another --run-dir"
    # A dev record is followed by a checkpoint, so that only the last record may be without.
    if restored is None and any(record.get("split") == "dev" for record in run.records()[:-1]):
        raise UserError(
            f"{run.path} has records of finished epochs, and there is no checkpoint: {remedy}"
        )
    if restored is not None and restored.meta.get("run") != run.identity:
        step = restored.fingerprint["step"]
        raise UserError(
            f"{run.path}: checkpoint {step} is another run's, or of other settings: {remedy}"
        )
    if restored is None or not restored.skipped:
        check_checkpoint(run, restored and restored.fingerprint)
