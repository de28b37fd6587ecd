"""Task models: Flax NNX modules made of `dynskip_jax.nn`."""

from dynskip_jax.lazy import importer

_MODULES = dict(
    ClassifierOutput="classifier",
    Copier="copying",
    CopyCarry="copying",
    LanguageModel="language_model",
    LanguageModelDropout="language_model",
    LanguageModelOutput="language_model",
    SentencePairModel="classifier",
    SequenceClassifier="classifier",
    Tagger="tagger",
    TaggerOutput="tagger",
)

__all__ = [*_MODULES]


# A model needs no other models.
__getattr__ = importer(__name__, _MODULES)
