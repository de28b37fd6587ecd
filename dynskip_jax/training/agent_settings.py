"""How agents are trained, and the values of each epoch, without importing JAX."""

import dataclasses
from typing import Literal

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
    baseline: Literal["none", "batch", "rollouts"] = "none"
    rollouts: int = 1
    relaxation: Literal["none", "soft", "gumbel_softmax", "straight_through", "reinmax"] = "none"
    relaxed_epochs: int = 0
    relaxed_entropy_coef: float | None = None
    relaxed_entropy_coef_final: float | None = None
    update_cost: float = 0.0

    def check(self) -> None:
        """Check that settings with one value each fit each other."""
        if self.baseline == "rollouts" and self.rollouts == 1:
            raise UserError("a baseline from the other rollouts needs at least 2 rollouts, got 1")
        if self.relaxed_entropy_coef_final is not None and self.relaxed_entropy_coef is None:
            raise UserError("relaxed_entropy_coef_final needs an initial value: give both")
        if self.relaxation == "none" and self.relaxed_epochs > 0:
            raise UserError(
                f"{self.relaxed_epochs} relaxed epochs need a relaxation: choose soft, gumbel_softmax, "
                "straight_through or reinmax"
            )

    def mode(self, epoch: int) -> str:
        """Return the mode of the policy in `epoch`, from 0: relaxed choices first, then sampled ones."""
        return self.relaxation if epoch < self.relaxed_epochs else "sample"

    def beta(self, epoch: int, epochs: int) -> float:
        """Return the weight of the entropy in `epoch`, from 0, of `epochs`."""
        initial, final = self.entropy_coef, self.entropy_coef_final
        if epoch < self.relaxed_epochs and self.relaxed_entropy_coef is not None:
            initial, final = self.relaxed_entropy_coef, self.relaxed_entropy_coef_final
            epochs = self.relaxed_epochs
        progress = min(epoch / max(epochs - 1, 1), 1.0)  # 0 in the first epoch, 1 in the last epoch
        return initial if final is None else initial + (final - initial) * progress
