"""The command `watch`: play an episode, and show to which step the agent goes back."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from dynskip_jax.agents.environments import Environments
from dynskip_jax.agents.rollout import Player
from dynskip_jax.analysis.arcs import draw_arcs, table_of_choices
from dynskip_jax.analysis.reading import Reading
from dynskip_jax.config.flags import Seed
from dynskip_jax.rl import ppo
from dynskip_jax.runs.finished import FinishedRun
from dynskip_jax.runs.load import Trained
from dynskip_jax.storage.folder import file_name
from dynskip_jax.terminal.console import print_table, say


def watch(run: FinishedRun, episode: Seed = 0) -> None:
    """Play an episode, and show to which earlier step the agent goes back at each step.

    Choices and actions are the most probable ones. A step is written as the observation, an arrow,
    and the action.

    Args:
        episode: Seed of the environment.
    """
    for name, trained in run.models("popgym.watch").items():
        reading = watched(trained, episode)
        likely = {"p(action)": reading.probabilities}
        say(f"{name}: {reading.prediction}")
        print_table("", *table_of_choices(reading, likely))
        if any(reading.skips):
            path = run.run_dir / "plots" / file_name(f"watch-{name}-{trained.seed}-{episode}.png")
            with run.warned():
                draw_arcs(reading, likely, path, f"{name}: where each step goes back to")
                say(f"picture: {path}")


def watched(trained: Trained, seed: int) -> Reading:
    """Return an episode as a reading, with the probability of each action."""
    task = trained.learner.task
    policy = dataclasses.replace(trained.policy, mode="greedy")
    params, policies = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (trained.params, policy))
    player = Player(
        trained.learner.graphdef, trained.learner.skips, Environments(task.info, 1), 1, 1
    )
    keys = jax.random.key(seed)[None]
    episode = player.play(params, [seed], keys, policies, greedy=True)
    length = int(episode.lengths[0, 0])
    steps = jax.tree.map(lambda leaf: leaf[0, 0][None, :length], episode)
    _, output = trained.model(
        steps.observations,
        np.roll(steps.actions, 1, axis=1),
        jnp.arange(length),
        policy=policy,
        rngs=jax.random.key(0),
        actions=steps.choices,
    )
    log_probs = ppo.action_log_prob(output.logits, steps.actions, task.info.action_sizes)
    own, observations = jax.tree.map(lambda leaf: leaf[0], (output.decisions, output.observations))
    words = [
        f"{task.info.shown(seen)}→{','.join(map(str, action))}"
        for seen, action in zip(steps.observations[0], steps.actions[0], strict=True)
    ]
    return Reading(
        words,
        probabilities=np.exp(log_probs[0]).tolist(),
        prediction=f"return {episode.returns[0, 0]:.3f} in {length} steps",
        **trained.choices(own, observations, length),
    )
