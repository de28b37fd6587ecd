"""Optimizers as update directions; the loop multiplies them by the epoch's learning rate."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import optax

Kind = Literal["sgd", "adam", "adagrad"]
# Of a tuple the field alone: a module that somebody calls `skip` is part of the network.
_AGENTS = ("agent", "critics", jax.tree_util.GetAttrKey("skip"))


def make_optimizer(
    kind: Kind,
    *,
    clip: float | None = None,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    agents_apart: bool = False,
    agent_learning_rate: float | None = None,
    learning_rate: float = 1.0,
    frozen: Sequence[str] = (),
) -> optax.GradientTransformation:
    """Builds the direction of descent, before the learning rate and without the minus sign.

    Args:
        kind: plain gradient descent, Adam with Optax's defaults, or Adagrad, whose sums start from 0.
        clip: largest global norm of the gradient; None for no limit.
        weight_decay: this times the parameters is added to the clipped gradient of the network.
        momentum: of plain gradient descent, how much of the direction of the step before is added.
        agents_apart: the gradients of agents and critics are clipped by a norm of their own. Those of a
            score function, many times as large as the network's, would leave it little of a joint norm, and
            another share in each batch. False for agents that learn as the rest of the network does. An
            agent is what is called so in a module, and `skip` in `functional.LayerParams`.
        agent_learning_rate: None: agents have the network's kind of optimizer, and its rate. A number: an
            Adam of their own, clipped apart, which begins with this rate and follows the network's schedule.
        learning_rate: the network's initial rate, which the loop multiplies all by.
        frozen: names of modules whose parameters stay as they are, agents too; they have no part in clipping.
    """
    kinds = {
        "sgd": optax.identity,
        "adam": optax.scale_by_adam,
        "adagrad": lambda: optax.scale_by_rss(initial_accumulator_value=0.0, eps=1e-10),
    }

    def direction(kind: str, decay: float) -> optax.GradientTransformation:
        parts = [kinds[kind]()]
        if kind == "sgd" and momentum:
            parts = [optax.trace(momentum)]
        if decay:
            parts.insert(0, optax.add_decayed_weights(decay))
        if clip is not None:
            parts.insert(0, optax.clip_by_global_norm(clip))
        return parts[0] if len(parts) == 1 else optax.chain(*parts)

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
    modules = {"frozen": tuple(frozen), "agent": _AGENTS if "agent" in groups else ()}
    return optax.partition(groups, _labels(modules))


def _labels(modules: dict[str, tuple[Any, ...]]) -> Callable[[Any], Any]:
    """Names each parameter's group: the first with a module that it is below, else the network."""

    def label(path, _):
        names = {getattr(part, "key", getattr(part, "name", None)) for part in path}
        return next((group for group, own in modules.items() if names.union(path) & set(own)), "network")

    return lambda params: jax.tree_util.tree_map_with_path(label, params)
