"""Baselines: what is subtracted from a return before it weighs a score."""

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
    """Return for each member of the first axis the mean of the others.

    A member's own action cannot change this baseline. It compares the examples of a batch, or the rollouts of
    one example (Kool et al. 2019), and has the least parameters of all baselines here: none.

    Args:
        values: one for each member of the group, (group, ...).
        axis_name: the mapped axis (`jax.pmap`) over which the group is divided; None if it is whole.
        counted: False for values that are in no mean, (group,) or (group, ...): rows that only fill a batch,
            and steps past the end of a sequence. None if all count.

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
    """An exponential moving average of earlier returns; `moving_average_value` reads it.

    It is the baseline of Williams (1992). It needs no second sample, and has the smallest variance of the
    unbiased estimators in the documentation's table (Estimators).

    Attributes:
        mean: Σ_i (1 - decay) decay^(n - i) value_i of the n values so far.
        weight: the same sum with ones in place of the values, 1 - decay^n, by which `mean` is divided.
    """

    mean: Float[Array, "*shape"]
    weight: Float[Array, "*shape"]


def moving_average_start(shape: tuple[int, ...] = (), dtype: Any = jnp.float32) -> MovingAverage:
    """Return the average of no values.

    Args:
        shape: of a value.
        dtype: of a value, floating.
    """
    return MovingAverage(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def moving_average_update(
    average: MovingAverage, value: Float[Array, "*shape"], decay: float | Float[Array, ""]
) -> MovingAverage:
    """Return the average with a value added, such as the mean return of a batch.

    A number from the past cannot depend on later actions, so it does not change the expected gradient
    (Greensmith et al. 2004). For the batch that the value comes from, use the average before this update.

    Args:
        average: of the earlier values.
        value: the new value, of the shape given to `moving_average_start`.
        decay: weight of the past, in [0, 1).
    """
    return MovingAverage(
        mean=decay * average.mean + (1 - decay) * value,
        weight=decay * average.weight + (1 - decay),
    )


def moving_average_value(average: MovingAverage) -> Float[Array, "*shape"]:
    """Return the average with Adam's correction (Kingma & Ba 2015); 0 before the first value."""
    some = average.weight > 0
    return jnp.where(some, average.mean / jnp.where(some, average.weight, 1), 0)


def critic_values(
    params: AgentParams, x: Float[Array, "*batch in"], h: Float[Array, "*batch hidden"]
) -> Float[Array, "*batch"]:
    """Return V(s(t)), the return that a critic expects where the agent sees s(t) = h(t-1) ⊕ x(t).

    It is the baseline for inputs whose expected returns differ. It depends only on actions before t, so it
    does not change the expected gradient, however wrong it is (Williams 1992; Greensmith et al. 2004).
    Gradients are stopped at the inputs: fitting the critic changes neither network nor agent.

    Args:
        params: an MLP of the agent's form with K = 1, whose output is the value.
        x: x(t), (*batch, in); `*batch` may contain the time axis.
        h: h(t-1), (*batch, hidden).

    Returns:
        (*batch), in the unit of the returns.
    """
    x, h = jax.lax.stop_gradient((x, h))
    return agent_logits(params, project_agent_input(params, x), h).squeeze(-1)


def critic_loss(
    values: Float[Array, " time"],
    returns: Float[Array, ""] | Float[Array, " time"],
    valid: Bool[Array, " time"] | None,
) -> Float[Array, ""]:
    """Return ½ Σ_t (V(s(t)) - G(t))² of one sequence (Greensmith et al. 2004).

    `jax.vmap` maps it over a batch.

    Args:
        values: V(s(t)), as from `critic_values`, (time,).
        returns: G(t), (time,), as from `reward_to_go`; or a terminal R, the return of every step. Gradients
            are stopped.
        valid: False past the end, (time,), where nothing is fitted; None where all steps count.
    """
    error = values - jax.lax.stop_gradient(returns)
    if valid is not None:
        error = jnp.where(valid, error, 0)
    return 0.5 * jnp.square(error).sum()
