"""Losses that train agents: functions for one sequence, and `AgentObjective`, which combines them."""

from dynskip_jax.functional.agent import entropy
from dynskip_jax.functional.relaxation import RELAXATIONS, relaxed_weights
from dynskip_jax.rl.baselines import (
    MovingAverage,
    critic_loss,
    critic_values,
    leave_one_out_mean,
    moving_average_start,
    moving_average_update,
    moving_average_value,
)
from dynskip_jax.rl.objective import AgentObjective, AgentSchedule, ScheduledValues
from dynskip_jax.rl.policy_gradient import (
    averaged_log_likelihood,
    entropy_loss,
    policy_gradient_loss,
    reinforce_loss,
    vimco_loss,
    vimco_signal,
)
from dynskip_jax.rl.returns import noncausal_return, reward_to_go

__all__ = [
    "RELAXATIONS",
    "AgentObjective",
    "AgentSchedule",
    "MovingAverage",
    "ScheduledValues",
    "averaged_log_likelihood",
    "critic_loss",
    "critic_values",
    "entropy",
    "entropy_loss",
    "leave_one_out_mean",
    "moving_average_start",
    "moving_average_update",
    "moving_average_value",
    "noncausal_return",
    "policy_gradient_loss",
    "reinforce_loss",
    "relaxed_weights",
    "reward_to_go",
    "vimco_loss",
    "vimco_signal",
]
