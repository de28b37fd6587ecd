"""Baselines: values that are subtracted from a return to reduce the variance of the score function."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dynskip_jax.functional.agent import AgentParams, agent_logits, project_agent_input
from dynskip_jax.functional.serialization import register_for_export


def leave_one_out_mean(
    values: Float[Array, "group *rest"],
    axis_name: str | None = None,
    counted: Bool[Array, "group ..."] | None = None,
) -> Float[Array, "group *rest"]:
    """Return, for each member of a group, the mean of the values of the other members.

    A member's own action cannot change this baseline. The group may be the examples of a batch, or the
    rollouts of one example (Kool et al. 2019). The baseline has no parameters.

    Args:
        values: Values of the members, (group, ...).
        axis_name: Name of the mapped axis (`jax.pmap`) over which the group is divided; None if `values`
            contains the whole group.
        counted: False for values that no mean includes, (group,) or (group, ...): rows that only fill a
            batch, and steps past the end of a sequence. None if all count.

    Returns:
        The means, (group, ...); 0 where no other value counts.
    """
    if counted is None:
        masked, is_one = values, jnp.ones((), values.dtype)
        size = jnp.asarray(values.shape[0], values.dtype)
    else:
        is_one = counted.astype(values.dtype)
        is_one = is_one.reshape(is_one.shape + (1,) * (values.ndim - is_one.ndim))
        masked, size = jnp.where(is_one > 0, values, 0), is_one.sum(axis=0, keepdims=True)
    total = masked.sum(axis=0, keepdims=True)
    if axis_name is not None:
        total, size = jax.lax.psum((total, size), axis_name)
    return (total - masked) / jnp.maximum(size - is_one, 1)


@register_for_export
class MovingAverage(NamedTuple):
    """State of an exponential moving average of earlier returns; see `moving_average_value`.

    It is the baseline of Williams (1992). It needs no second sample, and has the smallest variance of the
    unbiased estimators in the table of docs/estimators.md.

    Attributes:
        mean: Weighted sum Σ_i (1 - decay) decay^(n - i) value_i of the n values so far.
        weight: Sum of the weights, 1 - decay^n, by which `mean` is divided.
    """

    mean: Float[Array, "*shape"]
    weight: Float[Array, "*shape"]


def moving_average_start(shape: tuple[int, ...] = (), dtype: Any = jnp.float32) -> MovingAverage:
    """Return the moving average before the first value.

    Args:
        shape: Shape of a value.
        dtype: Floating-point dtype of a value.
    """
    return MovingAverage(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def moving_average_update(
    average: MovingAverage, value: Float[Array, "*shape"], decay: float | Float[Array, ""]
) -> MovingAverage:
    """Return the moving average after a new value, such as the mean return of a batch.

    Returns of earlier batches do not depend on later actions, so this baseline does not change the expected
    gradient (Greensmith et al. 2004). For the batch from which `value` is computed, use the average before
    this update.

    Args:
        average: Moving average of the earlier values.
        value: New value, of the shape given to `moving_average_start`.
        decay: Weight of the earlier values, in [0, 1).
    """
    return MovingAverage(
        mean=decay * average.mean + (1 - decay) * value,
        weight=decay * average.weight + (1 - decay),
    )


def moving_average_value(average: MovingAverage) -> Float[Array, "*shape"]:
    """Return the average with Adam's bias correction (Kingma & Ba 2015); 0 before the first value."""
    some = average.weight > 0
    return jnp.where(some, average.mean / jnp.where(some, average.weight, 1), 0)


def critic_values(
    params: AgentParams, x: Float[Array, "*batch in"], h: Float[Array, "*batch hidden"]
) -> Float[Array, "*batch"]:
    """Return V(s(t)), a critic's estimate of the return from s(t) = h(t-1) ⊕ x(t).

    Use it as a baseline for inputs whose expected returns differ. It depends only on actions before t, so it
    does not change the expected gradient, even if the estimate is wrong (Williams 1992; Greensmith et al.
    2004). Gradients are stopped at the inputs: training the critic changes neither the network nor the agent.

    Args:
        params: Weights of an MLP of the agent's form with K = 1, whose output is the value.
        x: Input x(t), (*batch, in); `*batch` may contain the time axis.
        h: State h(t-1), (*batch, hidden).

    Returns:
        Values, (*batch,), in the unit of the returns.
    """
    x, h = jax.lax.stop_gradient((x, h))
    return agent_logits(params, project_agent_input(params, x), h).squeeze(-1)


def critic_loss(
    values: Float[Array, " time"],
    returns: Float[Array, ""] | Float[Array, " time"],
    valid: Bool[Array, " time"] | None,
) -> Float[Array, ""]:
    """Return ½ Σ_t (V(s(t)) - G(t))² of one sequence (Greensmith et al. 2004).

    Use `jax.vmap` for a batch.

    Args:
        values: V(s(t)) from `critic_values`, (time,).
        returns: G(t), (time,), such as from `reward_to_go`; or a terminal reward R, a number, which is the
            return of every step. Gradients are stopped.
        valid: False past the end of the sequence, (time,), where errors are ignored; None if all steps count.
    """
    error = values - jax.lax.stop_gradient(returns)
    if valid is not None:
        error = jnp.where(valid, error, 0)
    return 0.5 * jnp.square(error).sum()
