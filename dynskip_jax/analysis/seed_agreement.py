"""How far agents of several seeds choose alike, beside what their rates alone would bring about."""

import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Int


class Agreement(NamedTuple):
    """Of two agents that choose in the same text.

    Attributes:
        share: of the choices that are equal.
        by_chance: that share if each agent drew from its own rates, whatever it reads.
    """

    share: float
    by_chance: float

    @property
    def kappa(self) -> float:
        """Cohen's κ (1960), (share − by_chance) / (1 − by_chance): 1 where all are equal, 0 as by chance;
        NaN where neither agent ever varies."""
        return float("nan") if self.by_chance == 1 else (self.share - self.by_chance) / (1 - self.by_chance)

    def __str__(self) -> str:
        return (
            f"{self.share:.1%} of choices, by their rates alone {self.by_chance:.1%} (κ = {self.kappa:.2f})"
        )


def agreement(actions: Int[np.ndarray, "steps agents"]) -> Agreement:
    """Returns how far agents agree, the mean of all pairs of them.

    Args:
        actions: what each of at least two agents chose at each step.
    """
    steps, agents = actions.shape
    pairs = list(itertools.combinations(range(agents), 2))
    values, numbered = np.unique(actions, return_inverse=True)
    rates = np.zeros((agents, len(values)))
    for agent, chosen in enumerate(numbered.reshape(actions.shape).T):
        rates[agent] = np.bincount(chosen, minlength=len(values)) / steps
    share = np.mean([(actions[:, a] == actions[:, b]).mean() for a, b in pairs])
    return Agreement(float(share), float(np.mean([rates[a] @ rates[b] for a, b in pairs])))
