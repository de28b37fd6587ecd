"""Baselines, which reduce the variance of the score function, and VIMCO's rewards."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from dynskip_jax.errors import UserError
from dynskip_jax.functional.product import wider


def leave_one_out(
    values: Float[Array | np.ndarray, "..."],
    counted: Bool[Array | np.ndarray, "..."] | None = None,
    *,
    axis: int = 0,
    axis_name: str | None = None,
) -> Float[Array, "..."]:
    """Return the mean of the values of all other members of a group (Kool et al. 2019).

    A member's own action cannot change this baseline. The group is the leading axis: the rollouts
    of an example, or the examples of the batch if there is no axis of rollouts.

    A group of one has nothing to compare with, and is refused. Where no other value counts, the
    baseline is 0.

    Args:
        counted: False for values that no mean includes, with the leading axes of `values`: rows
            that only fill a batch, and steps past the end of a sequence.
        axis_name: Name of the mapped axis (`jax.pmap`) over which the group is divided.
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

    # A value that does not count may be infinite, so it is replaced and not multiplied by 0.
    masked = jnp.where(is_one > 0, values.astype(dtype), 0)
    total = masked.sum(axis, keepdims=True)
    size = is_one.sum(axis, keepdims=True)
    if axis_name is not None:
        total, size = jax.lax.psum((total, size), axis_name)

    # A member that does not count is in neither sum, so the whole mean is that of the others.
    mean = (total - masked) / jnp.maximum(size - is_one, 1)
    if jnp.issubdtype(values.dtype, jnp.floating):
        mean = mean.astype(values.dtype)
    return mean


def averaged_log_likelihood(
    log_likelihood: Float[Array, "..."], axis: int = 0
) -> Float[Array, "..."]:
    """Return L = log 1/M Σ_m p_m, the log-likelihood of M rollouts' mean prediction, in nats."""
    return jax.nn.logsumexp(log_likelihood, axis=axis) - jnp.log(log_likelihood.shape[axis])


def vimco(log_likelihood: Float[Array, "..."], axis: int = 0) -> Float[Array, "..."]:
    """Return M (L - L_{-m}), a reward with its own baseline (Mnih & Rezende 2016).

    L_{-m} is L with the geometric mean of the other rollouts' p in place of p_m, and does not
    depend on the actions of rollout m. In the following loss the first term trains the network, the
    second one the agents::

        of_network = -rl.averaged_log_likelihood(-nll).mean()
        loss = of_network + rl.reinforce(out.decisions, rl.vimco(-nll))

    The factor M turns the mean over rollouts in `reinforce` into a sum. A likelihood of 0 counts as
    the smallest normal number times the largest likelihood, so that rewards are finite. `axis` is
    that of the rollouts.
    """
    # Axis m, that of the rollouts, comes first.
    values = jnp.moveaxis(jax.lax.stop_gradient(log_likelihood), axis, 0)
    rollouts = len(values)
    if rollouts < 2:
        raise UserError(
            f"VIMCO compares a rollout with others: it needs at least 2 rollouts, got {rollouts}"
        )

    # A log-likelihood of -inf would make the mean of the others -inf, too.
    best = values.max(axis=0, keepdims=True)
    lowest = jnp.where(best > -jnp.inf, best, 0) + jnp.log(jnp.finfo(values.dtype).tiny)
    values = jnp.where(values == -jnp.inf, lowest, values)

    # L_{-m} for all m at once: copy m has the mean of the others in place of rollout m.
    others = leave_one_out(values)
    is_own = jnp.eye(rollouts, dtype=bool)
    is_own = is_own.reshape(rollouts, rollouts, *(1,) * (values.ndim - 1))
    replaced = jnp.where(is_own, others[:, None], values[None])
    without = averaged_log_likelihood(replaced, axis=1)
    return jnp.moveaxis(rollouts * (averaged_log_likelihood(values)[None] - without), 0, axis)
