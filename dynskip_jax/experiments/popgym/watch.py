"""The command `watch`: play an episode, and show to which step the agent goes back."""

import base64
import dataclasses
import html as markup
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dynskip_jax.agents.environments import Environments
from dynskip_jax.agents.rollout import Player
from dynskip_jax.analysis.arcs import draw_arcs, table_of_choices
from dynskip_jax.analysis.page import html_page
from dynskip_jax.analysis.reading import Reading
from dynskip_jax.config.flags import Seed
from dynskip_jax.rl import ppo
from dynskip_jax.runs.finished import FinishedRun
from dynskip_jax.runs.load import Trained
from dynskip_jax.storage.files import check_new, write_atomically
from dynskip_jax.storage.folder import file_name
from dynskip_jax.terminal.console import print_table, say


def watch(run: FinishedRun, episode: Seed = 0, html: Path | None = None) -> None:
    """Play an episode, and show to which earlier step the agent goes back at each step.

    Choices and actions are the most probable ones. A step is written as the observation, an arrow,
    and the action.

    Args:
        episode: Seed of the environment.
        html: Also write a page, on which a click leads to the earlier step.
    """
    if html is not None:
        check_new(html)
    sections = []
    for name, trained in run.models("popgym.watch").items():
        title = f"{trained.learner.task.info.id}, episode {episode}"
        reading = watched(trained, episode)
        likely = {"p(action)": reading.probabilities}
        heading = f"{name}: {reading.prediction}"
        say(heading)
        headings, rows = table_of_choices(reading, likely)
        print_table("", headings, rows)
        picture = None
        if any(reading.skips):
            path = run.run_dir / "plots" / file_name(f"watch-{name}-{trained.seed}-{episode}.png")
            with run.warned():
                draw_arcs(reading, likely, path, f"{name}: where each step goes back to")
                say(f"picture: {path}")
                picture = path.read_bytes()
        sections.append(_section(heading, name, picture, headings, rows, reading.skips))
    if html is not None:
        write_atomically(html, html_page(title, "".join(sections)))
        say(f"page: {html}")


def _section(
    heading: str,
    name: str,
    picture: bytes | None,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    skips: Sequence[int],
) -> str:
    """Return the HTML of an episode: its picture, and the table of steps with links to origins.

    `name` makes the rows' ids unique on a page, and `picture` is a PNG.
    """
    name = markup.escape(name)
    lines = [f"<tr>{_cells(['step', *headings, 'goes back to'], 'th')}</tr>\n"]
    for t, (row, k) in enumerate(zip(rows, skips, strict=True)):
        link = ""
        if 0 < k <= t:
            link = f'<a href="#{name}-{t - k}">step {t - k}</a>'
        cells = _cells([str(t), *row], "td")
        lines.append(f'<tr id="{name}-{t}">{cells}<td>{link}</td></tr>\n')
    image = ""
    if picture is not None:
        encoded = base64.b64encode(picture).decode()
        image = f'<img alt="arcs to earlier steps" src="data:image/png;base64,{encoded}">'
    return f"<h2>{markup.escape(heading)}</h2>{image}<table>{''.join(lines)}</table>"


def _cells(texts: Sequence[str], tag: str) -> str:
    return "".join(f"<{tag}>{markup.escape(text)}</{tag}>" for text in texts)


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
