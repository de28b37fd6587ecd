"""Average the iterates: NT-ASGD (Merity et al. 2018, Section 3), or an exponential average."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

ALL = 2**31 - 1  # iterates since the trigger that enter the mean
_EMA = 1000  # the same of an exponential moving average, whose decay is then 0.999


class AveragedState(NamedTuple):
    """Mean of the iterates since averaging began, and how many it counts; 1 before."""

    mean: PyTree
    count: Int[Array, ""]


def average_start(params: PyTree) -> AveragedState:
    """Return the mean of only the first iterate, as a copy that a step may donate."""
    return AveragedState(jax.tree.map(jnp.copy, params), jnp.ones((), jnp.int32))


def average_update(
    state: AveragedState, params: PyTree, most: int | Int[Array, ""]
) -> AveragedState:
    """Return the mean with one more iterate, (K - T + 1)⁻¹ Σ_{i=T..K} w_i (Polyak & Juditsky 1992).

    Call it after every step with the new iterate w_K; as long as `most` is 1, it replaces the mean.
    w_T is the iterate at which averaging was triggered (Algorithm 1 of Merity et al.), the last one
    with `most` 1. (`torch.optim.ASGD(t0=0)`, which the authors switch to, leaves out w_T and the
    next one.) Once `most` iterates are counted, the mean m becomes m + (w_K - m) / `most`: an
    exponential moving average.
    """
    count = jnp.minimum(state.count + 1, most)

    def update(mean: Array, new: Array) -> Array:
        return jnp.where(count > 1, mean + (new - mean) / count.astype(new.dtype), new)

    return AveragedState(jax.tree.map(update, state.mean, params), count)


def non_monotone_trigger(
    history: Float[np.ndarray, "epochs seeds"], n: int = 5
) -> Bool[np.ndarray, " seeds"]:
    """Return whether averaging has been triggered for each seed; it stays triggered.

    It is triggered at the first check t > n with v_t > min(v_0 ... v_{t-n-1}), as in the released
    code of Merity et al. (2018), where n is 5. Dev metrics v are lower is better. A NaN is ignored.
    """
    best = np.fmin.accumulate(history, axis=0)
    return (history[n + 1 :] > best[: max(len(history) - n - 1, 0)]).any(axis=0)


def averaging_rule(
    kind: Literal["none", "non_monotone", "always", "ema"], after: int = 0
) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return the rule for `FitSettings.average`; the first `after` epochs are never averaged."""
    if kind == "none":
        return None

    def rule(history: np.ndarray) -> np.ndarray:
        triggered = kind != "non_monotone" or non_monotone_trigger(history)
        most = _EMA if kind == "ema" else ALL
        return np.where(
            np.broadcast_to(triggered & (len(history) >= after), history.shape[1]), most, 1
        )

    return rule
