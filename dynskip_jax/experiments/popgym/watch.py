"""The command `watch`: play an episode, and show to which step the agent goes back."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from dynskip_jax import functional as F
from dynskip_jax.agents.environments import Environments
from dynskip_jax.agents.rollout import Episodes, Player
from dynskip_jax.analysis.arcs import draw_arcs, table_of_choices
from dynskip_jax.analysis.reading import Reading
from dynskip_jax.config import Seed
from dynskip_jax.console import print_table, say
from dynskip_jax.finished import FinishedRun
from dynskip_jax.trained import Trained
from dynskip_jax.training.folder import file_name


def watch(run: FinishedRun, episode: Seed = 0) -> None:
    """Play an episode, and show to which earlier step the agent goes back at each step.

    Choices and actions are the most probable ones. A step is written as the observation, an arrow,
    and the action.

    Args:
        episode: Seed of the environment.
    """
    says = {}
    for name, trained in run.models("popgym.watch").items():
        reading, chances = watched(trained, episode)
        likely = {"p(action)": chances}
        say(f"{name}:")
        print_table("", *table_of_choices(reading, likely))
        says[name] = reading.prediction
        if any(reading.skips):
            path = run.run_dir / "plots" / file_name(f"watch-{name}-{trained.seed}-{episode}.png")
            with run.warned():
                draw_arcs(reading, likely, path, f"{name}: where each step goes back to")
                say(f"picture: {path}")
    for name, said in says.items():
        say(f"{name}: {said}")


def watched(trained: Trained, seed: int) -> tuple[Reading, list[float]]:
    """Return an episode as a reading, and the probability of each action."""
    task = trained.learner.task
    policy = dataclasses.replace(trained.policy, mode="greedy")
    episode = _play(trained, policy, seed)
    length = int(episode.lengths[0, 0])
    steps = jax.tree.map(lambda leaf: leaf[0, 0][None, :length], episode)
    _, output = trained.model(
        steps.observations,
        steps.previous,
        jnp.arange(length),
        policy=policy,
        rngs=jax.random.key(0),
        actions=steps.choices,
    )
    own, observations = jax.tree.map(lambda leaf: leaf[0], (output.decisions, output.observations))
    words = [
        f"{_text(spaces.unflatten(task.info.observation_space, seen))}→{_text(action)}"
        for seen, action in zip(steps.observations[0], steps.actions[0], strict=True)
    ]
    chances = np.exp(steps.log_probs[0]).tolist()
    reading = Reading(
        words,
        probabilities=chances,
        prediction=f"return {episode.returns[0, 0]:.3f} in {length} steps",
        **trained.choices(own, observations, length),
    )
    return reading, chances


def _play(trained: Trained, policy: F.Policy, seed: int) -> Episodes:
    """Play one episode with the most probable choices and actions."""
    info = trained.learner.task.info
    environments = Environments(info, 1)
    player = Player(
        trained.learner.graphdef, trained.learner.skips, info.action_sizes, environments, 1, 1
    )
    params, policies = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (trained.params, policy))
    keys = jax.random.key(seed)[None]
    return player.play(params, [seed], keys, policies, greedy=True)


def _text(value: Any) -> str:
    """Return an observation or an action as a short text without spaces."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    return ",".join(f"{number:.3g}" for number in np.ravel(value))
