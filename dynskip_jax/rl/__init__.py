"""Losses that train agents, one function for each, and baselines for their rewards."""

from dynskip_jax.rl.baselines import averaged_log_likelihood as averaged_log_likelihood
from dynskip_jax.rl.baselines import leave_one_out as leave_one_out
from dynskip_jax.rl.baselines import vimco as vimco
from dynskip_jax.rl.losses import agent_loss as agent_loss
from dynskip_jax.rl.losses import entropy as entropy
from dynskip_jax.rl.losses import loss as loss
from dynskip_jax.rl.losses import network_loss as network_loss
from dynskip_jax.rl.losses import reinforce as reinforce
from dynskip_jax.rl.losses import tokens_read as tokens_read
from dynskip_jax.rl.ppo import action_entropy as action_entropy
from dynskip_jax.rl.ppo import action_log_prob as action_log_prob
from dynskip_jax.rl.ppo import clipped_surrogate as clipped_surrogate
from dynskip_jax.rl.ppo import generalized_advantages as generalized_advantages
