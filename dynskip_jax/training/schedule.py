"""Numbers that change from epoch to epoch; learning rates may depend on the dev metrics so far."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

Schedule = Callable[[int, np.ndarray], np.ndarray]
Rate = float | Float[np.ndarray, " seeds"]  # of all seeds, or of each


def decay_after(initial: Rate, factor: float, epochs: int) -> Schedule:
    """Constant for `epochs` epochs, then multiplied by `factor` once an epoch (Zaremba et al. 2014)."""

    def rate(epoch: int, history: np.ndarray) -> np.ndarray:
        return np.full(history.shape[1], initial * factor ** max(epoch + 1 - epochs, 0))

    return rate


def inverse_time(initial: Rate, factor: float) -> Schedule:
    """`initial` / (1 + `factor` · epoch), the epoch counted from 0 (Ma & Hovy 2016)."""

    def rate(epoch: int, history: np.ndarray) -> np.ndarray:
        return np.full(history.shape[1], initial / (1 + factor * epoch))

    return rate


def decay_on_plateau(initial: Rate, factor: float, *, threshold: float, floor: float) -> Schedule:
    """Multiplied by `factor` after each epoch in which the dev metric fell by less than `threshold`.

    The schedule of the released language model of Gui et al. (2019); never below `floor`. Each seed follows
    its own history, (epochs, seeds).
    """

    def rate(epoch: int, history: np.ndarray) -> np.ndarray:
        stalled = (history[:-1] - history[1:] < threshold).sum(axis=0)
        return np.maximum(initial * factor**stalled, floor)

    return rate
