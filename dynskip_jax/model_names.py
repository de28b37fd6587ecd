"""The time skips that `--model` accepts, without importing JAX: one entry for each name."""

from typing import NamedTuple


class TimeSkipName(NamedTuple):
    """Where the class of a time skip is, and what settings have an effect on it."""

    module: str  # in `functional.time_skips`
    kind: str  # the class
    takes_k: bool = False  # an earlier state enters the cell; K follows the name
    has_agent: bool = False  # a distribution over the last K states is learned
    chooses: bool = False  # an agent samples one of them
    copies: bool = False  # there is a distribution, so words can be copied
    is_rewarded: bool = False  # choices are trained by rewards
    reads_less: bool = False  # learns by gradient which words to read


_WEIGHED = dict(takes_k=True, has_agent=True, copies=True)
_SAMPLED = _WEIGHED | dict(chooses=True, is_rewarded=True)
_BLIND = dict(takes_k=True, copies=True)

TIME_SKIP_NAMES = {
    "previous": TimeSkipName("agentless", "Previous"),
    "lstm": TimeSkipName("agentless", "Previous"),  # its name in tables and stored runs
    "fixed": TimeSkipName("agentless", "Fixed", takes_k=True),
    "dynamic": TimeSkipName("dynamic", "Dynamic", **_SAMPLED),
    "log_dynamic": TimeSkipName("dynamic", "Dynamic", **_SAMPLED),
    "segment_dynamic": TimeSkipName("dynamic", "Dynamic", **_SAMPLED),
    "attention": TimeSkipName("dynamic", "Attention", **_WEIGHED),
    "content": TimeSkipName("dynamic", "Attention", **_WEIGHED),
    "log_attention": TimeSkipName("dynamic", "Attention", **_WEIGHED),
    "segment_attention": TimeSkipName("dynamic", "Attention", **_WEIGHED),
    "sparse": TimeSkipName("sparse", "SparseAttention", **_WEIGHED),
    "mean": TimeSkipName("agentless", "Mean", **_BLIND),
    "random": TimeSkipName("agentless", "Random", **_BLIND),
    "skip_rnn": TimeSkipName("skip_rnn", "SkipRNN", reads_less=True),
    "skim_rnn": TimeSkipName("skim_rnn", "SkimRNN", reads_less=True),
    "lstm_jump": TimeSkipName("lstm_jump", "LSTMJump", is_rewarded=True),
}


def _shown(feature: str) -> tuple[str, ...]:
    """Return the names with a feature, as they are typed."""
    return tuple(
        name + ":k" * entry.takes_k
        for name, entry in TIME_SKIP_NAMES.items()
        if getattr(entry, feature)
    )


MODELS = _shown("kind")
CHOOSING = _shown("chooses")
WITH_AGENT = _shown("has_agent")
WITH_K = _shown("takes_k")
COPYING = _shown("copies")
REWARDED = _shown("is_rewarded")
READING_LESS = _shown("reads_less")

# No skip over time, with any transition.
PLAIN = ("previous", "lstm")


def is_one_of(model: str, names: tuple[str, ...]) -> bool:
    """Return whether `model` has one of these names, or a name of the user's own."""
    kind = model.partition(":")[0]
    return kind not in TIME_SKIP_NAMES or kind in {name.partition(":")[0] for name in names}
