"""Map the losses of one sequence over a batch."""

import jax
import jax.numpy as jnp

from dynskip_jax import rl


def reinforce_loss(log_probs, rewards, *, baseline=0.0, valid=None, **options):
    """Compute `rl.reinforce_loss` of each sequence; a scalar `baseline` applies to all of them."""
    if jnp.ndim(baseline) == 0:
        baseline = jnp.broadcast_to(jnp.asarray(baseline), (len(log_probs),))

    def of_one(log_probs, rewards, baseline, valid):
        return rl.reinforce_loss(log_probs, rewards, valid=valid, baseline=baseline, **options)

    return jax.vmap(of_one)(log_probs, rewards, baseline, valid)


def critic_loss(values, returns, valid=None):
    """Compute `rl.critic_loss` of each sequence."""
    return jax.vmap(rl.critic_loss)(values, returns, valid)


def vimco_loss(log_probs, log_likelihood, valid=None):
    """Compute `rl.vimco_loss` of each example."""
    return jax.vmap(rl.vimco_loss)(log_probs, log_likelihood, valid)
