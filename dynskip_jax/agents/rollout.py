"""Play whole episodes: environments on the host, one compiled step of the policy."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.agents.environments import Environments
from dynskip_jax.functional.relaxation import RELAXATIONS
from dynskip_jax.rl import ppo


class Episodes(NamedTuple):
    """Whole episodes of each seed, padded to one length.

    The step after an episode's last one holds what was observed then, whose value stands for the
    rest of an episode that was cut off.
    """

    observations: Float[np.ndarray, "seeds episodes time features"]
    actions: Int[np.ndarray, "seeds episodes time parts"]
    # Chosen k of each layer, which learning replays; None for relaxed choices, and without any.
    choices: tuple[Int[np.ndarray, "seeds episodes time"] | None, ...]
    rewards: Float[np.ndarray, "seeds episodes time"]
    terminated: Bool[np.ndarray, "seeds episodes time"]
    counted: Bool[np.ndarray, "seeds episodes time"]  # False after an episode's last step

    @property
    def returns(self) -> Float[np.ndarray, "seeds episodes"]:
        """Undiscounted return of each episode."""
        return np.where(self.counted, self.rewards, 0).sum(-1)

    @property
    def lengths(self) -> Int[np.ndarray, "seeds episodes"]:
        """Number of steps of each episode."""
        return self.counted.sum(-1)


class Player:
    """Play episodes with the policies of several seeds, in one compiled step for all.

    Args:
        graphdef: Of the `ActorCritic`.
        skips: Time skip of each layer.
        num_seeds: Number of policies.
        count: Number of episodes of each that are played together.
    """

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        skips: Sequence[F.TimeSkip],
        environments: Environments,
        num_seeds: int,
        count: int,
    ):
        self._environments = environments
        self._sizes = environments.info.action_sizes
        self._shape = (num_seeds, count)
        self._graphdef = graphdef
        self._skips = skips
        self.begin = jax.jit(jax.vmap(self._begin))
        self.act = jax.jit(
            jax.vmap(self._act, in_axes=(0, 0, 0, 0, None, 0, 0, None)),
            static_argnums=7,
            donate_argnums=1,
        )

    def play(
        self,
        params: nnx.State,
        seeds: Sequence[int],
        keys: Key[Array, " seeds"],
        policy: F.Policy,
        *,
        greedy: bool = False,
    ) -> Episodes:
        """Play one episode in each environment, from resets with these seeds.

        `params`, `keys` and the leaves of `policy` are (seeds, ...). `greedy` takes the most
        probable actions.
        """
        observations = self._environments.reset(seeds)
        actions = np.zeros((*self._shape, len(self._sizes)), np.int32)
        carry = self.begin(params, keys)
        alive = np.ones(self._shape, bool)
        ended = np.zeros(self._shape, bool)
        rewards = np.zeros(self._shape, np.float32)
        steps = []
        for number in itertools.count():
            seen = observations.reshape(*self._shape, -1)
            carry, actions, choices = self.act(
                params, carry, seen, actions, number, keys, policy, greedy
            )
            actions = np.asarray(actions)
            if not alive.any():  # what was observed last
                steps.append((seen, actions, choices, rewards, ended, alive))
                return _stacked(steps, self._environments.info.longest)
            after = self._environments.step(actions.reshape(-1, len(self._sizes)))
            observations = after.observations
            rewards = after.rewards.reshape(self._shape)
            ended = after.terminated.reshape(self._shape)
            steps.append((seen, actions, choices, rewards, ended, alive))
            alive = alive & ~ended & ~after.truncated.reshape(self._shape)

    def _begin(self, params: nnx.State, key: Key[Array, ""]) -> Any:
        """Return one seed's carry, with whose keys choices are sampled."""
        stack = nnx.merge(self._graphdef, params).stack
        return stack.initialize_carry(self._shape[1], jax.random.fold_in(key, 0))

    def _act(
        self,
        params: nnx.State,
        carry: Any,
        observations: Float[Array, "episodes features"],
        previous: Int[Array, "episodes parts"],
        number: Int[Array, ""],
        key: Key[Array, ""],
        policy: F.Policy,
        greedy: bool,
    ) -> tuple[Any, Int[Array, "episodes parts"], tuple]:
        """Return one seed's carry, actions, and the choices that learning replays."""
        model = nnx.merge(self._graphdef, params)
        step = (observations[:, None], previous[:, None], jnp.reshape(number, (1,)))
        carry, output = model(*step, initial_carry=carry, policy=policy)
        key = None if greedy else jax.random.fold_in(key, number + 1)
        actions = ppo.sample_actions(output.logits[:, 0], self._sizes, key)
        # Relaxed choices are not replayed: all states enter again, with a gradient.
        is_hard = policy.mode not in RELAXATIONS
        choices = tuple(
            trace.action[:, 0] if skip.is_stochastic and is_hard else None
            for trace, skip in zip(output.decisions, self._skips, strict=True)
        )
        return carry, actions, choices


def _stacked(steps: list[tuple], longest: int | None) -> Episodes:
    """Return the steps as arrays, padded to one of few lengths, each of which is compiled."""
    length = _rounded(len(steps), 2)
    if longest is not None:
        # The step after the last one counts, too. Some environments exceed the limit they state.
        length = min(length, _rounded(max(len(steps), longest + 1), 8))

    def stack(*of_steps: np.ndarray) -> np.ndarray:
        first = of_steps[0]
        rows = np.zeros((*first.shape[:2], length, *first.shape[2:]), first.dtype)
        rows[:, :, : len(of_steps)] = np.stack(of_steps, axis=2)
        return rows

    return Episodes(*jax.tree.map(stack, *jax.device_get(steps)))


def _rounded(length: int, parts: int) -> int:
    """Return the next multiple of the largest power of two that is at most length / parts."""
    unit = 2 ** max(0, (length // parts).bit_length() - 1)
    return -(-length // unit) * unit
