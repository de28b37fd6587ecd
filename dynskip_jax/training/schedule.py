"""Learning rates per epoch, as pure functions of the epoch and the dev metrics so far."""

from collections.abc import Callable

import numpy as np

Schedule = Callable[[int, np.ndarray], np.ndarray]


def decay_after(initial: float, factor: float, epochs: int) -> Schedule:
    """Constant for `epochs` epochs, then multiplied by `factor` once an epoch (Zaremba et al. 2014)."""

    def rate(epoch: int, history: np.ndarray) -> np.ndarray:
        return np.full(history.shape[1], initial * factor ** max(epoch + 1 - epochs, 0))

    return rate


def decay_on_plateau(initial: float, factor: float, *, threshold: float, floor: float) -> Schedule:
    """Multiplied by `factor` after each epoch in which the dev metric fell by less than `threshold`.

    The schedule of the released language model of Gui et al. (2019); never below `floor`. Each seed follows
    its own history, (epochs, seeds).
    """

    def rate(epoch: int, history: np.ndarray) -> np.ndarray:
        stalled = (history[:-1] - history[1:] < threshold).sum(axis=0)
        return np.maximum(initial * factor**stalled, floor)

    return rate
