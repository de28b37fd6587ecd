"""Schedules of the learning rate by epoch, which may depend on the dev metrics so far."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

Rate = float | Float[np.ndarray, " seeds"]  # one rate for all seeds, or one for each
# Function from the epoch, from 0, and the dev history, (epochs so far, seeds), to the rate.
# In the history lower is better; other metrics are negated.
Schedule = Callable[[int, np.ndarray], Rate]


def decay_after(initial: Rate, factor: float, epochs: int) -> Schedule:
    """Return `initial` for `epochs` epochs, then multiplied by `factor` each epoch (Zaremba et al. 2014)."""
    return lambda epoch, history: initial * factor ** max(epoch + 1 - epochs, 0)


def inverse_time(initial: Rate, factor: float) -> Schedule:
    """Return the schedule `initial` / (1 + `factor` · epoch), with epochs from 0 (Ma & Hovy 2016)."""
    return lambda epoch, history: initial / (1 + factor * epoch)


def decay_on_plateau(initial: Rate, factor: float, *, threshold: float, floor: float) -> Schedule:
    """Return a schedule that decays after each epoch in which the dev metric fell by less than `threshold`.

    The rate stays above `floor`. Each seed follows its own history (released code of Gui et al. 2019).
    """

    def rate(epoch: int, history: np.ndarray) -> np.ndarray:
        stalled = (history[:-1] - history[1:] < threshold).sum(axis=0)
        return np.maximum(initial * factor**stalled, floor)

    return rate
