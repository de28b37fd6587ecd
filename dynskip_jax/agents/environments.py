"""Make Gymnasium environments that step together, and describe one."""

import difflib
import hashlib
import importlib.metadata
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from dynskip_jax.config.flags import short
from dynskip_jax.errors import UserError, needs

with needs("popgym"):
    import gymnasium
    import popgym  # noqa: F401 (registers its environments)
    from gymnasium import spaces
    from gymnasium.vector import SyncVectorEnv
    from gymnasium.wrappers import FlattenObservation

_PACKAGES = ("gymnasium", "popgym")
VERSIONS = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)


class EnvironmentInfo(NamedTuple):
    """What is known of an environment before it is played."""

    id: str  # in Gymnasium's registry
    observation_space: Any  # before observations are flattened
    action_space: Any
    action_sizes: tuple[int, ...]  # number of choices of each part of an action
    longest: int | None  # largest number of steps of an episode; None if that is not known

    @property
    def observation_features(self) -> int:
        """Size of a flattened observation."""
        return spaces.flatdim(self.observation_space)

    @property
    def fingerprint(self) -> str:
        """Hash of all this."""
        return hashlib.sha256(repr(tuple(self)).encode()).hexdigest()

    def shown(self, observation: Float[np.ndarray, " features"]) -> str:
        """Return a flattened observation as a short text without spaces."""
        return _shown(spaces.unflatten(self.observation_space, observation))


def describe(name: str) -> EnvironmentInfo:
    """Return what is known of an environment; one that cannot be used is refused in one line."""
    id = _find_id(name)
    made = _attempt(name, "cannot be made", lambda: _make(id))
    space = made.action_space
    sizes = ()
    if isinstance(space, spaces.Discrete):
        sizes = (int(space.n),)
    elif isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        sizes = tuple(map(int, space.nvec))
    else:
        raise UserError(
            f"expected {name} to have Discrete or MultiDiscrete actions, got "
            f"{type(space).__name__}: choose another --env"
        )
    if not made.observation_space.is_np_flattenable:
        raise UserError(
            f"expected observations of {name} that gymnasium.spaces.flatten takes, got "
            f"{type(made.observation_space).__name__}: choose another --env"
        )
    limit = made.spec.max_episode_steps or getattr(made.unwrapped, "max_episode_length", None)
    made.close()
    return EnvironmentInfo(id, made.observation_space, space, sizes, limit)


class Stepped(NamedTuple):
    """What follows from the actions in all environments."""

    observations: Float[np.ndarray, "count features"]
    rewards: Float[np.ndarray, " count"]
    terminated: Bool[np.ndarray, " count"]
    truncated: Bool[np.ndarray, " count"]


class Environments:
    """Environments of one kind that step together, each through one whole episode after a reset.

    After an episode's end Gymnasium starts another one in its place, whose steps the caller leaves
    out.
    """

    def __init__(self, info: EnvironmentInfo, count: int):
        self.info = info
        self._first = np.ravel(info.action_space.start)
        makers = [lambda: FlattenObservation(_make(info.id))] * count
        self._vector = self._attempt("cannot be made", lambda: SyncVectorEnv(makers))

    def reset(self, seeds: Sequence[int]) -> Float[np.ndarray, "count features"]:
        """Begin an episode in each environment, and return the first observations."""
        given = [*map(int, seeds)]
        observations, _ = self._attempt("failed in reset", lambda: self._vector.reset(seed=given))
        return observations.astype(np.float32)

    def step(self, actions: Int[np.ndarray, "count parts"]) -> Stepped:
        """Take actions, whose parts count from 0."""
        given = actions + self._first
        if isinstance(self.info.action_space, spaces.Discrete):
            given = given[:, 0]
        observations, rewards, terminated, truncated, _ = self._attempt(
            "failed in step", lambda: self._vector.step(given)
        )
        if not np.isfinite(rewards).all():
            wrong = rewards[~np.isfinite(rewards)][0]
            raise UserError(
                f"expected finite rewards of {self.info.id}, got {wrong}: mend the environment"
            )
        numbers = (observations.astype(np.float32), rewards.astype(np.float32))
        return Stepped(*numbers, terminated, truncated)

    def _attempt(self, what: str, call: Callable[[], Any]) -> Any:
        return _attempt(self.info.id, what, call)


def _find_id(name: str) -> str:
    """Return the id in the registry of an environment of POPGym by its short name, or of any."""
    if name in gymnasium.registry or ":" in name:  # `module:id` imports the module first
        return name
    names = {id.removeprefix("popgym-").removesuffix("-v0"): id for id in gymnasium.registry}
    if name in names:
        return names[name]
    alike = difflib.get_close_matches(name, names, n=1, cutoff=0.5) or ["RepeatPreviousHard"]
    raise UserError(
        f"there is no environment {short(name)}: give the name of one of POPGym's, such as "
        f"{alike[0]}, or an id of Gymnasium's registry"
    )


def _make(id: str) -> Any:
    # Gymnasium's checker would print warnings, and rewards are checked here.
    return gymnasium.make(id, disable_env_checker=True)


def _attempt(name: str, what: str, call: Callable[[], Any]) -> Any:
    """Call an environment, and report its error, of any kind, in one line."""
    try:
        return call()
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise UserError(
            f"the environment {name} {what} ({type(error).__name__}: {first}): mend it, or choose "
            "another --env"
        ) from error


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    return ",".join(f"{number:.3g}" for number in np.ravel(value))
