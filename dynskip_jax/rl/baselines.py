"""Baselines: values that are subtracted from a return to reduce the variance of the score function."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from dynskip_jax.functional.agent import AgentParams, agent_logits, project_agent_input


def leave_one_out(
    values: Float[Array | np.ndarray, "..."],
    counted: Bool[Array | np.ndarray, "..."] | None = None,
    *,
    axis: int = 0,
    axis_name: str | None = None,
) -> Float[Array, "..."]:
    """Return, for each member of a group, the mean of the values of the other members (Kool et al. 2019).

    A member's own action cannot change this baseline. The group is the leading axis: the rollouts of an
    example, or the examples of the batch if there is no axis of rollouts.

    Where no other value counts, the baseline is 0.

    Args:
        values: Rewards or returns, (group, ...).
        counted: False for values that no mean includes, with the leading axes of `values`: rows that only
            fill a batch, and steps past the end of a sequence. None if all count.
        axis: Axis of the group.
        axis_name: Name of the mapped axis (`jax.pmap`) over which the group is divided.
    """
    is_one = jnp.ones_like(values)
    if counted is not None:
        counted = counted.reshape(counted.shape + (1,) * (values.ndim - counted.ndim))
        is_one = jnp.broadcast_to(counted, values.shape).astype(values.dtype)
    masked = jnp.where(is_one > 0, values, 0)
    total, size = (array.sum(axis, keepdims=True) for array in (masked, is_one))
    if axis_name is not None:
        total, size = jax.lax.psum((total, size), axis_name)
    return (total - masked) / jnp.maximum(size - is_one, 1)


class MovingAverage(NamedTuple):
    """State of an exponential moving average of n values so far."""

    mean: Float[Array, "..."] | float = 0.0  # Σ_i (1 - decay) decay^(n - i) value_i
    weight: Float[Array, "..."] | float = 0.0  # sum of these weights, by which `mean` is divided


def moving_average(
    average: MovingAverage, value: Float[Array, "..."] | float, decay: float | Float[Array, ""] = 0.99
) -> tuple[Float[Array, "..."], MovingAverage]:
    """Return the average of the earlier values, a baseline (Williams 1992), and the average with `value`.

    Earlier batches do not depend on the actions of this one, so the expected gradient stays the same. The
    average has Adam's bias correction (Kingma & Ba 2015), and is 0 before the first value.
    Begin with `MovingAverage()`; `value` is the mean reward of this batch, and `decay` lies in [0, 1).
    """
    some = jnp.asarray(average.weight > 0)
    earlier = jnp.where(some, average.mean / jnp.where(some, average.weight, 1), 0)
    one = jnp.ones_like(value)
    new = (decay * old + (1 - decay) * x for old, x in zip(average, (value, one), strict=True))
    return earlier, MovingAverage(*new)


def critic(
    params: AgentParams, x: Float[Array, "*batch in"], h: Float[Array, "*batch hidden"]
) -> Float[Array, "*batch"]:
    """Return V(s(t)), a critic's estimate of the return from s(t) = h(t-1) ⊕ x(t).

    It depends only on actions before t, so as a baseline it does not change the expected gradient, even if
    the estimate is wrong (Williams 1992; Greensmith et al. 2004). Gradients are stopped at `x` and `h`:
    training the critic with `critic_loss` changes neither the network nor the agent.

    Args:
        params: Weights of an MLP of the agent's form with K = 1, whose output is the value.
        x: Input x(t) of the layer, as in `out.observations`; `*batch` may contain the time axis.
        h: State h(t-1) of the layer, as in `out.observations`.
    """
    x, h = jax.lax.stop_gradient((x, h))
    return agent_logits(params, project_agent_input(params, x), h).squeeze(-1)
