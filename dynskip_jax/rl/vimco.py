"""VIMCO: rewards for models that average several sampled predictions (Mnih & Rezende 2016)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.errors import UserError
from dynskip_jax.rl.baselines import leave_one_out


def averaged_log_likelihood(log_likelihood: Float[Array, "..."], axis: int = 0) -> Float[Array, "..."]:
    """Return L = log 1/M Σ_m p_m, the log-likelihood of the averaged prediction of M rollouts, in nats."""
    return jax.nn.logsumexp(log_likelihood, axis=axis) - jnp.log(log_likelihood.shape[axis])


def vimco(log_likelihood: Float[Array, "..."], axis: int = 0) -> Float[Array, "..."]:
    """Return M (L - L_{-m}), a reward of each rollout that has its own baseline.

    L_{-m} is L with the geometric mean of the other rollouts' p in place of p_m, and does not depend on the
    actions of rollout m. In the following loss the first term trains the network, the second one the agents::

        loss = -rl.averaged_log_likelihood(-nll).mean() + rl.reinforce(out.decisions, rl.vimco(-nll))

    The factor M turns the mean over rollouts in `reinforce` into a sum. A likelihood of 0 counts as the
    smallest normal number times the largest likelihood, so that rewards are finite. `axis` is that of the
    rollouts.
    """
    values = jnp.moveaxis(jax.lax.stop_gradient(log_likelihood), axis, 0)
    rollouts = len(values)
    if rollouts < 2:
        raise UserError(f"VIMCO compares a rollout with others: it needs at least 2 rollouts, got {rollouts}")
    best = values.max(axis=0, keepdims=True)
    lowest = jnp.where(best > -jnp.inf, best, 0) + jnp.log(jnp.finfo(values.dtype).tiny)
    values = jnp.where(values == -jnp.inf, lowest, values)
    others = leave_one_out(values)
    own = jnp.eye(rollouts, dtype=bool).reshape(rollouts, rollouts, *(1,) * (values.ndim - 1))
    without = averaged_log_likelihood(jnp.where(own, others[:, None], values[None]), axis=1)
    return jnp.moveaxis(rollouts * (averaged_log_likelihood(values)[None] - without), 0, axis)
