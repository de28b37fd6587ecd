"""Hold the settings in which models that are trained together differ."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from dynskip_jax import functional as F
from dynskip_jax.training.agent_settings import AgentSettings


class ScheduledValues(NamedTuple):
    """Values of agents in one epoch. A pytree whose only static part is the policy's mode.

    Attributes:
        policy: How choices are made.
        entropy_coef: β, the weight of the entropy.
        update_cost: Cost of each token that is read.
    """

    policy: F.Policy
    entropy_coef: float | Float[Array, "..."] | np.ndarray
    update_cost: float | Float[Array, "..."] | np.ndarray = 0.0


class Sweep(NamedTuple):
    """Settings in which the models trained together differ, one value for each model; None if they agree.

    Attributes:
        mix: λ of each model.
        max_skip: Largest k that each model's agent may choose; the models share a buffer of the largest K.
        entropy_coef: β of each model's objective.
        temperature: τ of each model's relaxed choices.
        update_cost: Cost of each word read, in each model's objective.
    """

    mix: tuple[float, ...] | None = None
    max_skip: tuple[int, ...] | None = None
    entropy_coef: tuple[float, ...] | None = None
    temperature: tuple[float, ...] | None = None
    update_cost: tuple[float, ...] | None = None

    def of_one(self, member: int) -> "Sweep":
        """Return the settings of one of the models, as those of a single model."""
        return Sweep(*(None if values is None else (values[member],) for values in self))

    def scheduled(
        self, objective: AgentSettings, epoch: int, epochs: int, count: int, skips: Sequence[F.TimeSkip]
    ) -> ScheduledValues:
        """Return the scheduled values of an epoch, each leaf (seeds, ...).

        Args:
            objective: How agents are trained; the swept settings replace its values.
            epoch: Number of the epoch, from 0.
            epochs: Number of epochs.
            count: Number of models.
            skips: Time skip of each layer and direction.
        """
        values = [self._objective(objective, i).at(epoch, epochs) for i in range(count)]
        policy = self.policy(values[0].mode, count, skips, temperature=[each.temperature for each in values])
        return ScheduledValues(
            policy,
            entropy_coef=np.array([each.entropy_coef for each in values], np.float32),
            update_cost=np.array([each.update_cost for each in values], np.float32),
        )

    def policy(
        self,
        mode: str,
        count: int,
        skips: Sequence[F.TimeSkip],
        *,
        temperature: Sequence[float] | None = None,
    ) -> F.Policy:
        """Return the policy of the models, each leaf (seeds, ...).

        Args:
            mode: Mode of the policy.
            count: Number of models.
            skips: Time skip of each layer and direction.
            temperature: τ of each model; 1 by default.
        """
        mask = None
        if self.max_skip is not None:
            K = max(skip.max_skip for skip in skips)
            mask = np.arange(1, K + 1)[None, :] <= np.asarray(self.max_skip)[:, None]
        return F.Policy(
            mode,
            temperature=np.asarray([1.0] * count if temperature is None else temperature, np.float32),
            mix=None if self.mix is None else np.asarray(self.mix, np.float32),
            mask=mask,
        )

    def _objective(self, objective: AgentSettings, number: int) -> AgentSettings:
        """Return the objective of model `number`."""
        names = ("entropy_coef", "temperature", "update_cost")
        swept = {name: getattr(self, name) for name in names}
        swept = {name: values[number] for name, values in swept.items() if values is not None}
        return dataclasses.replace(objective, **swept) if swept else objective
