"""NT-ASGD (Merity et al. 2018, Section 3): the mean of the iterates, once the dev metric no longer falls."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

PyTree = Any


class AveragedState(NamedTuple):
    """The mean of the last iterates; mapped over seeds, every leaf leads with the seed axis.

    Attributes:
        mean: like the parameters; evaluate and keep these. Before the trigger, the parameters themselves.
        count: of how many iterates; 1 before the trigger.
    """

    mean: PyTree
    count: Int[Array, ""]


def average_start(params: PyTree) -> AveragedState:
    """Returns the mean of the first iterate alone.

    Args:
        params: arrays of float32 or wider, since the mean of many moves in small steps. They are copied, so
            that a step may be given the memory of both.
    """
    return AveragedState(jax.tree.map(jnp.copy, params), jnp.ones((), jnp.int32))


def average_update(state: AveragedState, params: PyTree, active: bool | Bool[Array, ""]) -> AveragedState:
    """Adds an iterate, once after every step: (K - T + 1)⁻¹ Σ_{i=T..K} w_i (Polyak & Juditsky 1992).

    w_T is the iterate at which averaging was triggered (Algorithm 1 of Merity et al.), here the last one that
    came with `active` False. (`torch.optim.ASGD(t0=0)`, which the authors switch to, leaves out w_T and the
    one after it.) The optimizer does not know of the mean: steps go on from the iterates.

    Args:
        state: of the iterates before.
        params: the new iterate, w_K.
        active: whether averaging has been triggered. False forgets the mean and takes the iterate.
    """
    count = jnp.where(active, state.count + 1, 1)

    def update(mean: Array, new: Array) -> Array:
        return jnp.where(active, mean + (new - mean) / count.astype(new.dtype), new)

    return AveragedState(jax.tree.map(update, state.mean, params), count)


def non_monotone_trigger(
    history: Float[np.ndarray, "epochs seeds"], n: int = 5
) -> Bool[np.ndarray, " seeds"]:
    """Whether averaging has been triggered: once a dev metric was worse than the best of over n checks ago.

    Algorithm 1 of Merity et al. (2018): at a check t > n with v_t > min(v_0 ... v_{t-n-1}). Whatever follows,
    it stays triggered, so metrics of the mean may follow in the same history.

    Args:
        history: v, lower is better (perplexity; for other metrics give the negative), (epochs, seeds). A NaN
            triggers nothing, and is no best.
        n: the non-monotone interval; theirs is 5.

    Returns:
        (seeds,), all False for less than n + 2 epochs.
    """
    best = np.fmin.accumulate(history, axis=0)
    return (history[n + 1 :] > best[: max(len(history) - n - 1, 0)]).any(axis=0)


def averaging_rule(
    kind: Literal["none", "non_monotone", "always"], interval: int = 5, after: int = 0
) -> Callable[[np.ndarray], np.ndarray] | None:
    """When the iterates are averaged, for `FitSettings.average`.

    Args:
        kind: none; always; or non_monotone, from `non_monotone_trigger` on.
        interval: n of that trigger.
        after: epochs that are never averaged, of either kind.

    Returns:
        From the dev metrics so far, (epochs, seeds), lower is better, to whether each seed is averaged now,
        (seeds,); None for none.
    """
    if kind == "none":
        return None

    def rule(history: np.ndarray) -> np.ndarray:
        triggered = kind == "always" or non_monotone_trigger(history, interval)
        return np.broadcast_to(triggered & (len(history) >= after), history.shape[1])

    return rule
