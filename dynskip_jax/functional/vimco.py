"""VIMCO: training for the averaged prediction of several rollouts (Mnih & Rezende 2016)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dynskip_jax.errors import UserError
from dynskip_jax.functional.reinforce import leave_one_out_mean


def averaged_log_likelihood(log_likelihood: Float[Array, "*batch M"]) -> Float[Array, "*batch"]:
    """L = log 1/M Σ_m p_m, the log-likelihood of the averaged prediction of M rollouts, in nats.

    Args:
        log_likelihood: log p_m, that of the ground truth in each rollout, (*batch, M), in nats.
    """
    return jax.nn.logsumexp(log_likelihood, axis=-1) - jnp.log(log_likelihood.shape[-1])


def vimco_loss(
    log_probs: Float[Array, "batch M time"],
    log_likelihood: Float[Array, "batch M"],
    valid: Bool[Array, "batch time"] | None = None,
) -> Float[Array, " batch"]:
    """The surrogate of each example whose gradient is, in expectation, minus that of E[L].

    Mnih & Rezende (2016), "Variational inference for Monte Carlo objectives". With L = log 1/M Σ_m p_m, and
    L_{-m} the same with the geometric mean of the others in place of p_m,

        loss = -L - Σ_m stop_gradient(L - L_{-m}) Σ_t log π(a_mt | s_mt).

    The first term trains the network, the second the agents. L_{-m} does not know the actions of rollout m,
    so it is a baseline; what is left is what rollout m adds to the average.

    Args:
        log_probs: log π(a_mt | s_mt) of M rollouts of each example, in nats, 0 at padding.
        log_likelihood: log p_m of the ground truth, (batch, M), in nats; differentiated, not stopped.
        valid: False at padding, (batch, time), the same in all rollouts: no choice counts there.

    Returns:
        One loss per example.

    Raises:
        UserError: M is 1, so that there are no others.
    """
    rollouts = log_likelihood.shape[-1]
    if rollouts < 2:
        raise UserError(f"VIMCO compares a rollout with others: it needs at least 2 rollouts, got {rollouts}")
    if valid is not None:
        log_probs = jnp.where(valid[:, None, :], log_probs, 0)
    averaged = averaged_log_likelihood(log_likelihood)
    without = averaged_log_likelihood(_each_replaced(log_likelihood))
    learning_signal = jax.lax.stop_gradient(averaged[:, None] - without)
    return -averaged - (learning_signal * log_probs.sum(axis=-1)).sum(axis=-1)


def _each_replaced(log_likelihood: Float[Array, "batch M"]) -> Float[Array, "batch M M"]:
    """Row m is log p with the mean of the others' log p at place m."""
    of_others = jax.vmap(leave_one_out_mean)(log_likelihood)
    own_place = jnp.eye(log_likelihood.shape[-1], dtype=bool)[None]
    return jnp.where(own_place, of_others[:, :, None], log_likelihood[:, None, :])
