"""Baselines, which reduce the variance of the score function, and VIMCO's rewards, which have their
own.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import AgentParams, agent_logits, project_agent_input
from dynskip_jax.functional.checks import check_number
from dynskip_jax.functional.engine.product import wider


def leave_one_out(
    values: Float[Array | np.ndarray, "..."],
    counted: Bool[Array | np.ndarray, "..."] | None = None,
    *,
    axis: int = 0,
    axis_name: str | None = None,
) -> Float[Array, "..."]:
    """Return, for each member of a group, the mean of the values of the other members (Kool et al.
    2019).

    A member's own action cannot change this baseline. The group is the leading axis: the rollouts
    of an example, or the examples of the batch if there is no axis of rollouts.

    A group of one has nothing to compare with, and is refused. Where no other value counts, the
    baseline is
    0. `counted` is False for values that no mean includes, with the leading axes of `values`: rows
       that only
    fill a batch, and steps past the end of a sequence. `axis_name` is the name of the mapped axis
    (`jax.pmap`) over which the group is divided.
    """
    if axis_name is None and values.shape[axis] == 1:
        raise UserError(
            f"leave_one_out compares a row or rollout with others, and axis {axis} has only one: "
            "make rollouts with functional.rollouts(x, 4), or pass another baseline"
        )
    dtype = wider(values.dtype, jnp.float32)  # the sum of a group overflows float16
    is_one = jnp.ones_like(values, dtype)
    if counted is not None:
        counted = counted.reshape(counted.shape + (1,) * (values.ndim - counted.ndim))
        is_one = jnp.broadcast_to(counted, values.shape).astype(dtype)
    masked = jnp.where(is_one > 0, values.astype(dtype), 0)
    total, size = (array.sum(axis, keepdims=True) for array in (masked, is_one))
    if axis_name is not None:
        total, size = jax.lax.psum((total, size), axis_name)
    mean = (total - masked) / jnp.maximum(size - is_one, 1)
    return mean.astype(values.dtype) if jnp.issubdtype(values.dtype, jnp.floating) else mean


class MovingAverage(NamedTuple):
    """State of an exponential moving average of n values so far."""

    mean: Float[Array, "..."] | float = 0.0  # Σ_i (1 - decay) decay^(n - i) value_i
    weight: Float[Array, "..."] | float = 0.0  # sum of these weights, by which `mean` is divided


def moving_average(
    average: MovingAverage,
    value: Float[Array, "..."] | float,
    decay: float | Float[Array, ""] = 0.99,
) -> tuple[Float[Array, "..."], MovingAverage]:
    """Return the average of the earlier values, a baseline (Williams 1992), and the average with
    `value`.

    Earlier batches do not depend on the actions of this one, so the expected gradient stays the
    same. The average has Adam's bias correction (Kingma & Ba 2015), and is 0 before the first
    value. Begin with `MovingAverage()`; `value` is the mean reward of this batch, and `decay` lies
    in [0, 1).
    """
    check_number("decay", decay, "in [0, 1)", lambda known: 0 <= known < 1)
    some = jnp.asarray(average.weight > 0)
    earlier = jnp.where(some, average.mean / jnp.where(some, average.weight, 1), 0)
    one = jnp.ones_like(value)
    new = (decay * old + (1 - decay) * x for old, x in zip(average, (value, one), strict=True))
    return earlier, MovingAverage(*new)


def critic(
    params: AgentParams, x: Float[Array, "*batch in"], h: Float[Array, "*batch hidden"]
) -> Float[Array, "*batch"]:
    """Return V(s(t)), a critic's estimate of the return from s(t) = h(t-1) ⊕ x(t).

    It depends only on actions before t, so as a baseline it does not change the expected gradient,
    even if
    the estimate is wrong (Williams 1992; Greensmith et al. 2004). Gradients are stopped at `x` and
    `h`: training the critic with `critic_loss` changes neither the network nor the agent. `params`
    are those of an agent with K = 1, whose output is the value; `x` and `h` are in
    `out.observations`.
    """
    x, h = jax.lax.stop_gradient((x, h))
    return agent_logits(params, project_agent_input(params, x), h).squeeze(-1)


def averaged_log_likelihood(
    log_likelihood: Float[Array, "..."], axis: int = 0
) -> Float[Array, "..."]:
    """Return L = log 1/M Σ_m p_m, the log-likelihood of the averaged prediction of M rollouts, in
    nats.
    """
    return jax.nn.logsumexp(log_likelihood, axis=axis) - jnp.log(log_likelihood.shape[axis])


def vimco(log_likelihood: Float[Array, "..."], axis: int = 0) -> Float[Array, "..."]:
    """Return M (L - L_{-m}), a reward of each rollout that has its own baseline (Mnih & Rezende
    2016).

    L_{-m} is L with the geometric mean of the other rollouts' p in place of p_m, and does not
    depend on the
    actions of rollout m. In the following loss the first term trains the network, the second one
    the agents::

        loss = -rl.averaged_log_likelihood(-nll).mean() + rl.reinforce(out.decisions,
        rl.vimco(-nll))

    The factor M turns the mean over rollouts in `reinforce` into a sum. A likelihood of 0 counts as
    the smallest normal number times the largest likelihood, so that rewards are finite. `axis` is
    that of the rollouts.
    """
    values = jnp.moveaxis(jax.lax.stop_gradient(log_likelihood), axis, 0)
    rollouts = len(values)
    if rollouts < 2:
        raise UserError(
            f"VIMCO compares a rollout with others: it needs at least 2 rollouts, got {rollouts}"
        )
    best = values.max(axis=0, keepdims=True)
    lowest = jnp.where(best > -jnp.inf, best, 0) + jnp.log(jnp.finfo(values.dtype).tiny)
    values = jnp.where(values == -jnp.inf, lowest, values)
    others = leave_one_out(values)
    own = jnp.eye(rollouts, dtype=bool).reshape(rollouts, rollouts, *(1,) * (values.ndim - 1))
    without = averaged_log_likelihood(jnp.where(own, others[:, None], values[None]), axis=1)
    return jnp.moveaxis(rollouts * (averaged_log_likelihood(values)[None] - without), 0, axis)
