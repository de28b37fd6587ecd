"""Tasks, each in its own file: data, model, batches, loss, score, texts and pictures."""

from dynskip_jax.lazy import importer

_MODULES = dict(
    Classification="classification",
    ExampleTask="task",
    Forward="task",
    LanguageModelling="language",
    Learner="learner",
    LossOutput="task",
    SentencePairs="classification",
    Tagging="tagging",
    Task="task",
)

__all__ = [*_MODULES]


# A task needs no other tasks.
__getattr__ = importer(__name__, _MODULES)
