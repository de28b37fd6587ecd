"""Skips over time: which earlier state enters a step."""

import dataclasses
import re
from typing import Any

from dynskip_jax.errors import UserError
from dynskip_jax.functional.time_skips.agentless import Fixed, Mean, Previous, Random
from dynskip_jax.functional.time_skips.base import (
    Choice,
    Decision,
    ReadingSkip,
    SkipInputs,
    TimeSkip,
)
from dynskip_jax.functional.time_skips.candidates import Candidates, Every, LogSpaced, Segments
from dynskip_jax.functional.time_skips.dynamic import Attention, Dynamic
from dynskip_jax.functional.time_skips.lstm_jump import JumpParams, LSTMJump
from dynskip_jax.functional.time_skips.skim_rnn import SkimGateParams, SkimRNN
from dynskip_jax.functional.time_skips.skip_rnn import SkipRNN, UpdateParams
from dynskip_jax.functional.time_skips.sparse import SparseAttention

# The classes of the names on the command line, and the options that a name implies.
TIME_SKIPS: dict[str, type[TimeSkip]] = {
    "previous": Previous,
    "lstm": Previous,  # its name in tables and stored runs
    "fixed": Fixed,
    "dynamic": Dynamic,
    "log_dynamic": Dynamic,
    "segment_dynamic": Dynamic,
    "attention": Attention,
    "content": Attention,
    "log_attention": Attention,
    "segment_attention": Attention,
    "sparse": SparseAttention,
    "mean": Mean,
    "random": Random,
    "skip_rnn": SkipRNN,
    "skim_rnn": SkimRNN,
    "lstm_jump": LSTMJump,
}
_IMPLIED = dict(content=dict(agent="content"), segment_attention=dict(agent="content"))
_IMPLIED |= dict(log_attention=dict(among=LogSpaced()), log_dynamic=dict(among=LogSpaced()))


def parse_time_skip(text: str, *, stride: int = 1, **options: Any) -> TimeSkip:
    """Return the time skip with the command-line name `text`.

    Args:
        text: Name from `TIME_SKIPS`, colon and K, such as `dynamic:5`. The names `previous`, `lstm`
            (the same: no skip), `skip_rnn`, `lstm_jump` and `skim_rnn` have no K.
        stride: Size of `Segments` for `segment_…` and `sparse`, and of `Every` for other agents.
        **options: Values of the skip's other fields. Fields that the skip does not have are
            ignored.
    """
    name, colon, number = text.partition(":")
    takes_k = {
        name: not issubclass(kind, Previous | ReadingSkip) for name, kind in TIME_SKIPS.items()
    }
    if takes_k.get(name) is not bool(colon):
        known = [name + ":k" * takes for name, takes in takes_k.items()]
        raise UserError(f"unknown model {text!r}: choose {', '.join(known[:-1])} or {known[-1]}")
    kind = TIME_SKIPS[name]
    fields = {field.name for field in dataclasses.fields(kind)}
    if not colon:
        fields -= {"max_skip", "mix"}
        return kind(**{name: value for name, value in options.items() if name in fields})
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", number):
        raise UserError(f"model {text!r}: k must be a whole number of at least 1, as in {name}:5")
    if stride > 1:
        if name.startswith("log_"):
            raise UserError(f"{name} has the distances 1, 2, 4, …: leave out the stride")
        options["among"] = Every(stride)
        if name.startswith(("segment_", "sparse")):
            options["among"] = Segments(stride)
    # The name determines the kind of agent.
    if issubclass(kind, Attention):
        fields -= {"agent"}
    options = {name: value for name, value in options.items() if name in fields}
    return kind(**options | _IMPLIED.get(name, {}) | {"max_skip": int(number)})
