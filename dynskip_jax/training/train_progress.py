"""Track the progress of training, which a checkpoint stores in addition to the training state."""

import dataclasses

import numpy as np


@dataclasses.dataclass
class TrainProgress:
    """Progress of training.

    Attributes:
        epoch: Number of finished epochs.
        batch: Number of batches used in the current epoch.
        step: Number of steps taken.
        seconds: Training time in seconds, including earlier parts of a resumed run.
        history: Monitored dev metric, (epochs so far, seeds).
        best_epoch: Best epoch of each seed, from 1; 0 before the first evaluation, (seeds,).
        best_value: Best dev metric of each seed, NaN before the first evaluation, (seeds,).
    """

    epoch: int
    batch: int
    step: int
    seconds: float
    history: np.ndarray
    best_epoch: np.ndarray
    best_value: np.ndarray

    @classmethod
    def start(cls, num_seeds: int) -> "TrainProgress":
        """Return the progress before the first step."""
        return cls(
            0, 0, 0, 0.0, np.zeros((0, num_seeds)), np.zeros(num_seeds, int), np.full(num_seeds, np.nan)
        )

    def to_meta(self) -> dict:
        """Return the progress as a dictionary that JSON can represent."""
        meta = dataclasses.asdict(self)
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in meta.items()}

    @classmethod
    def from_meta(cls, meta: dict) -> "TrainProgress":
        """Return the progress stored by `to_meta`."""
        num_seeds = len(meta["best_epoch"])
        return cls(
            **{k: meta[k] for k in ("epoch", "batch", "step", "seconds")},
            history=np.array(meta["history"], float).reshape(-1, num_seeds),
            best_epoch=np.array(meta["best_epoch"], int),
            best_value=np.array(meta["best_value"], float),
        )

    def stopped_seeds(self, patience: int) -> np.ndarray:
        """Return which seeds have not improved for `patience` epochs; none if `patience` is 0."""
        if patience == 0:
            return np.zeros(len(self.best_epoch), bool)
        return self.epoch - self.best_epoch >= patience

    def finished(self, patience: int) -> bool:
        """Return whether all seeds have stopped; see `stopped_seeds`."""
        return bool(self.stopped_seeds(patience).all())

    def finish_epoch(self, value: np.ndarray, higher_is_better: bool, patience: int) -> np.ndarray:
        """Record the dev metric of an epoch, and return which seeds have a new best epoch.

        Args:
            value: Dev metric of each seed, (seeds,). NaN is never the best.
            higher_is_better: Whether a larger value is better.
            patience: Number of epochs after which a seed stops; stopped seeds keep their best epoch.
        """
        value = np.asarray(value, float)
        running = ~self.stopped_seeds(patience)
        with np.errstate(invalid="ignore"):
            ahead = value > self.best_value if higher_is_better else value < self.best_value
        better = running & (ahead | np.isnan(self.best_value)) & ~np.isnan(value)
        self.epoch += 1
        self.batch = 0
        self.history = np.concatenate([self.history, value[None]])
        self.best_epoch = np.where(better, self.epoch, self.best_epoch)
        self.best_value = np.where(better, value, self.best_value)
        return better
