"""Task models: Flax NNX modules made of `dynskip_jax.nn`."""

from dynskip_jax.models.classifier import ClassifierOutput, SentencePairModel, SequenceClassifier
from dynskip_jax.models.copying import Copier, CopyCarry
from dynskip_jax.models.language_model import (
    LanguageModel,
    LanguageModelDropout,
    LanguageModelOutput,
)
from dynskip_jax.models.tagger import Tagger, TaggerOutput

__all__ = [
    "ClassifierOutput",
    "Copier",
    "CopyCarry",
    "LanguageModel",
    "LanguageModelDropout",
    "LanguageModelOutput",
    "SentencePairModel",
    "SequenceClassifier",
    "Tagger",
    "TaggerOutput",
]
