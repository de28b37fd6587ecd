"""What an epoch tells every step of it: how agents are trained, and the numbers that go with it."""

from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float


class Stage(NamedTuple):
    """One epoch's part of the training program.

    Attributes:
        name: what is static; the step is compiled once for each name.
        values: numbers, one for each of the models trained together, every leaf (seeds, ...); inside a step
            those of one model.
    """

    name: Hashable = None
    values: Any = ()

    def of_model(self, number: int) -> "Stage":
        """Returns what one of the models is told."""
        return Stage(self.name, jax.tree.map(lambda leaf: jnp.asarray(leaf)[number], self.values))


class AgentValues(NamedTuple):
    """The numbers of a stage that agents are trained with; None where a setting is the skip's own.

    Attributes:
        entropy_coef: β.
        temperature: τ of relaxed choices.
        mix: λ.
        policy_mask: False for skips the agent may not choose.
    """

    entropy_coef: Float[Array, "*seeds"]
    temperature: Float[Array, "*seeds"]
    mix: Float[Array, "*seeds"] | None = None
    policy_mask: Bool[Array, "*seeds K"] | None = None


class Sweep(NamedTuple):
    """Settings in which the models trained together differ, one value for each model; None where they agree.

    Attributes:
        mix: λ of each model.
        max_skip: of each model the largest k that its agent may choose; the models share a K that is larger.
    """

    mix: tuple[float, ...] | None = None
    max_skip: tuple[int, ...] | None = None

    def agent_values(self, count: int, K: int, entropy_coef: float, temperature: float) -> AgentValues:
        """Returns the numbers of a stage for `count` models with agents that choose among K states."""
        mask = None
        if self.max_skip is not None:
            mask = np.arange(1, K + 1)[None, :] <= np.asarray(self.max_skip)[:, None]
        return AgentValues(
            entropy_coef=np.full(count, entropy_coef, np.float32),
            temperature=np.full(count, temperature, np.float32),
            mix=None if self.mix is None else np.asarray(self.mix, np.float32),
            policy_mask=mask,
        )
