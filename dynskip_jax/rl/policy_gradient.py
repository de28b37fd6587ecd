"""Score-function losses of one sequence or one example; use `jax.vmap` for a batch.

`reinforce_loss` is Gui et al. (2019), Eq. 4 and 5; `vimco_loss` is Mnih & Rezende (2016).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dynskip_jax.errors import UserError
from dynskip_jax.rl.baselines import leave_one_out_mean
from dynskip_jax.rl.returns import at_last_step, reward_before, reward_to_go


def policy_gradient_loss(
    log_probs: Float[Array, "*samples time"],
    advantages: Float[Array, "..."],
    valid: Bool[Array, "*samples_or_1 time"] | None,
) -> Float[Array, ""]:
    """Return -Σ_t log π(a_t | s_t) · stop_gradient(A_t), the surrogate loss of the score function.

    Args:
        log_probs: log π(a_t | s_t) in nats, (*samples, time). The sum is over all axes.
        advantages: A_t, broadcast against `log_probs`.
        valid: False past the end of the sequence; None if all steps count.
    """
    if valid is not None:
        log_probs = jnp.where(valid, log_probs, 0)
    return -(log_probs * jax.lax.stop_gradient(advantages)).sum()


def entropy_loss(entropy: Float[Array, " time"], valid: Bool[Array, " time"] | None) -> Float[Array, ""]:
    """Return -Σ_t H(π(· | s_t)), differentiated directly; `valid` as in `policy_gradient_loss`."""
    return -(entropy if valid is None else jnp.where(valid, entropy, 0)).sum()


def reinforce_loss(
    log_probs: Float[Array, " time"],
    rewards: Float[Array, ""] | Float[Array, " time"],
    *,
    valid: Bool[Array, " time"] | None,
    discount: float = 1.0,
    entropy_coef: float | Float[Array, ""] = 1.0,
    baseline: Float[Array, ""] | Float[Array, " time"] | float = 0.0,
    noncausal: bool = False,
) -> Float[Array, ""]:
    """Return the surrogate -J_2 of one sequence, whose gradient is minus Eq. 5.

    This is the paper's estimator. With a terminal reward R and β = `entropy_coef` (1 in the paper),

        loss = -Σ_t log π(a_t | s_t) · stop_gradient(R - β (Σ_t log π(a_t | s_t) + 1) - baseline).

    With a reward for each step, the return of step t starts at t, for rewards and entropy. An action cannot
    change what came before, so the expected gradient is the same and its variance is smaller:

        loss = -Σ_t log π(a_t | s_t) · stop_gradient(G_t - β - baseline_t),
        G_t  = Σ_{u ≥ t} discount^(u - t) (r_u - β log π(a_u | s_u)).

    Args:
        log_probs: log π(a_t | s_t) in nats, (time,).
        rewards: Terminal reward R, a number; or r_t, (time,). Gradients are stopped.
        valid: False past the end of the sequence, (time,): log-probabilities and rewards there are ignored.
            None if all steps count. It has no default because `nnx.RNN` does not mask decisions past the end.
        discount: Discount of rewards for each step; a terminal reward is not discounted.
        entropy_coef: β; 0 omits the entropy.
        baseline: Value subtracted from the return: a number, or one for each step, (time,). It must not
            depend on the action from whose return it is subtracted. With a baseline for each step, a terminal
            reward is treated as the reward of the last valid step.
        noncausal: Whether actions also change the rewards before them. The return is then
            `noncausal_return`, and the entropy still starts at t.

    Raises:
        UserError: The shapes are not those of one sequence.
    """
    time = _check_sequence(log_probs, rewards=rewards, baseline=baseline, valid=valid)
    if jnp.ndim(rewards) == 0 and jnp.ndim(baseline) == 1:
        rewards, discount, noncausal = at_last_step(rewards, valid, time), 1.0, False
    if valid is not None:
        log_probs = jnp.where(valid, log_probs, 0)
    if jnp.ndim(rewards) == 0:
        returns = rewards - entropy_coef * (log_probs.sum() + 1)
    else:
        rewards = rewards if valid is None else jnp.where(valid, rewards, 0)
        returns = reward_to_go(rewards - entropy_coef * log_probs, discount) - entropy_coef
        if noncausal:
            returns = returns + reward_before(rewards, discount)
    return policy_gradient_loss(log_probs, returns - baseline, None)


def _check_sequence(log_probs: Array, **others: Any) -> int:
    """Check that all arrays are of one sequence with the steps of `log_probs`; return their number."""
    if jnp.ndim(log_probs) != 1:
        raise UserError(
            f"expected log_probs of one sequence, (time,), got {jnp.shape(log_probs)}: "
            "map the loss over the batch with jax.vmap"
        )
    time = jnp.shape(log_probs)[0]
    for name, value in others.items():
        shapes = ((time,),) if name == "valid" else ((), (time,))
        if value is not None and jnp.shape(value) not in shapes:
            wanted = " or ".join(map(str, shapes))
            raise UserError(f"expected {name} of one sequence, {wanted}, got {jnp.shape(value)}")
    return time


def averaged_log_likelihood(log_likelihood: Float[Array, "*batch M"]) -> Float[Array, "*batch"]:
    """Return L = log 1/M Σ_m p_m, the log-likelihood of the averaged prediction of M rollouts.

    Args:
        log_likelihood: log p_m of the true target in each rollout, (*batch, M), in nats.
    """
    return jax.nn.logsumexp(log_likelihood, axis=-1) - jnp.log(log_likelihood.shape[-1])


def vimco_signal(log_likelihood: Float[Array, " M"]) -> Float[Array, " M"]:
    """Return VIMCO's learning signal L - L_{-m} of each rollout of one example; gradients are stopped.

    L_{-m} is L with the geometric mean of the other rollouts' p in place of p_m. It does not depend on the
    actions of rollout m, so it is a valid baseline.

    Args:
        log_likelihood: log p_m of the true target in each rollout, (M,), in nats.

    Raises:
        UserError: There is only one rollout.
    """
    (rollouts,) = log_likelihood.shape
    if rollouts < 2:
        raise UserError(f"VIMCO compares a rollout with others: it needs at least 2 rollouts, got {rollouts}")
    others = leave_one_out_mean(log_likelihood)
    without = jnp.where(jnp.eye(rollouts, dtype=bool), others[:, None], log_likelihood[None, :])
    signal = averaged_log_likelihood(log_likelihood) - averaged_log_likelihood(without)
    return jax.lax.stop_gradient(signal)


def vimco_loss(
    log_probs: Float[Array, "M time"],
    log_likelihood: Float[Array, " M"],
    valid: Bool[Array, " time"] | None = None,
) -> Float[Array, ""]:
    """Return the surrogate of one example whose expected gradient is minus that of E[L].

    This estimator is for models that average several sampled predictions (Mnih & Rezende 2016):

        loss = -L - Σ_m stop_gradient(L - L_{-m}) Σ_t log π(a_mt | s_mt).

    The first term trains the network, and the second one trains the agents.

    Args:
        log_probs: log π(a_mt | s_mt) of M rollouts of the example, (M, time), in nats.
        log_likelihood: log p_m of the true target in each rollout, (M,), in nats; differentiated.
        valid: False past the end of the sequence, (time,); None if all steps count.

    Raises:
        UserError: There is only one rollout.
    """
    signal = vimco_signal(log_likelihood)[:, None]
    valid = None if valid is None else valid[None, :]
    return policy_gradient_loss(log_probs, signal, valid) - averaged_log_likelihood(log_likelihood)
