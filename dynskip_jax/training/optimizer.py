"""Make optimizers, which return a direction, and schedules of the rate that multiplies it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import jax
import numpy as np
import optax
from jaxtyping import Float

Rate = float | Float[np.ndarray, " seeds"]  # one rate for all seeds, or one for each
# Function from the epoch, from 0, and the dev history, (epochs so far, seeds), to the rate.
# In the history lower is better; other metrics are negated.
Schedule = Callable[[int, np.ndarray], Rate]
Kind = Literal["sgd", "momentum", "adam", "adagrad"]
_DIRECTIONS: Mapping[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": optax.identity,
    "momentum": partial(optax.trace, 0.9),
    "adam": optax.scale_by_adam,
    "adagrad": partial(optax.scale_by_rss, initial_accumulator_value=0.0, eps=1e-10),
}
# `skip` only as the field of a named tuple: a module named `skip` is part of the network.
_AGENTS = {"agent", "copier", "critics", jax.tree_util.GetAttrKey("skip")}


def make_optimizer(
    kind: Kind,
    *,
    clip: float | None = None,
    weight_decay: float = 0.0,
    agents_apart: bool = False,
    agent_learning_rate: float | None = None,
    learning_rate: float = 1.0,
    frozen: Sequence[str] = (),
) -> optax.GradientTransformation:
    """Return an optimizer of the direction of descent, without learning rate or minus sign.

    Agents are the parameters below the module names `agent`, `copier` and `critics`, and the field
    `skip` of `functional.LayerParams`.

    Args:
        kind: Gradient descent, with momentum 0.9, Optax's Adam, or Adagrad with sums that begin at
            0.
        clip: Largest global norm of the gradient; None does not clip.
        weight_decay: Factor of the parameters that is added to the clipped gradient, except for
            agents with an `agent_learning_rate`.
        agents_apart: Whether gradients of agents are clipped separately. Score-function gradients
            are many times as large as the network's, and would dominate a joint norm.
        agent_learning_rate: Initial learning rate of a separate Adam for agents, which are then
            clipped separately and follow the network's schedule. None: agents use the network's
            optimizer and rate.
        learning_rate: Initial learning rate of the network, which the loop multiplies all updates
            by.
        frozen: Names of modules, also of agents, whose parameters do not change and do not count in
            clipping.
    """

    def direction(kind: str, decay: float) -> optax.GradientTransformation:
        # Three stages for all settings, so that the optimizer's state has one structure.
        clipping = optax.identity()
        if clip is not None:
            clipping = optax.clip_by_global_norm(clip)
        decaying = optax.identity()
        if decay:
            decaying = optax.add_decayed_weights(decay)
        return optax.chain(clipping, decaying, _DIRECTIONS[kind]())

    groups = {"network": direction(kind, weight_decay)}
    if agent_learning_rate is not None:
        own_rate = optax.scale(agent_learning_rate / learning_rate)
        groups["agent"] = optax.chain(direction("adam", 0.0), own_rate)
    elif agents_apart:
        groups["agent"] = direction(kind, weight_decay)
    if frozen:
        groups["frozen"] = optax.set_to_zero()
    if len(groups) == 1:
        return groups["network"]

    def label(path: tuple[Any, ...], _: Any) -> str:
        names = {getattr(part, "key", getattr(part, "name", None)) for part in path}.union(path)
        if names & set(frozen):
            return "frozen"
        return "agent" if "agent" in groups and names & _AGENTS else "network"

    return optax.partition(groups, partial(jax.tree_util.tree_map_with_path, label))


def decay_after(initial: Rate, factor: float, epochs: int) -> Schedule:
    """Return `initial` for `epochs` epochs, then times `factor` each (Zaremba et al. 2014)."""
    return lambda epoch, history: initial * factor ** max(epoch + 1 - epochs, 0)


def inverse_time(initial: Rate, factor: float) -> Schedule:
    """Return `initial` / (1 + `factor` · epoch), with epochs from 0 (Ma & Hovy 2016)."""
    return lambda epoch, history: initial / (1 + factor * epoch)


def decay_on_plateau(initial: Rate, factor: float, *, threshold: float, floor: float) -> Schedule:
    """Return a schedule that decays when the dev metric falls by less than `threshold`.

    The rate stays above `floor`. Each seed follows its own history (released code of Gui et al.
    2019).
    """

    def rate(epoch: int, history: np.ndarray) -> np.ndarray:
        stalled = (history[:-1] - history[1:] < threshold).sum(axis=0)
        return np.maximum(initial * factor**stalled, floor)

    return rate
