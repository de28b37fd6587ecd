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
from dynskip_jax.agents.actor_critic import ActorCritic
from dynskip_jax.agents.environments import Environments
from dynskip_jax.functional.relaxation import RELAXATIONS
from dynskip_jax.rl import ppo


class Episodes(NamedTuple):
    """Whole episodes, padded to one length; each array is (seeds, episodes, time, ...)."""

    observations: Float[np.ndarray, "seeds episodes time features"]
    previous: Int[np.ndarray, "seeds episodes time parts"]  # action before each step
    actions: Int[np.ndarray, "seeds episodes time parts"]
    # Sampled k of each layer, which learning replays; None for layers without.
    choices: tuple[Int[np.ndarray, "seeds episodes time"] | None, ...]
    log_probs: Float[np.ndarray, "seeds episodes time"]  # of actions
    choice_log_probs: Float[np.ndarray, "seeds episodes time"]  # of all layers' sampled choices
    values: Float[np.ndarray, "seeds episodes time"]
    next_values: Float[np.ndarray, "seeds episodes time"]  # of the step after
    rewards: Float[np.ndarray, "seeds episodes time"]
    terminated: Bool[np.ndarray, "seeds episodes time"]
    counted: Bool[np.ndarray, "seeds episodes time"]  # False after an episode's end

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
        action_sizes: Sequence[int],
        environments: Environments,
        num_seeds: int,
        count: int,
    ):
        self._environments = environments
        self._shape = (num_seeds, count)
        self._graphdef = graphdef
        self._sizes = tuple(action_sizes)
        self._samples = tuple(skip.is_stochastic for skip in skips)
        self.begin = jax.jit(jax.vmap(self._carry))
        self.act = jax.jit(
            jax.vmap(self._policy_step, in_axes=(0, 0, 0, 0, None, 0, 0, None)),
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
        seen = []
        received = []
        chosen = []
        for number in itertools.count():
            observations = observations.reshape(*self._shape, -1)
            seen.append((observations, actions))
            # Nothing waits for the policy's step but the actions.
            carry, actions, of_step = self.act(
                params, carry, observations, actions, number, keys, policy, greedy
            )
            chosen.append((actions, of_step))
            if not alive.any():  # this step was for its values only
                break
            actions = np.asarray(actions)
            observations, rewards, terminated, truncated = self._environments.step(
                actions.reshape(-1, len(self._sizes))
            )
            terminated = terminated.reshape(self._shape)
            rewards = rewards.astype(np.float32).reshape(self._shape)
            received.append((rewards, terminated, alive))
            alive = alive & ~(terminated | truncated.reshape(self._shape))
        return _stacked(seen, received, jax.device_get(chosen))

    def _carry(self, params: nnx.State, key: Key[Array, ""]) -> Any:
        """Return one seed's carry, with whose keys choices are sampled."""
        model = nnx.merge(self._graphdef, params)
        return model.stack.initialize_carry(self._shape[1], jax.random.fold_in(key, 0))

    def _policy_step(
        self,
        params: nnx.State,
        carry: Any,
        observations: Float[Array, "episodes features"],
        previous: Int[Array, "episodes parts"],
        number: Int[Array, ""],
        key: Key[Array, ""],
        policy: F.Policy,
        greedy: bool,
    ) -> tuple[Any, Int[Array, "episodes parts"], "_OfStep"]:
        """Return one seed's carry, actions, and what learning needs of the step."""
        model: ActorCritic = nnx.merge(self._graphdef, params)
        now = jnp.reshape(number, (1,))
        carry, output = model(
            observations[:, None],
            previous[:, None],
            now,
            initial_carry=carry,
            policy=policy,
        )
        logits = output.logits[:, 0]
        action_key = None if greedy else jax.random.fold_in(key, number + 1)
        actions = ppo.sample_actions(logits, self._sizes, action_key)
        # Relaxed choices are not replayed: all states enter again, with a gradient.
        is_hard = policy.mode not in RELAXATIONS
        choices = tuple(
            trace.action[:, 0] if samples and is_hard else None
            for trace, samples in zip(output.decisions, self._samples, strict=True)
        )
        of_step = _OfStep(
            choices,
            ppo.action_log_prob(logits, actions, self._sizes),
            choice_log_prob(output.decisions)[:, 0],
            output.values[:, 0],
        )
        return carry, actions, of_step


class _OfStep(NamedTuple):
    """What learning needs of one step of the policy, each leaf (seeds, episodes)."""

    choices: tuple
    log_probs: Any
    choice_log_probs: Any
    values: Any


def choice_log_prob(decisions: Sequence[F.DecisionTrace]) -> Float[Array, "*batch time"]:
    """Return log π of the choices of all layers, the sum; 0 for layers that sample nothing."""
    total = jnp.zeros(decisions[0].action.shape, jnp.float32)
    for trace in decisions:
        if trace.mode in ("sample", "replayed"):
            total += trace.log_prob
    return total


def _stacked(seen: list, received: list, chosen: list) -> Episodes:
    """Return the steps as arrays, padded to one of few lengths, each of which is compiled."""
    length = len(received)
    padded = _padded_length(length)

    def stack(*steps: np.ndarray) -> np.ndarray:
        rows = np.zeros((*steps[0].shape[:2], padded, *steps[0].shape[2:]), steps[0].dtype)
        for t, step in enumerate(steps[:length]):
            rows[:, :, t] = step
        return rows

    observations, previous = jax.tree.map(stack, *seen)
    rewards, terminated, counted = jax.tree.map(stack, *received)
    actions, of_step = jax.tree.map(stack, *chosen)
    after = jax.tree.map(stack, *(of_step.values for _, of_step in chosen[1:]))
    return Episodes(
        observations,
        previous,
        actions,
        *of_step,
        next_values=after,
        rewards=rewards,
        terminated=terminated,
        counted=counted,
    )


def _padded_length(length: int) -> int:
    """Return the length rounded up to a multiple of its sixteenth to eighth, a power of two."""
    unit = 2 ** max(0, length.bit_length() - 4)
    return -(-length // unit) * unit
