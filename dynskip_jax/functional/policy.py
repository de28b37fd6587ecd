"""Policy of a layer: how it chooses, among which skips, and with which skip weight."""

import dataclasses
from functools import partial
from typing import Any

import jax

from dynskip_jax.errors import UserError
from dynskip_jax.functional.relaxation import RELAXATIONS
from dynskip_jax.functional.serialization import register_node_for_export

MODES = ("sample", "greedy", *RELAXATIONS)


@register_node_for_export
@partial(
    jax.tree_util.register_dataclass,
    data_fields=("temperature", "mix", "mask"),
    meta_fields=("mode",),
)
@dataclasses.dataclass(frozen=True)
class Policy:
    """Policy with which a layer chooses its skips.

    It is a pytree with a static `mode`, and so a valid `jit` argument.

    Attributes:
        mode: `sample`; `greedy`, the most probable choice; or a relaxation (`RELAXATIONS`), weights
            on all K states.
        temperature: Temperature τ, a number that divides the logits of agents and of attention.
            Samples, log π, entropies and copies of words are those of this distribution. With
            `gumbel_softmax`, `straight_through` and `reinmax` it is the temperature of the
            relaxation instead, and π has τ = 1. See `bounded_temperature` for values near 0.
        mix: Skip weight λ in [0, 1] that replaces the time skip's; None keeps it. A traced number
            allows a sweep over λ inside one program.
        mask: False for skips that an agent may not choose, (K,) or (*batch, K); None allows all. If
            no skip is left, State(t-1) enters. A mask that allows the first K' skips allows a sweep
            over K inside one program.

    Example::

        >>> Policy("greedy", mix=0.5)
        Policy(mode='greedy', temperature=1.0, mix=0.5, mask=None)
    """

    mode: str = "sample"
    # Any, because JAX may replace the leaves of a pytree by any object.
    temperature: Any = 1.0
    mix: Any = None
    mask: Any = None

    def __post_init__(self) -> None:
        """Check the mode."""
        if self.mode not in MODES:
            raise UserError(f"unknown mode {self.mode!r}: choose one of {', '.join(MODES)}")

    def without_agent(self) -> "Policy":
        """Return the policy for a layer whose time skip has no agent: without `mix` and `mask`."""
        return dataclasses.replace(self, mix=None, mask=None)
