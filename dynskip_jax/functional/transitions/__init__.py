"""Transitions: how a cell turns (input, state) into a new state. One file for each."""

from dynskip_jax.errors import UserError
from dynskip_jax.functional.transitions.base import (
    Dense,
    Initializers,
    Transition,
    dense,
    gated_output,
    identity,
)
from dynskip_jax.functional.transitions.full_gate import FullGateParams, FullGateRecurrence, FullGateState
from dynskip_jax.functional.transitions.gru import GRU, GRUInputs, GRUParams, GRUState
from dynskip_jax.functional.transitions.ind_rnn import IndRNN, IndRNNParams
from dynskip_jax.functional.transitions.lstm import LSTM, LSTMParams, LSTMState
from dynskip_jax.functional.transitions.min_rnn import LinearTransition, MinGRU, MinLSTM, MinParams, positive
from dynskip_jax.functional.transitions.peephole import Peephole, PeepholeParams
from dynskip_jax.functional.transitions.plstm import PLSTM, PLSTMParams
from dynskip_jax.functional.transitions.rhn import RecurrentHighway, RHNParams
from dynskip_jax.functional.transitions.slstm import SLSTM, SLSTMState
from dynskip_jax.functional.transitions.ulstm import ULSTM, ULSTMInputs, ULSTMParams

_KINDS = (LSTM, Peephole, FullGateRecurrence, PLSTM, ULSTM, GRU, RecurrentHighway)
_KINDS += (SLSTM, MinLSTM, MinGRU, IndRNN)
_KINDS += (SLSTM, MinLSTM, MinGRU, IndRNN)
TRANSITIONS: dict[str, type[Transition]] = {kind.name: kind for kind in _KINDS}

__all__ = [
    "GRU",
    "LSTM",
    "PLSTM",
    "SLSTM",
    "TRANSITIONS",
    "ULSTM",
    "Dense",
    "FullGateParams",
    "FullGateRecurrence",
    "FullGateState",
    "GRUInputs",
    "GRUParams",
    "GRUState",
    "IndRNN",
    "IndRNNParams",
    "Initializers",
    "LSTMParams",
    "LSTMState",
    "LinearTransition",
    "MinGRU",
    "MinLSTM",
    "MinParams",
    "PLSTMParams",
    "Peephole",
    "PeepholeParams",
    "RHNParams",
    "RecurrentHighway",
    "SLSTMState",
    "Transition",
    "ULSTMInputs",
    "ULSTMParams",
    "dense",
    "gated_output",
    "identity",
    "parse_transition",
    "positive",
]


def parse_transition(text: str) -> Transition:
    """Return the transition of a name, as on the command line; `rhn:5` has a depth of 5.

    Raises:
        UserError: the name is unknown.
    """
    name, colon, depth = text.partition(":")
    if name not in TRANSITIONS or (colon and not (hasattr(TRANSITIONS[name], "depth") and depth.isdecimal())):
        raise UserError(f"unknown transition {text!r}: choose one of {', '.join(TRANSITIONS)}")
    return TRANSITIONS[name](depth=int(depth)) if colon else TRANSITIONS[name]()
