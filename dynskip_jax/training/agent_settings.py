"""How agents are trained, in which settings models trained together differ, and the values of each epoch."""

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Array, Float

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class AgentSettings:
    """The settings of `dynskip_jax.settings.Agent`; the defaults are Eq. 3 to 6 of Gui et al. (2019)."""

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
    relaxed_entropy_coef: tuple[float, ...] | None = None  # of the first and of the last relaxed epoch
    update_cost: float = 0.0

    def __post_init__(self) -> None:
        if self.baseline == "rollouts" and self.rollouts == 1:
            raise UserError("a baseline from the other rollouts needs at least 2 rollouts, got 1")
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
            initial, final = self.relaxed_entropy_coef[0], self.relaxed_entropy_coef[-1]
            epochs = self.relaxed_epochs
        progress = min(epoch / max(epochs - 1, 1), 1.0)  # from 0 to 1
        return initial if final is None else initial + (final - initial) * progress


class ScheduledValues(NamedTuple):
    """Values of agents in one epoch. A pytree whose only static part is the policy's mode."""

    policy: F.Policy
    entropy_coef: float | Float[Array, "..."] | np.ndarray  # β
    update_cost: float | Float[Array, "..."] | np.ndarray = 0.0  # of each token that is read


class Sweep(NamedTuple):
    """Settings in which the models trained together differ, one value for each model; None if they agree."""

    mix: tuple[float, ...] | None = None  # λ
    max_skip: tuple[int, ...] | None = None  # largest k; the models share a buffer of the largest K
    entropy_coef: tuple[float, ...] | None = None  # β
    update_cost: tuple[float, ...] | None = None  # cost of each word read

    def scheduled(
        self, objective: AgentSettings, epoch: int, epochs: int, count: int, skips: Sequence[F.TimeSkip]
    ) -> ScheduledValues:
        """Return the scheduled values of `count` models in an epoch (from 0), each leaf (seeds, ...).

        The swept settings replace those of `objective`; `skips` are those of each layer and direction.
        """
        coefs = self.entropy_coef or (objective.entropy_coef,) * count
        costs = self.update_cost or (objective.update_cost,) * count
        betas = [dataclasses.replace(objective, entropy_coef=coef).beta(epoch, epochs) for coef in coefs]
        return ScheduledValues(
            self.policy(objective.mode(epoch), count, skips),
            entropy_coef=np.array(betas, np.float32),
            update_cost=np.array(costs, np.float32),
        )

    def policy(self, mode: str, count: int, skips: Sequence[F.TimeSkip]) -> F.Policy:
        """Return the policy of `count` models with the skips of these layers, each leaf (seeds, ...)."""
        mask = None
        if self.max_skip is not None:
            K = max(skip.max_skip for skip in skips)
            mask = np.arange(1, K + 1)[None, :] <= np.asarray(self.max_skip)[:, None]
        return F.Policy(
            mode,
            temperature=np.ones(count, np.float32),
            mix=None if self.mix is None else np.asarray(self.mix, np.float32),
            mask=mask,
        )
