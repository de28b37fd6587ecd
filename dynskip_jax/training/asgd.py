"""NT-ASGD (Merity et al. 2018, Section 3): average the iterates once the dev metric stops improving."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

PyTree = Any


class AveragedState(NamedTuple):
    """Mean of the iterates since averaging was triggered. `vmap` over seeds adds a leading seed axis.

    Attributes:
        mean: Mean, a tree like the parameters; use it for evaluation. Before the trigger it equals the
            parameters.
        count: Number of iterates in the mean; 1 before the trigger.
    """

    mean: PyTree
    count: Int[Array, ""]


def average_start(params: PyTree) -> AveragedState:
    """Return the mean of only the first iterate.

    Args:
        params: Arrays of float32 or wider, because the mean of many iterates changes in small steps. They are
            copied, so that both the parameters and the mean can be donated to a step.
    """
    return AveragedState(jax.tree.map(jnp.copy, params), jnp.ones((), jnp.int32))


def average_update(state: AveragedState, params: PyTree, active: bool | Bool[Array, ""]) -> AveragedState:
    """Return the mean with one more iterate, (K - T + 1)⁻¹ Σ_{i=T..K} w_i (Polyak & Juditsky 1992).

    Call it once after every step. w_T is the iterate at which averaging was triggered (Algorithm 1 of Merity
    et al.), here the last iterate that came with `active` False. (`torch.optim.ASGD(t0=0)`, which the
    authors switch to, leaves out w_T and the iterate after it.) The mean does not affect the optimizer: steps
    continue from the iterates.

    Args:
        state: Mean of the previous iterates.
        params: New iterate, w_K.
        active: Whether averaging has been triggered. False replaces the mean by the new iterate.
    """
    count = jnp.where(active, state.count + 1, 1)

    def update(mean: Array, new: Array) -> Array:
        return jnp.where(active, mean + (new - mean) / count.astype(new.dtype), new)

    return AveragedState(jax.tree.map(update, state.mean, params), count)


def non_monotone_trigger(
    history: Float[np.ndarray, "epochs seeds"], n: int = 5
) -> Bool[np.ndarray, " seeds"]:
    """Return whether averaging has been triggered for each seed, (seeds,).

    Averaging is triggered at the first check t > n with v_t > min(v_0 ... v_{t-n-1}) (Algorithm 1 of Merity
    et al. 2018). It stays triggered, so metrics of the mean may follow in the same history. The result is
    False for fewer than n + 2 epochs.

    Args:
        history: Dev metrics v, (epochs, seeds). Lower is better, as for perplexity; negate other metrics. A
            NaN triggers nothing, and is ignored in the minimum.
        n: Non-monotone interval; 5 in the paper.
    """
    best = np.fmin.accumulate(history, axis=0)
    return (history[n + 1 :] > best[: max(len(history) - n - 1, 0)]).any(axis=0)


def averaging_rule(
    kind: Literal["none", "non_monotone", "always"], interval: int = 5, after: int = 0
) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return the rule that decides when iterates are averaged, for `FitSettings.average`.

    Args:
        kind: `none`, `always`, or `non_monotone` to start at `non_monotone_trigger`.
        interval: n of `non_monotone_trigger`.
        after: Number of first epochs without averaging, for `always` and `non_monotone`.

    Returns:
        Function from the dev metrics so far, (epochs, seeds), lower is better, to whether each seed is
        averaged now, (seeds,). None for the kind `none`.
    """
    if kind == "none":
        return None

    def rule(history: np.ndarray) -> np.ndarray:
        triggered = kind == "always" or non_monotone_trigger(history, interval)
        return np.broadcast_to(triggered & (len(history) >= after), history.shape[1])

    return rule
