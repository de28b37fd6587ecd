"""The papers' equations as pure functions on arrays: no Flax, no I/O, no global state."""

from dynskip_jax.functional.agent import AgentParams as AgentParams
from dynskip_jax.functional.agent import agent_logits as agent_logits
from dynskip_jax.functional.agent import project_agent_input as project_agent_input
from dynskip_jax.functional.awd import activation_regularisation as activation_regularisation
from dynskip_jax.functional.awd import (
    temporal_activation_regularisation as temporal_activation_regularisation,
)
from dynskip_jax.functional.char_cnn import CharFilters as CharFilters
from dynskip_jax.functional.char_cnn import char_cnn as char_cnn
from dynskip_jax.functional.copying import Copies as Copies
from dynskip_jax.functional.copying import chosen_log_likelihood as chosen_log_likelihood
from dynskip_jax.functional.copying import (
    chosen_log_likelihood_with_greedy_gates as chosen_log_likelihood_with_greedy_gates,
)
from dynskip_jax.functional.copying import copied_log_likelihood as copied_log_likelihood
from dynskip_jax.functional.copying import copied_log_probs as copied_log_probs
from dynskip_jax.functional.copying import copy_of_choice as copy_of_choice
from dynskip_jax.functional.copying import followers as followers
from dynskip_jax.functional.copying import log_likelihood_of_each as log_likelihood_of_each
from dynskip_jax.functional.copying import steps_since_start as steps_since_start
from dynskip_jax.functional.crf import FORBIDDEN as FORBIDDEN
from dynskip_jax.functional.crf import CRFParams as CRFParams
from dynskip_jax.functional.crf import crf_constrain as crf_constrain
from dynskip_jax.functional.crf import crf_decode as crf_decode
from dynskip_jax.functional.crf import crf_log_likelihood as crf_log_likelihood
from dynskip_jax.functional.crf import crf_marginals as crf_marginals
from dynskip_jax.functional.decisions import DecisionTrace as DecisionTrace
from dynskip_jax.functional.depth_skips import DEPTH_SKIPS as DEPTH_SKIPS
from dynskip_jax.functional.depth_skips import AttentionToOutput as AttentionToOutput
from dynskip_jax.functional.depth_skips import DenseToGates as DenseToGates
from dynskip_jax.functional.depth_skips import DepthSkip as DepthSkip
from dynskip_jax.functional.depth_skips import Highway as Highway
from dynskip_jax.functional.depth_skips import ToGates as ToGates
from dynskip_jax.functional.depth_skips import ToInternal as ToInternal
from dynskip_jax.functional.depth_skips import ToOutput as ToOutput
from dynskip_jax.functional.depth_skips import parse_depth_skip as parse_depth_skip
from dynskip_jax.functional.dropout import dropout as dropout
from dynskip_jax.functional.dropout import dropout_mask as dropout_mask
from dynskip_jax.functional.dropout import zoneout as zoneout
from dynskip_jax.functional.dynamic_evaluation import GradientScale as GradientScale
from dynskip_jax.functional.dynamic_evaluation import adapt as adapt
from dynskip_jax.functional.dynamic_evaluation import gradient_scale as gradient_scale
from dynskip_jax.functional.engine.history import oldest_first as oldest_first
from dynskip_jax.functional.engine.memory import followed_in as followed_in
from dynskip_jax.functional.engine.memory import observations_in as observations_in
from dynskip_jax.functional.engine.product import product as product
from dynskip_jax.functional.engine.unroll import unroll as unroll
from dynskip_jax.functional.gated_window import WindowGates as WindowGates
from dynskip_jax.functional.gated_window import gated_window as gated_window
from dynskip_jax.functional.keys import rollouts as rollouts
from dynskip_jax.functional.layers import cast_matrices as cast_matrices
from dynskip_jax.functional.layers import shared_key as shared_key
from dynskip_jax.functional.neural_cache import NO_WORD as NO_WORD
from dynskip_jax.functional.neural_cache import CacheCarry as CacheCarry
from dynskip_jax.functional.neural_cache import cached_log_likelihood as cached_log_likelihood
from dynskip_jax.functional.neural_cache import empty_cache as empty_cache
from dynskip_jax.functional.policy import MODES as MODES
from dynskip_jax.functional.policy import Policy as Policy
from dynskip_jax.functional.pooling import pool_states as pool_states
from dynskip_jax.functional.relaxation import RELAXATIONS as RELAXATIONS
from dynskip_jax.functional.relaxation import relaxed_weights as relaxed_weights
from dynskip_jax.functional.sequence import flip_sequences as flip_sequences
from dynskip_jax.functional.sequence import last_valid as last_valid
from dynskip_jax.functional.sequence import length_mask as length_mask
from dynskip_jax.functional.serialization import register_for_export as register_for_export
from dynskip_jax.functional.step import LayerParams as LayerParams
from dynskip_jax.functional.step import Recurrence as Recurrence
from dynskip_jax.functional.step import SkipCarry as SkipCarry
from dynskip_jax.functional.step import SkipOutput as SkipOutput
from dynskip_jax.functional.step import StepInputs as StepInputs
from dynskip_jax.functional.step import initial_carry as initial_carry
from dynskip_jax.functional.step import project_inputs as project_inputs
from dynskip_jax.functional.step import recurrent_step as recurrent_step
from dynskip_jax.functional.step import reset_carry as reset_carry
from dynskip_jax.functional.step import restart_carry as restart_carry
from dynskip_jax.functional.step import zero_state as zero_state
from dynskip_jax.functional.time_skips import TIME_SKIPS as TIME_SKIPS
from dynskip_jax.functional.time_skips import Attention as Attention
from dynskip_jax.functional.time_skips import Candidates as Candidates
from dynskip_jax.functional.time_skips import Choice as Choice
from dynskip_jax.functional.time_skips import Decision as Decision
from dynskip_jax.functional.time_skips import Dynamic as Dynamic
from dynskip_jax.functional.time_skips import Every as Every
from dynskip_jax.functional.time_skips import Fixed as Fixed
from dynskip_jax.functional.time_skips import LogSpaced as LogSpaced
from dynskip_jax.functional.time_skips import LSTMJump as LSTMJump
from dynskip_jax.functional.time_skips import Mean as Mean
from dynskip_jax.functional.time_skips import Previous as Previous
from dynskip_jax.functional.time_skips import Random as Random
from dynskip_jax.functional.time_skips import Segments as Segments
from dynskip_jax.functional.time_skips import SkimRNN as SkimRNN
from dynskip_jax.functional.time_skips import SkipInputs as SkipInputs
from dynskip_jax.functional.time_skips import SkipRNN as SkipRNN
from dynskip_jax.functional.time_skips import SparseAttention as SparseAttention
from dynskip_jax.functional.time_skips import TimeSkip as TimeSkip
from dynskip_jax.functional.time_skips import parse_time_skip as parse_time_skip
from dynskip_jax.functional.transitions import GRU as GRU
from dynskip_jax.functional.transitions import LSTM as LSTM
from dynskip_jax.functional.transitions import PLSTM as PLSTM
from dynskip_jax.functional.transitions import SLSTM as SLSTM
from dynskip_jax.functional.transitions import TRANSITIONS as TRANSITIONS
from dynskip_jax.functional.transitions import ULSTM as ULSTM
from dynskip_jax.functional.transitions import FullGateRecurrence as FullGateRecurrence
from dynskip_jax.functional.transitions import IndRNN as IndRNN
from dynskip_jax.functional.transitions import Initializers as Initializers
from dynskip_jax.functional.transitions import LSTMParams as LSTMParams
from dynskip_jax.functional.transitions import LSTMState as LSTMState
from dynskip_jax.functional.transitions import MinGRU as MinGRU
from dynskip_jax.functional.transitions import MinLSTM as MinLSTM
from dynskip_jax.functional.transitions import Peephole as Peephole
from dynskip_jax.functional.transitions import RecurrentHighway as RecurrentHighway
from dynskip_jax.functional.transitions import SkimLSTM as SkimLSTM
from dynskip_jax.functional.transitions import SLSTMState as SLSTMState
from dynskip_jax.functional.transitions import Transition as Transition
from dynskip_jax.functional.transitions import parse_transition as parse_transition

# Exported programs may take and return any named tuple of this package.
for _kind in tuple.__subclasses__():
    if _kind.__module__.startswith(__name__):
        register_for_export(_kind)
