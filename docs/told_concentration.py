"""ConcentrationEasy of POPGym that tells where an open match was seen.

    python -m experiments.popgym --env docs.told_concentration:ToldConcentrationEasy-v0

A row of docs/results/agents.md: what an LSTM has that need not remember.
"""

from typing import Any

import gymnasium
import numpy as np
import popgym  # noqa: F401 (registers its environments)
from gymnasium import spaces


class ToldConcentration(gymnasium.Wrapper):
    """Add to the observation the place of a card that matches the open one, as a one-hot vector.

    It is zero if no card is open, or if no match was seen.
    """

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.cards = env.unwrapped.observation_space.nvec.size
        told = spaces.MultiBinary(self.cards)
        self.observation_space = spaces.Tuple((env.observation_space, told))

    def reset(self, **options: Any) -> tuple[Any, dict]:
        """Begin a game, of which nothing is known."""
        seen, info = self.env.reset(**options)
        self.known = {}
        return (seen, self.match(seen)), info

    def step(self, action: Any) -> tuple:
        """Turn a card."""
        seen, *rest = self.env.step(action)
        return ((seen, self.match(seen)), *rest)

    def match(self, seen: np.ndarray) -> np.ndarray:
        """Remember the cards that lie open, and return where a match of the one in play was."""
        game = self.env.unwrapped
        for place in np.flatnonzero(seen != game.facedown_card):
            self.known[int(place)] = int(seen[place])
        told = np.zeros(self.cards, np.int8)
        in_play = game.deck["in_play_idx"]
        if len(in_play) != 1:
            return told
        (place,) = in_play
        done = {place, *game.deck["face_up_idx"]}
        for other, value in self.known.items():
            if other not in done and value == self.known[place]:
                told[other] = 1
                break
        return told


def make(**_: Any) -> gymnasium.Env:
    """Return the environment."""
    return ToldConcentration(
        gymnasium.make("popgym-ConcentrationEasy-v0", disable_env_checker=True)
    )


gymnasium.register("ToldConcentrationEasy-v0", entry_point=make)
