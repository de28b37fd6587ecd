"""The papers' equations as pure functions on arrays: no Flax, no I/O, no global state."""

from dynskip_jax.functional.agent import (
    AgentParams,
    Decision,
    agent_log_probs,
    agent_logits,
    choice_noise,
    choose,
    entropy,
    project_agent_input,
)
from dynskip_jax.functional.awd import (
    activation_regularisation,
    embedding_dropout,
    locked_dropout,
    temporal_activation_regularisation,
    weight_dropout,
)
from dynskip_jax.functional.baselines import (
    MovingAverage,
    critic_loss,
    critic_values,
    moving_average_start,
    moving_average_update,
    moving_average_value,
)
from dynskip_jax.functional.char_cnn import CharFilters, HighwayParams, char_cnn, highway
from dynskip_jax.functional.dropout import dropout, dropout_mask, recurrent_dropout_mask
from dynskip_jax.functional.dynamic_evaluation import GradientScale, adapt, gradient_scale
from dynskip_jax.functional.lstm import LSTMParams, lstm_transition, product, project_gates
from dynskip_jax.functional.neural_cache import CacheCarry, cached_log_likelihood, empty_cache
from dynskip_jax.functional.reinforce import leave_one_out_mean, reinforce_loss, reward_to_go
from dynskip_jax.functional.relaxation import RELAXATIONS, relaxed_weights
from dynskip_jax.functional.sequence import flip_sequences, last_valid, length_mask
from dynskip_jax.functional.time_skip import (
    SkipCarry,
    SkipLSTMParams,
    SkipOutput,
    StepInputs,
    TimeSkip,
    initial_carry,
    project_inputs,
    restart_carry,
    skip_lstm_step,
)
from dynskip_jax.functional.unroll import unroll
from dynskip_jax.functional.vimco import averaged_log_likelihood, vimco_loss

__all__ = [
    "RELAXATIONS",
    "AgentParams",
    "CacheCarry",
    "CharFilters",
    "Decision",
    "GradientScale",
    "HighwayParams",
    "LSTMParams",
    "MovingAverage",
    "SkipCarry",
    "SkipLSTMParams",
    "SkipOutput",
    "StepInputs",
    "TimeSkip",
    "activation_regularisation",
    "adapt",
    "agent_log_probs",
    "agent_logits",
    "averaged_log_likelihood",
    "cached_log_likelihood",
    "char_cnn",
    "choice_noise",
    "choose",
    "critic_loss",
    "critic_values",
    "dropout",
    "dropout_mask",
    "embedding_dropout",
    "empty_cache",
    "entropy",
    "flip_sequences",
    "gradient_scale",
    "highway",
    "initial_carry",
    "last_valid",
    "leave_one_out_mean",
    "length_mask",
    "locked_dropout",
    "lstm_transition",
    "moving_average_start",
    "moving_average_update",
    "moving_average_value",
    "product",
    "project_agent_input",
    "project_gates",
    "project_inputs",
    "recurrent_dropout_mask",
    "reinforce_loss",
    "relaxed_weights",
    "restart_carry",
    "reward_to_go",
    "skip_lstm_step",
    "temporal_activation_regularisation",
    "unroll",
    "vimco_loss",
    "weight_dropout",
]
