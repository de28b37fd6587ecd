"""An agent: recurrent layers that remember, logits of actions, and a value."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from dynskip_jax import functional as F
from dynskip_jax.nn import SkipRNN


class AgentOutput(NamedTuple):
    """Output of an `ActorCritic`; all but logits and values is from the layers."""

    logits: Float[Array, "batch time choices"]  # of all parts of an action, concatenated
    values: Float[Array, "batch time"]
    decisions: tuple[F.DecisionTrace, ...]
    observations: tuple


class ActorCritic(nnx.Module):
    """Choose actions from what was observed since the episode's beginning.

    Args:
        observation_features: Size of a flattened observation.
        action_sizes: Number of choices of each part of an action.
        hidden_features: Size of the state of every layer.
        longest: Number of steps of an episode, by which the time is measured; None: it is not read.
        **layers: Arguments of `SkipRNN`.
    """

    def __init__(
        self,
        observation_features: int,
        action_sizes: Sequence[int],
        hidden_features: int,
        *,
        longest: int | None = None,
        rngs: nnx.Rngs,
        **layers: Any,
    ):
        self.action_sizes = tuple(action_sizes)
        self.longest = longest
        choices = sum(action_sizes)
        in_features = observation_features + choices + 1 + 2 * len(_frequencies(longest))
        self.stack = SkipRNN(in_features, hidden_features, rngs=rngs, **layers)
        self.logits = nnx.Linear(hidden_features, choices, rngs=rngs)
        self.value = nnx.Linear(hidden_features, 1, rngs=rngs)

    def __call__(
        self,
        observations: Float[Array, "batch time features"],
        previous: Int[Array, "batch time parts"],
        steps: Int[Array, " time"],
        *,
        initial_carry: Any = None,
        **how: Any,
    ) -> tuple[Any, AgentOutput]:
        """Return the carry and the output.

        Args:
            observations: Flattened observation at each step.
            previous: Action of the step before; anything at an episode's first step.
            steps: Number of each step in its episode, from 0.
            initial_carry: Carry of the step before; by default the first step begins an episode.
            **how: `policy`, `rngs` and `actions` of the layers' call.
        """
        inputs = self._inputs(observations, previous, steps)
        carry, output = self.stack(
            inputs, initial_carry=initial_carry, return_carry=True, deterministic=True, **how
        )
        values = self.value(output.h)[..., 0]
        found = AgentOutput(self.logits(output.h), values, output.decisions, output.observations)
        return carry, found

    def _inputs(self, observations: Array, previous: Array, steps: Array) -> Array:
        """Return the observation, the previous action, whether it is the first step, and time."""
        is_first = (steps == 0)[None, :, None]
        parts = [observations]
        for part, size in enumerate(self.action_sizes):
            before = jax.nn.one_hot(previous[..., part], size)
            parts.append(jnp.where(is_first, 0, before))
        angles = jnp.outer(steps, jnp.array(_frequencies(self.longest)))[None]
        of_time = (is_first, jnp.sin(angles), jnp.cos(angles))
        shape = observations.shape[:-1]
        parts += [jnp.broadcast_to(each, (*shape, each.shape[-1])) for each in of_time]
        return jnp.concatenate(parts, axis=-1)


def _frequencies(longest: int | None) -> list[float]:
    """Return the frequencies of the time: one period in an episode, two, four, and so on."""
    if longest is None:
        return []
    # The fastest has a period of two to four steps.
    count = max(1, math.ceil(math.log2(longest)) - 1)
    return [2 * math.pi / longest * 2**i for i in range(count)]
