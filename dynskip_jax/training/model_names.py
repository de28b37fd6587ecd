"""The names of the time skips, as `--model` takes them, and what each kind has; known without JAX."""

# Agents that choose one of the last K states.
CHOOSING = ("dynamic:k", "log_dynamic:k", "segment_dynamic:k")
# Agents and attention: a distribution over the last K states.
WITH_AGENT = (
    *("dynamic:k", "attention:k", "content:k", "log_dynamic:k", "segment_dynamic:k"),
    *("log_attention:k", "segment_attention:k", "sparse:k"),
)
# A state of the past enters.
WITH_K = (*WITH_AGENT, "fixed:k", "mean:k", "random:k")
# A distribution by which words of the past can be copied.
COPYING = (*WITH_AGENT, "mean:k", "random:k")
# Trained by rewards.
REWARDED = (*CHOOSING, "lstm_jump")
# Learn by gradient which words to read.
READING_LESS = ("skip_rnn", "skim_rnn")

MODEL_NAMES = tuple(sorted(name.partition(":")[0] for name in (*WITH_K, *READING_LESS, "lstm", "lstm_jump")))


def is_one_of(model: str, names: tuple[str, ...]) -> bool:
    """Return whether a model is one of these names; a skip of your own may be anything."""
    kind = model.partition(":")[0]
    return kind not in MODEL_NAMES or kind in {name.partition(":")[0] for name in names}
