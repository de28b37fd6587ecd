"""What the models trained together are told in an epoch, and in what they differ."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dynskip_jax import functional as F
from dynskip_jax.training.objective import AgentStage


def of_model(stage: Any, number: int) -> Any:
    """Returns what one of the models is told, out of leaves (seeds, ...)."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[number], stage)


class Sweep(NamedTuple):
    """Settings in which the models trained together differ, one value for each model; None where they agree.

    Attributes:
        mix: λ of each model.
        max_skip: of each model the largest k that its agent may choose; the models share a K that is larger.
    """

    mix: tuple[float, ...] | None = None
    max_skip: tuple[int, ...] | None = None

    def stage(self, stage: AgentStage, count: int, skips: Sequence[F.TimeSkip]) -> AgentStage:
        """Returns a stage for `count` models with these time skips, each leaf (seeds, ...)."""
        K, mask = max(skip.max_skip for skip in skips), None
        if self.max_skip is not None:
            mask = np.arange(1, K + 1)[None, :] <= np.asarray(self.max_skip)[:, None]
        policy = F.Policy(
            stage.policy.mode,
            temperature=np.full(count, stage.policy.temperature, np.float32),
            mix=None if self.mix is None else np.asarray(self.mix, np.float32),
            mask=mask,
        )
        return AgentStage(policy, np.full(count, stage.entropy_coef, np.float32))

    def policy(self, mode: str, count: int, skips: Sequence[F.TimeSkip]) -> F.Policy:
        """Returns how these models choose in evaluation, each leaf (seeds, ...)."""
        return self.stage(AgentStage(F.Policy(mode), 0.0), count, skips).policy
