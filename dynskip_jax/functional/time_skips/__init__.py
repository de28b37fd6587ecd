"""Skips over time: which earlier state enters a step."""

import dataclasses
import re
from typing import Any

from dynskip_jax.errors import UserError
from dynskip_jax.functional.time_skips.agentless import Fixed, Mean, Previous, Random
from dynskip_jax.functional.time_skips.base import (
    Choice,
    Decision,
    SkipInputs,
    TimeSkip,
)
from dynskip_jax.functional.time_skips.candidates import (
    LogAttention,
    LogDynamic,
    SegmentAttention,
    SegmentDynamic,
    dilated,
)
from dynskip_jax.functional.time_skips.dynamic import Attention, ContentAttention, Dynamic
from dynskip_jax.functional.time_skips.lstm_jump import JumpCounts, JumpParams, LSTMJump
from dynskip_jax.functional.time_skips.skim_rnn import SkimGateParams, SkimRNN
from dynskip_jax.functional.time_skips.skip_rnn import SkipRNN, UpdateParams
from dynskip_jax.functional.time_skips.sparse import SparseAttention

_KINDS = (Previous, Fixed, Attention, ContentAttention, Dynamic, Mean, Random, SkipRNN, LSTMJump)
_KINDS += (LogAttention, LogDynamic, SegmentAttention, SegmentDynamic, SparseAttention, SkimRNN)
TIME_SKIPS: dict[str, type[TimeSkip]] = {kind.name: kind for kind in _KINDS}

__all__ = [
    "TIME_SKIPS",
    "Attention",
    "Choice",
    "ContentAttention",
    "Decision",
    "Dynamic",
    "Fixed",
    "JumpCounts",
    "JumpParams",
    "LSTMJump",
    "LogAttention",
    "LogDynamic",
    "Mean",
    "Previous",
    "Random",
    "SegmentAttention",
    "SegmentDynamic",
    "SkimGateParams",
    "SkimRNN",
    "SkipInputs",
    "SkipRNN",
    "SparseAttention",
    "TimeSkip",
    "UpdateParams",
    "dilated",
    "parse_time_skip",
]


def parse_time_skip(text: str, **options: Any) -> TimeSkip:
    """Return the time skip with the command-line name `text`.

    Args:
        text: Name from `TIME_SKIPS`, followed by a colon and K, such as `dynamic:5`. The names `lstm` (no
            skip), `skip_rnn`, `lstm_jump` and `skim_rnn` have no K.
        **options: Values of the skip's other fields. Fields that the skip does not have are ignored.

    Raises:
        UserError: The name is unknown, or K is missing, superfluous or not a whole number of at least 1.
    """
    name, colon, number = text.partition(":")
    kind = TIME_SKIPS.get(name)
    if kind is None or bool(colon) != kind.takes_max_skip:
        known = [f"{name}:k" if kind.takes_max_skip else name for name, kind in TIME_SKIPS.items()]
        raise UserError(f"unknown model {text!r}: choose {', '.join(known[:-1])} or {known[-1]}")
    if kind.takes_max_skip:
        if not re.fullmatch(r"-?[0-9]{1,9}", number):
            raise UserError(f"model {text!r}: k must be a whole number, as in {name}:5")
        if int(number) < 1:
            raise UserError(f"model {text!r}: a skip needs K of at least 1, as in {name}:5")
        options["max_skip"] = int(number)
    else:  # these skips have neither K nor λ
        options = {name: value for name, value in options.items() if name not in ("max_skip", "mix")}
    fields = {field.name for field in dataclasses.fields(kind)}
    if issubclass(kind, Attention):  # the name determines the kind of agent
        fields -= {"agent"}
    return kind(**{name: value for name, value in options.items() if name in fields})
