"""What a return is compared with before it weighs a score: averages of the past, and learned values."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dynskip_jax.functional.agent import AgentParams, agent_logits, project_agent_input


class MovingAverage(NamedTuple):
    """An exponential moving average that knows how much it has seen; `moving_average_value` reads it.

    Attributes:
        mean: Σ_i (1 - decay) decay^(n - i) value_i of the n values so far, too small while n is small.
        weight: the same sum with ones in place of the values, 1 - decay^n: what `mean` is divided by.
    """

    mean: Float[Array, "*shape"]
    weight: Float[Array, "*shape"]


def moving_average_start(shape: tuple[int, ...] = (), dtype: Any = jnp.float32) -> MovingAverage:
    """Returns the average of no values yet.

    Args:
        shape: of a value.
        dtype: of a value, floating.
    """
    return MovingAverage(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def moving_average_update(
    average: MovingAverage, value: Float[Array, "*shape"], decay: float | Float[Array, ""]
) -> MovingAverage:
    """Adds a value, such as the mean return of a batch: the baseline of Williams (1992) for later batches.

    A number from the past cannot depend on the actions to come, so it leaves the expected gradient as it is
    (Greensmith et al. 2004). Use the average from before this update for the batch that the value is from.

    Args:
        average: of the values before.
        value: the new one; of the shape with which the average was started.
        decay: how much of the past stays, in [0, 1).
    """
    return MovingAverage(
        mean=decay * average.mean + (1 - decay) * value,
        weight=decay * average.weight + (1 - decay),
    )


def moving_average_value(average: MovingAverage) -> Float[Array, "*shape"]:
    """Returns the average, corrected as Adam's are (Kingma & Ba 2015): that value after one; 0 after none."""
    some = average.weight > 0
    return jnp.where(some, average.mean / jnp.where(some, average.weight, 1), 0)


def critic_values(
    params: AgentParams, x: Float[Array, "*batch in"], h: Float[Array, "*batch hidden"]
) -> Float[Array, "*batch"]:
    """V(s(t)), a learned baseline: the return to expect where the agent sees s(t) = h(t-1) ⊕ x(t).

    It depends on actions before t alone, so it leaves the expected gradient as it is however wrong it is
    (Williams 1992; Greensmith et al. 2004). Inputs are stopped: fitting it shapes neither network nor agent.

    Args:
        params: an MLP of the agent's form with K = 1: the one output is the value.
        x: x(t), (*batch, in); `*batch` may contain the time axis.
        h: h(t-1), (*batch, hidden).

    Returns:
        (*batch), in the unit of the returns it was fitted to.
    """
    x, h = jax.lax.stop_gradient((x, h))
    return agent_logits(params, project_agent_input(params, x), h).squeeze(-1)


def critic_loss(
    values: Float[Array, " time"],
    returns: Float[Array, ""] | Float[Array, " time"],
    valid: Bool[Array, " time"] | None,
) -> Float[Array, ""]:
    """½ Σ_t (V(s(t)) - G(t))² of one sequence, smallest where V is the expected return.

    See Greensmith et al. (2004). `jax.vmap` maps it over a batch.

    Args:
        values: V(s(t)), `critic_values`, (time,).
        returns: G(t), (time,), as `reward_to_go`; or a terminal R, the return of every step; stopped here.
        valid: False past the end, (time,): nothing is fitted there; None where all steps count.

    Returns:
        The loss, in the squared unit of the returns.
    """
    error = values - jax.lax.stop_gradient(returns)
    if valid is not None:
        error = jnp.where(valid, error, 0)
    return 0.5 * jnp.square(error).sum()
