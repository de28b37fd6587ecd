"""Transitions: functions from an input and a state to the new state of a cell."""

from dynskip_jax.errors import UserError
from dynskip_jax.functional.transitions.base import Dense, Initializers, Transition, dense
from dynskip_jax.functional.transitions.full_gate import FullGateRecurrence
from dynskip_jax.functional.transitions.gru import GRU, GRUState
from dynskip_jax.functional.transitions.ind_rnn import IndRNN
from dynskip_jax.functional.transitions.lstm import LSTM, LSTMParams, LSTMState
from dynskip_jax.functional.transitions.min_rnn import LinearTransition, MinGRU, MinLSTM, MinParams
from dynskip_jax.functional.transitions.peephole import Peephole
from dynskip_jax.functional.transitions.plstm import PLSTM
from dynskip_jax.functional.transitions.rhn import RecurrentHighway
from dynskip_jax.functional.transitions.skim_lstm import SkimLSTM, SkimParams
from dynskip_jax.functional.transitions.slstm import SLSTM, SLSTMState
from dynskip_jax.functional.transitions.ulstm import ULSTM

_KINDS = (LSTM, Peephole, FullGateRecurrence, PLSTM, ULSTM, GRU, RecurrentHighway)
_KINDS += (SLSTM, MinLSTM, MinGRU, IndRNN, SkimLSTM)
TRANSITIONS: dict[str, type[Transition]] = {kind.name: kind for kind in _KINDS}


def parse_transition(text: str) -> Transition:
    """Return the transition that `text` names as on the command line, such as `gru` or `rhn:5`."""
    name, colon, number = text.partition(":")
    kind = TRANSITIONS.get(name)
    if kind is None or (colon and not (kind.number and number.isdecimal())):
        raise UserError(f"unknown transition {text!r}: choose one of {', '.join(TRANSITIONS)}")
    return kind(**{kind.number: int(number)}) if colon else kind()
