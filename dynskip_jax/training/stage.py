"""What the models trained together are told in an epoch, and in what they differ."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dynskip_jax import functional as F
from dynskip_jax.training.objective import AgentObjective, AgentStage


class Sweep(NamedTuple):
    """Settings in which the models trained together differ, one value for each model; None where they agree.

    Attributes:
        mix: λ of each model.
        max_skip: of each model the largest k that its agent may choose; the models share a K that is larger.
        entropy_coef: β of each model's objective.
        temperature: τ of each model's relaxed choices.
        update_cost: of each model's objective.
    """

    mix: tuple[float, ...] | None = None
    max_skip: tuple[int, ...] | None = None
    entropy_coef: tuple[float, ...] | None = None
    temperature: tuple[float, ...] | None = None
    update_cost: tuple[float, ...] | None = None

    def stage(
        self, objective: AgentObjective, epoch: int, epochs: int, count: int, skips: Sequence[F.TimeSkip]
    ) -> AgentStage:
        """Returns what the steps of an epoch (from 0) are told, each leaf (seeds, ...).

        Args:
            objective: how agents are trained, where the models agree.
            epoch: its number.
            epochs: how many there will be.
            count: of the models.
            skips: their time skips.
        """
        stages = [self._objective(objective, i).stage(epoch, epochs) for i in range(count)]
        policy = self.policy(
            stages[0].policy.mode, count, skips, temperature=[stage.policy.temperature for stage in stages]
        )
        numbers = (
            np.array([getattr(stage, name) for stage in stages], np.float32)
            for name in ("entropy_coef", "update_cost")
        )
        return AgentStage(policy, *numbers)

    def policy(
        self,
        mode: str,
        count: int,
        skips: Sequence[F.TimeSkip],
        *,
        temperature: Sequence[float] | None = None,
    ) -> F.Policy:
        """Returns how these models choose, each leaf (seeds, ...); with temperature 1 if none is given."""
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

    def _objective(self, objective: AgentObjective, number: int) -> AgentObjective:
        """Of one of the models."""
        own = {name: getattr(self, name) for name in ("entropy_coef", "temperature", "update_cost")}
        swept = {name: values[number] for name, values in own.items() if values is not None}
        return dataclasses.replace(objective, **swept) if swept else objective
