"""Skips over time: which earlier state enters a step."""

import dataclasses
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from dynskip_jax.errors import UserError
from dynskip_jax.functional.time_skips.agentless import (
    Fixed,
    Mean,
    Previous,
    Random,
    dilated,
)
from dynskip_jax.functional.time_skips.base import (
    Choice,
    Decision,
    SkipInputs,
    TimeSkip,
)
from dynskip_jax.functional.time_skips.candidates import (
    Candidates,
    Every,
    LogSpaced,
    Segments,
)
from dynskip_jax.functional.time_skips.dynamic import Attention, Dynamic
from dynskip_jax.functional.time_skips.lstm_jump import (
    JumpCounts,
    JumpParams,
    LSTMJump,
)
from dynskip_jax.functional.time_skips.skim_rnn import SkimGateParams, SkimRNN
from dynskip_jax.functional.time_skips.skip_rnn import SkipRNN, UpdateParams
from dynskip_jax.functional.time_skips.sparse import SparseAttention

# Names on the command line.
TIME_SKIPS: dict[str, Callable[..., TimeSkip]] = {
    kind.name: kind
    for kind in (
        Previous,
        Fixed,
        Attention,
        Dynamic,
        Mean,
        Random,
        SkipRNN,
        LSTMJump,
        SparseAttention,
        SkimRNN,
    )
}
TIME_SKIPS |= {
    "content": partial(Attention, agent="content"),
    "log_attention": partial(Attention, among=LogSpaced()),
    "log_dynamic": partial(Dynamic, among=LogSpaced()),
    "segment_attention": partial(Attention, agent="content"),
    "segment_dynamic": Dynamic,
}


def parse_time_skip(text: str, *, stride: int = 1, **options: Any) -> TimeSkip:
    """Return the time skip with the command-line name `text`.

    Args:
        text: Name from `TIME_SKIPS`, followed by a colon and K, such as `dynamic:5`. The names `lstm` (no
            skip), `skip_rnn`, `lstm_jump` and `skim_rnn` have no K.
        stride: Size of `Segments` for `segment_…` and `sparse`, and of `Every` for other agents.
        **options: Values of the skip's other fields. Fields that the skip does not have are ignored.

    Raises:
        UserError: The name is unknown, or K is missing, superfluous or not a whole number of at least 1.
    """
    name, colon, number = text.partition(":")
    make = TIME_SKIPS.get(name)
    kind = getattr(make, "func", make)
    if kind is None or bool(colon) != kind.takes_max_skip:
        known = [name + ":k" * getattr(m, "func", m).takes_max_skip for name, m in TIME_SKIPS.items()]
        raise UserError(f"unknown model {text!r}: choose {', '.join(known[:-1])} or {known[-1]}")
    if kind.takes_max_skip:
        if not re.fullmatch(r"-?[0-9]{1,9}", number):
            raise UserError(f"model {text!r}: k must be a whole number, as in {name}:5")
        if int(number) < 1:
            raise UserError(f"model {text!r}: a skip needs K of at least 1, as in {name}:5")
        options["max_skip"] = int(number)
    else:  # these skips have neither K nor λ
        options = {name: value for name, value in options.items() if name not in ("max_skip", "mix")}
    if stride > 1 and name.startswith("log_"):
        raise UserError(f"{name} has the distances 1, 2, 4, …: leave out the stride")
    if stride > 1:
        options["among"] = Segments(stride) if name.startswith(("segment_", "sparse")) else Every(stride)
    fields = {field.name for field in dataclasses.fields(kind)}
    if issubclass(kind, Attention):  # the name determines the kind of agent
        fields -= {"agent"}
    return make(**{name: value for name, value in options.items() if name in fields})
