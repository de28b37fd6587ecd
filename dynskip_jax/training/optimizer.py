"""Optimizers as update directions; the loop multiplies them by the epoch's learning rate."""

from typing import Literal

import jax
import optax


def make_optimizer(
    kind: Literal["sgd", "adam"],
    *,
    clip: float | None = None,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    agent_learning_rate: float | None = None,
    learning_rate: float = 1.0,
) -> optax.GradientTransformation:
    """Builds the direction of descent, before the learning rate and without the minus sign.

    Args:
        kind: plain gradient descent, or Adam with Optax's defaults.
        clip: largest global norm of the gradient; None for no limit.
        weight_decay: this times the parameters is added to the clipped gradient of the network.
        momentum: of plain gradient descent, how much of the direction of the step before is added.
        agent_learning_rate: None: the agent is one more part of the network, as in the paper. A number:
            agents have an Adam of their own which begins with this rate and follows the network's schedule,
            and a noisy score-function gradient then takes no share of the network's clipping norm.
        learning_rate: the network's initial rate, which the loop multiplies all by.
    """

    def direction(kind: str, decay: float) -> optax.GradientTransformation:
        parts = [optax.scale_by_adam() if kind == "adam" else optax.identity()]
        if kind == "sgd" and momentum:
            parts = [optax.trace(momentum)]
        if decay:
            parts.insert(0, optax.add_decayed_weights(decay))
        if clip is not None:
            parts.insert(0, optax.clip_by_global_norm(clip))
        return parts[0] if len(parts) == 1 else optax.chain(*parts)

    network = direction(kind, weight_decay)
    if agent_learning_rate is None:
        return network
    agent = optax.chain(direction("adam", 0.0), optax.scale(agent_learning_rate / learning_rate))
    return optax.partition({"network": network, "agent": agent}, _labels)


def _labels(params):
    """Names each parameter's group: those below modules called `agent` or `critics`, and the rest."""

    def label(path, _):
        return "agent" if any(getattr(p, "key", None) in ("agent", "critics") for p in path) else "network"

    return jax.tree_util.tree_map_with_path(label, params)
