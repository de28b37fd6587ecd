"""Make Gymnasium environments that step together, and describe one."""

import dataclasses
import difflib
import hashlib
import importlib.metadata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from dynskip_jax.config import short
from dynskip_jax.errors import UserError, needs

with needs("popgym"):
    import gymnasium
    import popgym  # noqa: F401 (registers its environments)
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode, SyncVectorEnv
    from gymnasium.wrappers import FlattenObservation


@dataclasses.dataclass(frozen=True)
class EnvironmentInfo:
    """Static description of an environment."""

    id: str  # in Gymnasium's registry
    observation_features: int  # of a flattened observation
    action_sizes: tuple[int, ...]  # number of choices of each part of an action
    is_single: bool  # whether an action is a number instead of an array
    first_action: tuple[int, ...]  # smallest value of each part
    longest: int | None  # largest number of steps of an episode; None if that is not known
    observation_space: Any  # of Gymnasium, before observations are flattened
    fingerprint: str  # hash of all this


def describe(name: str) -> EnvironmentInfo:
    """Return the description of an environment, or refuse it with one line."""
    id = find_id(name)
    made = _attempt(lambda: gymnasium.make(id, disable_env_checker=True), f"{name} cannot be made")
    space = made.action_space
    if isinstance(space, spaces.Discrete):
        sizes = (int(space.n),)
        first = (int(space.start),)
    elif isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        sizes = tuple(map(int, space.nvec))
        first = tuple(map(int, space.start))
    else:
        raise UserError(
            f"expected {name} to have Discrete or MultiDiscrete actions, got {_kind(space)}: "
            "choose another --env"
        )
    if not made.observation_space.is_np_flattenable:
        raise UserError(
            f"expected observations of {name} that gymnasium.spaces.flatten takes, got "
            f"{_kind(made.observation_space)}: choose another --env"
        )
    limit = made.spec.max_episode_steps or getattr(made.unwrapped, "max_episode_length", None)
    features = spaces.flatdim(made.observation_space)
    is_single = isinstance(space, spaces.Discrete)
    about = (id, features, sizes, is_single, first, limit, made.observation_space)
    fingerprint = hashlib.sha256(repr(about).encode()).hexdigest()
    made.close()
    return EnvironmentInfo(*about, fingerprint)


def find_id(name: str) -> str:
    """Return the id in the registry of an environment of POPGym by its short name, or of any."""
    names = {id.removeprefix("popgym-").removesuffix("-v0"): id for id in gymnasium.registry}
    if name in names:
        return names[name]
    if name in gymnasium.registry or ":" in name:  # `module:id` imports the module first
        return name
    alike = difflib.get_close_matches(name, [*names, *gymnasium.registry], cutoff=0.5)
    raise UserError(
        f"there is no environment {short(name)}: give the name of one of POPGym's, such as "
        f"{alike[0] if alike else 'RepeatPreviousHard'}, or an id of Gymnasium's registry"
    )


class Environments:
    """Environments of one kind that step together, each through one whole episode after a reset.

    What an environment raises is one line. After an episode's end, Gymnasium starts another one in
    its place, whose steps the caller leaves out.
    """

    def __init__(self, info: EnvironmentInfo, count: int):
        self._info = info
        self._first = np.array(info.first_action)

        def make() -> gymnasium.Env:
            return FlattenObservation(gymnasium.make(info.id, disable_env_checker=True))

        self._vector = self._attempt(
            lambda: SyncVectorEnv(
                [make] * count, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP
            ),
            "cannot be made",
        )

    def reset(self, seeds: Sequence[int]) -> Float[np.ndarray, "count features"]:
        """Begin an episode in each environment, and return the first observations."""
        observations, _ = self._attempt(
            lambda: self._vector.reset(seed=[*map(int, seeds)]), "failed in reset"
        )
        return observations.astype(np.float32)

    def step(
        self, actions: Int[np.ndarray, "count parts"]
    ) -> tuple[
        Float[np.ndarray, "count features"],
        Float[np.ndarray, " count"],
        Bool[np.ndarray, " count"],
        Bool[np.ndarray, " count"],
    ]:
        """Return the next observations, rewards, and which episodes terminated or were truncated.

        Parts of actions count from 0.
        """
        given = actions + self._first
        if self._info.is_single:
            given = given[:, 0]
        observations, rewards, terminated, truncated, _ = self._attempt(
            lambda: self._vector.step(given), "failed in step"
        )
        if not np.isfinite(rewards).all():
            wrong = rewards[~np.isfinite(rewards)][0]
            raise UserError(
                f"expected finite rewards of {self._info.id}, got {wrong}: mend the environment"
            )
        return observations.astype(np.float32), rewards, terminated, truncated

    def close(self) -> None:
        """Close all environments."""
        self._vector.close()

    def _attempt(self, call: Callable[[], Any], what: str) -> Any:
        return _attempt(call, f"{self._info.id} {what}")


def _attempt(call: Callable[[], Any], what: str) -> Any:
    """Call an environment, and report its error, of any kind, in one line."""
    try:
        return call()
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise UserError(
            f"the environment {what} ({type(error).__name__}: {first}): mend it, or choose "
            "another --env"
        ) from error


def _kind(space: Any) -> str:
    return type(space).__name__


def version() -> str:
    """Return the versions of the packages of environments."""
    names = ("gymnasium", "popgym")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
