"""Sparse attentive backtracking (Ke et al. 2018): attention over the states with best scores."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.functional.checks import check_whole
from dynskip_jax.functional.time_skips.base import Choice, Decision, choice_field
from dynskip_jax.functional.time_skips.dynamic import Attention


@dataclasses.dataclass(frozen=True)
class SparseAttention(Attention):
    """Sparse attention: the weighted mean of the `top` states with the best scores enters.

    The weights are w_i ∝ exp(a_i) - exp(a_(top+1)), where a are the scores, best first. The
    subtracted term is treated as a constant, so a gradient reaches only the states that enter, and
    their scores (Ke et al. 2018, Section 3.1). In contrast to the paper, the mean is mixed with
    State(t-1) by `mix` instead of added to it, and scores are dot products or logits of the agent's
    MLP. The authors' released code subtracts the scores themselves, w_i ∝ a_i - a_(top+1): weights
    that do not change when all scores are scaled.

    Attributes:
        agent: See `PolicySkip`; `content` by default.
        top: k_top, the number of states that enter.
        among: `Segments(k_att)` lets only State(t-1) and every k_att-th state of the sequence
            enter.
    """

    agent: str = choice_field("content", "mlp", "both")
    top: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("SparseAttention.top", self.top)

    def choose(self, params, inputs, observation, skip_state, mode):
        index, weights = self._best(self.logits(params, inputs, observation))
        return Choice(self.slots_of(inputs.step, index), weights), skip_state

    def trace(self, params, inputs, observation, choice: Choice, mode) -> Decision:
        """Return the trace; the entropy is that of the weights."""
        return self.mean_decision(choice, _log(choice.weights))

    def log_weights(self, logits):
        index, weights = self._best(logits)
        return _log(
            jnp.put_along_axis(jnp.zeros_like(logits), index, weights, axis=-1, inplace=False)
        )

    def _best(self, scores: Float[Array, "*batch n"]) -> tuple[Array, Float[Array, "*batch top"]]:
        """Return the indices of the best candidates and their weights, each (*batch, top).

        The weights are equal if all these candidates have the same score as the next best one.
        """
        # One score more than enters: exp(a_(top+1)) is subtracted from all, as a constant.
        top = min(self.top, self.num_candidates)
        best, index = jax.lax.top_k(scores, min(top + 1, self.num_candidates))
        powers = jnp.exp(best - jax.lax.stop_gradient(best[..., :1]))
        excess = powers[..., :top]
        if top < self.num_candidates:
            excess = excess - jax.lax.stop_gradient(powers[..., top:])
        # 0 / 0 if all are equal; neither its value nor its derivative may be NaN.
        total = jnp.sum(excess, axis=-1, keepdims=True)
        weights = jnp.where(total > 0, excess / jnp.where(total > 0, total, 1), 1 / top)
        return index[..., :top].astype(jnp.int32), weights


def _log(weights: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    """Return finite logarithms of weights that may be 0."""
    return jnp.log(jnp.maximum(weights, jnp.finfo(weights.dtype).tiny))
