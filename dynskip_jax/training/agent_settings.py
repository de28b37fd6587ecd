"""How agents are trained, and the values of each epoch, without importing JAX."""

import dataclasses
from typing import Literal, NamedTuple

from dynskip_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class AgentSettings:
    """How agents are trained; the defaults are Eq. 3 to 6 of Gui et al. (2019), as printed.

    `dynskip_jax.settings.Agent` describes each of them.
    """

    reward: Literal["log_likelihood", "probability", "correct"] = "log_likelihood"
    rl_coef: float = 1.0
    entropy_coef: float = 1.0
    entropy: Literal["sampled", "exact"] = "sampled"
    discount: float = 1.0
    entropy_coef_final: float | None = None
    baseline: Literal["none", "batch", "rollouts", "moving_average", "learned"] = "none"
    rollouts: int = 1
    estimator: Literal["reinforce", "vimco"] = "reinforce"
    baseline_decay: float = 0.99
    relaxation: Literal["none", "soft", "gumbel_softmax", "straight_through", "reinmax"] = "none"
    relaxed_epochs: int = 0
    relaxed_entropy_coef: float | None = None
    relaxed_entropy_coef_final: float | None = None
    temperature: float = 1.0
    temperature_final: float | None = None
    update_cost: float = 0.0

    def check(self) -> None:
        """Check that settings with one value each fit each other."""
        if self.baseline == "rollouts" and self.rollouts == 1:
            raise UserError("a baseline from the other rollouts needs at least 2 rollouts, got 1")
        if self.estimator == "vimco":
            if self.rollouts == 1:
                raise UserError("the estimator vimco averages several rollouts: it needs at least 2, got 1")
            if self.baseline not in ("none", "rollouts"):
                raise UserError(f"the estimator vimco has a baseline of its own: leave out {self.baseline!r}")
            if self.reward != "log_likelihood":
                raise UserError(f"the estimator vimco is rewarded with log_likelihood, not {self.reward!r}")
            if self.entropy == "sampled" and max(self.entropy_coef, self.entropy_coef_final or 0.0) > 0:
                raise UserError(
                    "the estimator vimco needs the exact entropy, or an entropy_coef of 0 to the end"
                )
        if self.relaxed_entropy_coef_final is not None and self.relaxed_entropy_coef is None:
            raise UserError("relaxed_entropy_coef_final needs an initial value: give both")
        if self.relaxation == "none" and self.relaxed_epochs > 0:
            raise UserError(
                f"{self.relaxed_epochs} relaxed epochs need a relaxation: choose soft, gumbel_softmax, "
                "straight_through or reinmax"
            )

    def at(self, epoch: int, epochs: int) -> "AgentEpoch":
        """Return the values of `epoch`, from 0, of `epochs`: relaxed choices first, then sampled ones."""
        relaxed = epoch < self.relaxed_epochs
        initial, final, length = self.entropy_coef, self.entropy_coef_final, epochs
        if relaxed and self.relaxed_entropy_coef is not None:
            initial, final = self.relaxed_entropy_coef, self.relaxed_entropy_coef_final
            length = self.relaxed_epochs
        entropy_coef = initial if final is None else initial + (final - initial) * _progress(epoch, length)
        temperature = 1.0  # attention uses τ too: keep it at 1 in other epochs, as in evaluation
        if relaxed:
            ratio = 1.0 if self.temperature_final is None else self.temperature_final / self.temperature
            temperature = self.temperature * ratio ** _progress(epoch, self.relaxed_epochs)
        return AgentEpoch(
            self.relaxation if relaxed else "sample", temperature, entropy_coef, self.update_cost
        )


class AgentEpoch(NamedTuple):
    """Values of the agents' settings in one epoch.

    Attributes:
        mode: Mode of the policy.
        temperature: τ of relaxed choices.
        entropy_coef: β, the weight of the entropy.
        update_cost: Cost of each token that is read.
    """

    mode: str
    temperature: float
    entropy_coef: float
    update_cost: float


def _progress(epoch: int, epochs: int) -> float:
    """Return the progress of training: 0 in the first epoch, 1 in the last epoch and later."""
    return min(epoch / max(epochs - 1, 1), 1.0)
