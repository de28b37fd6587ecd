"""Skim-RNN (Seo et al. 2018): a gate decides for each token whether it is read or skimmed."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import log_softmax
from jaxtyping import Array, Float
from typing_extensions import override

from dynskip_jax.functional.agent import choice_noise, choose
from dynskip_jax.functional.product import product, row
from dynskip_jax.functional.relaxation import RELAXATIONS, draws_noise, relaxed_weights, takes_one
from dynskip_jax.functional.time_skips.base import Choice, Decision, ReadingSkip, choice_field


class SkimGateParams(NamedTuple):
    """Weights of α, Eq. 1, whose two outputs are the logits of reading and skimming.

    Attributes:
        w_h: Matrix on h(t-1), (hidden, 2).
        w_x: Matrix on x(t), (in, 2).
        b: Bias, (2,).
    """

    w_h: Float[Array, "hidden two"]
    w_x: Float[Array, "in two"]
    b: Float[Array, " two"]


@dataclasses.dataclass(frozen=True)
class SkimRNN(ReadingSkip):
    """Skim-RNN: read token t with probability p_1, or skim it: (p_1, p_2) = softmax(α(x(t), h(t-1))), Eq. 1.

    A token that is read updates the whole state. A token that is skimmed updates it by
    `Transition.unread_state`: a `SkimLSTM` updates its first units, other transitions keep State(t-1). In
    training a relaxation mixes both new states (Eq. 5). A greedy policy takes the more probable one.

    `Decision.update` is the weight of reading and carries a gradient: add `cost * decision.update.sum()` to
    the loss for a cost per token read. The paper adds the mean of -log p_2 instead, which `log_distribution`
    returns. `Decision.action` is 1 for reading and 2 for skimming. The loss has no score-function term.

    Attributes:
        relaxation: Relaxation that is used when the policy samples.
    """

    name: ClassVar[str] = "skim_rnn"
    relaxation: str = choice_field("gumbel_softmax", "straight_through", "reinmax", "soft")

    @property
    def action_range(self) -> tuple[int, int]:
        """Smallest action, 1 for reading, and largest action, 2 for skimming."""
        return 1, 2

    def init(self, key, in_features, hidden, units, init) -> SkimGateParams:
        """Draw the weights of α; see `TimeSkip`."""
        w_key, b_key = jax.random.split(key)
        w = init.draw(init.kernel, w_key, (hidden + in_features, 2))
        return SkimGateParams(w[:hidden], w[hidden:], init.draw(init.bias, b_key, (2,)))

    def project(self, params: SkimGateParams, x):
        """Return the part of α that depends on the input."""
        return product(x, params.w_x)

    @override
    def draws(self, mode, replayed) -> bool:
        return not replayed and mode != "greedy" and draws_noise(self._relaxation(mode))

    @override
    def noise(self, keys, step, mode, replayed, dtype):
        return choice_noise(keys, step, 2, dtype) if self.draws(mode, replayed) else None

    @override
    def updates_partially(self, mode) -> bool:
        return mode != "greedy" and not takes_one(self._relaxation(mode))

    @override
    def differentiable(self, mode, replayed) -> bool:
        return not replayed and mode != "greedy"

    @override
    def choose(self, params: SkimGateParams, inputs, observation, skip_state, mode):
        if inputs.action is not None:
            reads = inputs.action <= 1
            return Choice(update=reads.astype(observation.dtype)), skip_state
        logits = self._logits(params, inputs.projected, observation)
        if mode == "greedy":
            return Choice(update=(choose(logits, None) == 0).astype(logits.dtype)), skip_state
        relaxation = self._relaxation(mode)
        weights = relaxed_weights(log_softmax(logits), inputs.noise, relaxation, inputs.temperature)
        return Choice(update=weights[..., 0].astype(logits.dtype)), skip_state

    @override
    def decide(self, params, inputs, observation, skip_state, choice: Choice, mode) -> Decision:
        certain = jnp.zeros_like(choice.update)
        action = jnp.where(choice.update >= 0.5, 1, 2).astype(jnp.int32)
        return Decision(action, certain, certain, choice.update)

    def log_distribution(self, params, x, step, observation, policy_mask=None) -> Float[Array, "*batch two"]:
        """Return log p_1 and log p_2; see `TimeSkip`."""
        return log_softmax(self._logits(params, self.project(params, x), observation))

    def _logits(self, params: SkimGateParams, projected, observation):
        logits = projected + product(observation, params.w_h)
        return logits + row(params.b, logits)

    def _relaxation(self, mode: str) -> str:
        return mode if mode in RELAXATIONS else self.relaxation
