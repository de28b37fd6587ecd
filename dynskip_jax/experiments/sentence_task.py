"""Data, models and texts of all experiments on sentences."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.data.sentences import SentenceCorpus
from dynskip_jax.experiment import Dataset
from dynskip_jax.experiments.sentence_config import SentenceSettings
from dynskip_jax.experiments.vectors import vectors_for, with_vectors, words_with_vectors
from dynskip_jax.models import SequenceClassifier
from dynskip_jax.nn import initializers
from dynskip_jax.spec import ModelSpec
from dynskip_jax.tasks import Classification

_ROWS = 200  # rows of an evaluation batch; the projected inputs of long texts take much memory
_EMBEDDING_SCALE = 0.25  # of words without a vector


def reading_options(settings: SentenceSettings) -> dict[str, Any]:
    """Return how texts are read: options of `sentence_corpus`."""
    data = settings.data

    def known(train: set[str], others: set[str]) -> set[str]:
        if data.embeddings is None:
            return set()
        return words_with_vectors(data.embeddings, settings.model.embedding_features, others, beside=train)

    return dict(
        min_count=data.min_count,
        max_words=data.max_words,
        batch_size=settings.training.batch_size,
        known=known,
    )


def dataset_of(corpus: SentenceCorpus, settings: SentenceSettings, **more: Any) -> Dataset:
    """Return a corpus as a data set; `more` replaces some of its fields."""
    vectors = _vectors(settings, corpus.vocabulary)
    fields = dict(
        name=corpus.name,
        sizes=corpus.sizes,
        fingerprint=corpus.fingerprint,
        source=corpus.source,
        content=corpus,
        vocabulary=corpus.vocabulary,
        lines=[corpus.about],
    )
    fields |= more
    return Dataset(**fields | {"fingerprint": with_vectors(fields["fingerprint"], vectors)})


def _vectors(settings: SentenceSettings, vocabulary: Any) -> Any:
    return vectors_for(settings.data.embeddings, settings.model.embedding_features, vocabulary.tokens)


def layers(spec: ModelSpec, settings: SentenceSettings) -> dict[str, Any]:
    """Return the options of a model's layers, without their sizes."""
    m = settings.model
    inputs, hidden, outputs = m.dropout * 3 if len(m.dropout) == 1 else m.dropout
    below = m.num_layers - 1
    dropped = dict(
        weight_dropout=m.dropout_weights, zoneout=m.zoneout if len(m.zoneout) > 1 else m.zoneout[0]
    )
    return dict(
        skip=(F.Previous(),) * below + (spec.skip,),
        **spec.recurrent_options,
        bidirectional=m.bidirectional,
        pooling=m.pooling,
        dropout=(inputs, *(hidden,) * below, outputs),
        variational=m.locked,
        dtype=spec.dtype,
        cell=[dropped] * below + [dropped | dict(spec.cell_options)],
    )


def rare_words(settings: SentenceSettings, data: Dataset | None) -> dict[str, Any]:
    """Return the options for reading rare words as unknown in training; empty without data."""
    if data is None:
        return {}
    return dict(unknown_rate=settings.model.unknown_rate, num_frequent=data.content.num_frequent)


def embedding(
    settings: SentenceSettings, data: Dataset | None, vocabulary: Any
) -> Callable[[nnx.Rngs], nnx.Embed]:
    """Return a function that creates the word embedding; pretrained vectors are read only with data."""
    init, size = initializers.uniform(_EMBEDDING_SCALE), settings.model.embedding_features
    found = None if data is None else _vectors(settings, vocabulary)

    def start(key: Any, shape: tuple[int, ...], dtype: Any = jnp.float32, out_sharding: Any = None) -> Any:
        drawn = init(key, shape, dtype)
        return drawn if found is None else jnp.where(found.found[:, None], found.table.astype(dtype), drawn)

    return lambda rngs: nnx.Embed(len(vocabulary), size, embedding_init=start, rngs=rngs)


def make_classification(
    spec: ModelSpec,
    settings: SentenceSettings,
    data: Dataset | None,
    vocabulary: Any,
    classes: Sequence[str],
) -> Classification:
    """Return the task of a model that classifies texts."""
    m, embed = settings.model, embedding(settings, data, vocabulary)

    def make_model(rngs: nnx.Rngs) -> SequenceClassifier:
        return SequenceClassifier(
            len(vocabulary),
            m.features,
            len(classes),
            embedding=embed(rngs),
            word_dropout=m.dropout_words,
            **rare_words(settings, data),
            **layers(spec, settings),
            rngs=rngs,
        )

    return Classification(
        {} if data is None else data.content.splits,
        make_model,
        batch_size=settings.training.batch_size,
        evaluation_rows=_ROWS,
        activation_coef=2.0 if m.recipe == "awd" else 0.0,
        temporal_coef=1.0 if m.recipe == "awd" else 0.0,
        class_names=classes,
    )


def text_hooks(
    split: Callable[[str], list[str]], classes_of: Callable[[Any], Sequence[str]]
) -> tuple[Callable, Callable, Callable]:
    """Return `encode`, `tokenize` and `format_prediction` of a classifier; see `dynskip_jax.hooks`.

    Args:
        split: Function from a text to its words.
        classes_of: Function from the vocabulary to the names of the classes.
    """

    def encode(settings: Any, vocabulary: Any, text: str) -> tuple[np.ndarray, list[str]]:
        # Cropped as in training; unknown words become `<unk>`.
        tokens = vocabulary.encode(split(text)[: getattr(settings.data, "max_length", None)])
        return tokens, vocabulary.decode(tokens)

    def tokenize(vocabulary: Any, text: str) -> str:
        return " ".join(split(text))

    def format_prediction(vocabulary: Any, predicted: Any, probability: float) -> str:
        return f"{classes_of(vocabulary)[int(predicted)]}  ({probability:.3f})"

    return encode, tokenize, format_prediction
