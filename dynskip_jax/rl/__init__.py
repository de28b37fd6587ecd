"""Losses that train agents: one function for each loss; rewards and baselines are arrays or functions."""

from dynskip_jax.rl.baselines import MovingAverage, critic, leave_one_out, moving_average
from dynskip_jax.rl.losses import (
    agent_loss,
    critic_loss,
    entropy,
    network_loss,
    paper_loss,
    reinforce,
    updates,
)
from dynskip_jax.rl.vimco import averaged_log_likelihood, vimco

__all__ = [
    "MovingAverage",
    "agent_loss",
    "averaged_log_likelihood",
    "critic",
    "critic_loss",
    "entropy",
    "leave_one_out",
    "moving_average",
    "network_loss",
    "paper_loss",
    "reinforce",
    "updates",
    "vimco",
]
