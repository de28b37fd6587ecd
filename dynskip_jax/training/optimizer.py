"""Optimizers as update directions; the loop multiplies them by the epoch's learning rate."""

from typing import Literal

import jax
import optax


def make_optimizer(
    kind: Literal["sgd", "adam"], *, clip: float | None = None, agent_learning_rate: float | None = None
) -> optax.GradientTransformation:
    """Builds the direction of descent, before the learning rate and without the minus sign.

    Args:
        kind: plain gradient descent, or Adam with Optax's defaults.
        clip: largest global norm of the gradient; None for no limit.
        agent_learning_rate: None: the agent is one more part of the network, as in the paper. A number:
            agents have an Adam of their own with this rate (times the network's schedule), and a noisy
            score-function gradient then takes no share of the network's clipping norm.
    """

    def direction(kind: str) -> optax.GradientTransformation:
        scaling = optax.scale_by_adam() if kind == "adam" else optax.identity()
        return scaling if clip is None else optax.chain(optax.clip_by_global_norm(clip), scaling)

    if agent_learning_rate is None:
        return direction(kind)
    agent = optax.chain(direction("adam"), optax.scale(agent_learning_rate))
    return optax.partition({"network": direction(kind), "agent": agent}, _labels)


def _labels(params):
    """Names each parameter's group: those below modules called `agent` or `critics`, and the rest."""

    def label(path, _):
        return "agent" if any(getattr(p, "key", None) in ("agent", "critics") for p in path) else "network"

    return jax.tree_util.tree_map_with_path(label, params)
