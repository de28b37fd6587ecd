"""Where training stands: everything but arrays that a checkpoint keeps."""

import dataclasses

import numpy as np


@dataclasses.dataclass
class TrainProgress:
    """Where training stands.

    Attributes:
        epoch: epochs finished.
        batch: batches of the epoch in progress that were taken.
        step: steps taken.
        seconds: time spent, earlier parts of a resumed run included.
        history: the monitored dev metric, (epochs so far, seeds).
        best_epoch: 1-based, 0 before the first evaluation, (seeds,).
        best_value: of the metric, (seeds,).
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
        """Before the first step."""
        return cls(
            0, 0, 0, 0.0, np.zeros((0, num_seeds)), np.zeros(num_seeds, int), np.full(num_seeds, np.nan)
        )

    def to_meta(self) -> dict:
        """What JSON can hold."""
        meta = dataclasses.asdict(self)
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in meta.items()}

    @classmethod
    def from_meta(cls, meta: dict) -> "TrainProgress":
        """The inverse of `to_meta`."""
        num_seeds = len(meta["best_epoch"])
        return cls(
            **{k: meta[k] for k in ("epoch", "batch", "step", "seconds")},
            history=np.array(meta["history"], float).reshape(-1, num_seeds),
            best_epoch=np.array(meta["best_epoch"], int),
            best_value=np.array(meta["best_value"], float),
        )

    def stopped_seeds(self, patience: int) -> np.ndarray:
        """Which seeds have gone `patience` epochs without improving."""
        if patience == 0:
            return np.zeros(len(self.best_epoch), bool)
        return self.epoch - self.best_epoch >= patience

    def finished(self, patience: int) -> bool:
        """Whether all have."""
        return bool(self.stopped_seeds(patience).all())

    def finish_epoch(self, value: np.ndarray, higher_is_better: bool, patience: int) -> np.ndarray:
        """Records a dev metric; returns which seeds have a new best epoch."""
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
