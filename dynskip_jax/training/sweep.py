"""Hold the settings in which models that are trained together differ."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from dynskip_jax import functional as F
from dynskip_jax.training.agent_settings import AgentSettings


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

    def of_one(self, member: int) -> "Sweep":
        """Return the settings of one of the models, as those of a single model."""
        return Sweep(*(None if values is None else (values[member],) for values in self))

    def scheduled(
        self, objective: AgentSettings, epoch: int, epochs: int, count: int, skips: Sequence[F.TimeSkip]
    ) -> ScheduledValues:
        """Return the scheduled values of `count` models in an epoch (from 0), each leaf (seeds, ...).

        The swept settings replace those of `objective`; `skips` are those of each layer and direction.
        """
        swept = {name: getattr(self, name) for name in ("entropy_coef", "update_cost")}
        swept = {name: values for name, values in swept.items() if values is not None}
        each = [
            dataclasses.replace(objective, **{name: values[i] for name, values in swept.items()})
            for i in range(count)
        ]
        return ScheduledValues(
            self.policy(objective.mode(epoch), count, skips),
            entropy_coef=np.array([of.beta(epoch, epochs) for of in each], np.float32),
            update_cost=np.array([of.update_cost for of in each], np.float32),
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
