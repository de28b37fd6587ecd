"""Measure how often agents of different seeds make the same choice, compared with chance agreement."""

import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Int


class Agreement(NamedTuple):
    """Agreement of two agents on the same text, or its mean over pairs of agents.

    Attributes:
        share: Fraction of equal choices.
        by_chance: Expected `share` if each agent sampled with the frequencies of its own choices,
            independently of the text.
    """

    share: float
    by_chance: float

    @property
    def kappa(self) -> float:
        """Cohen's κ (1960), (share − by_chance) / (1 − by_chance).

        1 if all choices are equal, 0 for chance agreement, NaN if all agents make one and the same choice at
        every step.
        """
        return float("nan") if self.by_chance == 1 else (self.share - self.by_chance) / (1 - self.by_chance)

    def __str__(self) -> str:
        return (
            f"{self.share:.1%} of choices, by their rates alone {self.by_chance:.1%} (κ = {self.kappa:.2f})"
        )


def agreement(actions: Int[np.ndarray, "steps agents"]) -> Agreement:
    """Return the mean agreement over all pairs of agents.

    Args:
        actions: Choice of each agent at each step, (steps, agents), with at least two agents.
    """
    steps, agents = actions.shape
    pairs = list(itertools.combinations(range(agents), 2))
    values, numbered = np.unique(actions, return_inverse=True)
    rates = np.zeros((agents, len(values)))
    for agent, chosen in enumerate(numbered.reshape(actions.shape).T):
        rates[agent] = np.bincount(chosen, minlength=len(values)) / steps
    share = np.mean([(actions[:, a] == actions[:, b]).mean() for a, b in pairs])
    return Agreement(float(share), float(np.mean([rates[a] @ rates[b] for a, b in pairs])))
