"""Skim-RNN (Seo et al. 2018): a gate decides for each token whether it is read or skimmed."""

import dataclasses
from typing import NamedTuple

import jax
from jax.nn import log_softmax
from jaxtyping import Array, Float

from dynskip_jax.functional.agent import choose
from dynskip_jax.functional.product import product, row
from dynskip_jax.functional.relaxation import relaxed_weights
from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.time_skips.base import Choice, ReadingSkip


@register_for_export
class SkimGateParams(NamedTuple):
    """Weights of α, Eq. 1, whose two outputs are the logits of reading and skimming."""

    w_h: Float[Array, "hidden two"]  # on h(t-1)
    w_x: Float[Array, "in two"]  # on x(t)
    b: Float[Array, " two"]


@dataclasses.dataclass(frozen=True)
class SkimRNN(ReadingSkip):
    """Skim-RNN: read token t with probability p_1, or skim it, Eq. 1.

    The probabilities are (p_1, p_2) = softmax(α(x(t), h(t-1))). A token that is read updates the
    whole state. A token that is skimmed updates it by `Transition.unread_state`: a `SkimLSTM`
    updates its first units, other transitions keep State(t-1). Where the policy samples,
    Gumbel-softmax mixes both new states (Eq. 5). A greedy policy takes the more probable one.

    `Decision.update` is the weight of reading and carries a gradient: add `cost *
    decision.update.sum()` to the loss for a cost per token read. The paper adds the mean of -log
    p_2 instead. The loss has no score-function term.
    """

    num_choices = 2

    def mode_of(self, mode) -> str:
        # A sample is relaxed, as the paper trains the gate (Eq. 5).
        if mode == "sample":
            return "gumbel_softmax"
        return mode

    def init(self, key, in_features, hidden, units, init) -> SkimGateParams:
        w_key, b_key = jax.random.split(key)
        w = init.draw(init.kernel, w_key, (hidden + in_features, 2))
        return SkimGateParams(w[:hidden], w[hidden:], init.draw(init.bias, b_key, (2,)))

    def project(self, params: SkimGateParams, x):
        return product(x, params.w_x)

    def choose(self, params: SkimGateParams, inputs, observation, skip_state, mode):
        if inputs.action is not None:
            return Choice(update=(inputs.action <= 1).astype(observation.dtype)), skip_state
        # α, Eq. 1: the logits of reading and of skimming.
        logits = inputs.projected + product(observation, params.w_h)
        logits = logits + row(params.b, logits)
        if mode == "greedy":
            return Choice(update=(choose(logits, None) == 0).astype(logits.dtype)), skip_state
        weights = relaxed_weights(
            log_softmax(logits), inputs.noise, self.mode_of(mode), inputs.temperature
        )
        return Choice(update=weights[..., 0].astype(logits.dtype)), skip_state
