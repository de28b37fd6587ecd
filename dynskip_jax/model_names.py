"""List the names of time skips that `--model` accepts, by features, without importing JAX."""

# An agent samples one of the last K states.
CHOOSING = ("dynamic:k", "log_dynamic:k", "segment_dynamic:k")
# An agent or attention computes a distribution over the last K states.
WITH_AGENT = (
    *("dynamic:k", "attention:k", "content:k", "log_dynamic:k", "segment_dynamic:k"),
    *("log_attention:k", "segment_attention:k", "sparse:k"),
)
# An earlier state enters the cell.
WITH_K = (*WITH_AGENT, "fixed:k", "mean:k", "random:k")
# There is a distribution over the last K states, so words can be copied.
COPYING = (*WITH_AGENT, "mean:k", "random:k")
# Choices are trained by rewards.
REWARDED = (*CHOOSING, "lstm_jump")
# The layer learns by gradient which words to read.
READING_LESS = ("skip_rnn", "skim_rnn")

# No skip over time, with any transition; `lstm` is its name in tables and stored runs.
PLAIN = ("previous", "lstm")

MODELS = (*PLAIN, *WITH_K, *READING_LESS, "lstm_jump")
MODEL_NAMES = tuple(sorted(name.partition(":")[0] for name in MODELS))


def is_one_of(model: str, names: tuple[str, ...]) -> bool:
    """Return whether `model` has one of these names, or a name of the user's own."""
    kind = model.partition(":")[0]
    return kind not in MODEL_NAMES or kind in {name.partition(":")[0] for name in names}
