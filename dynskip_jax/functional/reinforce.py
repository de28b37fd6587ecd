"""The score-function objective with entropy regularisation, Gui et al. (2019), Eq. 4 and 5."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def reward_to_go(rewards: Float[Array, "*batch time"], discount: float = 1.0) -> Float[Array, "*batch time"]:
    """G(t) = Σ_{u ≥ t} discount^(u - t) r(u), the reward that the action at step t can still influence."""

    def back(following, reward):
        total = reward + discount * following
        return total, total

    time_major = jnp.moveaxis(rewards, -1, 0)
    _, totals = jax.lax.scan(back, jnp.zeros_like(time_major[0]), time_major, reverse=True)
    return jnp.moveaxis(totals, 0, -1)


def reinforce_loss(
    log_probs: Float[Array, "batch time"],
    rewards: Float[Array, "batch"] | Float[Array, "batch time"],
    *,
    valid: Bool[Array, "batch time"] | None = None,
    discount: float = 1.0,
    entropy_coef: float | Float[Array, ""] = 1.0,
    baseline: Float[Array, "batch"] | Float[Array, "batch time"] | Float[Array, ""] | float = 0.0,
) -> Float[Array, " batch"]:
    """The surrogate -J_2 of each example, whose gradient is minus Eq. 5.

    With a terminal reward R, and β = `entropy_coef` (the paper's is 1),

        loss = -Σ_t log π(a_t | s_t) · stop_gradient(R - β (Σ_t log π(a_t | s_t) + 1) - baseline).

    With per-step rewards the return of step t counts from t on, rewards and entropy alike: what came
    before cannot depend on a(t), so the expected gradient is the same and its variance smaller,

        loss = -Σ_t log π(a_t | s_t) · stop_gradient(G_t - β - baseline_t),
        G_t  = Σ_{u ≥ t} discount^(u - t) (r_u - β log π(a_u | s_u)).

    Args:
        log_probs: log π(a_t | s_t) in nats, 0 at padding; `Decision.log_prob`.
        rewards: R, (batch,), or r_t, (batch, time); stopped here.
        valid: False at padding, (batch, time): neither log-probability nor reward counts there.
        discount: of per-step rewards.
        entropy_coef: β; 0 leaves the entropy out.
        baseline: subtracted from the return; must not depend on the action it is subtracted for.

    Returns:
        One loss per example; weight and average them over the batch as Eq. 6 does.
    """
    if valid is not None:
        log_probs = jnp.where(valid, log_probs, 0)
    if rewards.ndim == 1:
        returns = rewards - entropy_coef * (log_probs.sum(axis=-1) + 1) - baseline
        returns = jax.lax.stop_gradient(returns)[:, None]
    else:
        if valid is not None:
            rewards = jnp.where(valid, rewards, 0)
        returns = reward_to_go(rewards - entropy_coef * log_probs, discount) - entropy_coef - baseline
        returns = jax.lax.stop_gradient(returns)
    return -(log_probs * returns).sum(axis=-1)


def leave_one_out_mean(
    values: Float[Array, "group *rest"], axis_name: str | None = None
) -> Float[Array, "group *rest"]:
    """For each member of the first axis the mean of the others: a baseline its own action cannot move.

    Args:
        values: one per member of the group, (group, ...).
        axis_name: the mapped axis (`jax.pmap`) over which the group is divided; None: it is whole.
    """
    total, size = values.sum(axis=0, keepdims=True), values.shape[0]
    if axis_name is not None:
        total, size = jax.lax.psum(total, axis_name), size * jax.lax.axis_size(axis_name)
    return (total - values) / max(size - 1, 1)
