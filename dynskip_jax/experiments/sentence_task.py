"""Data and models of all experiments on sentences."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flax import nnx

from dynskip_jax.data.sentences import Labelled, SentenceCorpus, sentence_corpus
from dynskip_jax.experiment import Dataset
from dynskip_jax.experiments.sentence_config import SentenceSettings
from dynskip_jax.experiments.vectors import begin_with, vectors_for, with_vectors, words_with_vectors
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

    how = dict(min_count=data.min_count, max_words=data.max_words, known=known)
    return how | dict(batch_size=settings.training.batch_size)


def load_labelled(
    name: str,
    splits: Mapping[str, Iterable[Labelled]],
    source: str,
    settings: SentenceSettings,
) -> Dataset:
    """Return labelled texts as a data set."""
    how = dict(max_length=getattr(settings.data, "max_length", None)) | reading_options(settings)
    return dataset_of(sentence_corpus(name, splits, source, **how), settings)


def dataset_of(corpus: SentenceCorpus, settings: SentenceSettings, **more: Any) -> Dataset:
    """Return a corpus as a data set; `more` replaces some of its fields."""
    fields = dict(fingerprint=corpus.fingerprint, vocabulary=corpus.vocabulary, lines=[corpus.about]) | more
    fields["fingerprint"] = with_vectors(fields["fingerprint"], _vectors(settings, corpus.vocabulary))
    return Dataset(corpus.name, corpus.sizes, source=corpus.source, content=corpus, **fields)


def _vectors(settings: SentenceSettings, vocabulary: Any) -> Any:
    return vectors_for(settings.data.embeddings, settings.model.embedding_features, vocabulary.tokens)


def model_options(spec: ModelSpec, settings: SentenceSettings, data: Dataset | None) -> dict[str, Any]:
    """Return the options of a model's layers, and of rare words, which are read as unknown in training."""
    m = settings.model
    dropped = dict(weight_dropout=m.dropout_weights, zoneout=m.zoneout_rates)
    rare = dict(unknown_rate=m.unknown_rate, num_frequent=0 if data is None else data.content.num_frequent)
    return dict(
        **spec.layer_options(m.num_layers),
        **({} if data is None else rare),
        bidirectional=m.bidirectional,
        pooling=m.pooling,
        dropout=m.dropout_rates,
        variational=m.locked,
        cell=[dropped] * (m.num_layers - 1) + [dropped | dict(spec.cell_options)],
    )


def embedding(
    settings: SentenceSettings, data: Dataset | None, vocabulary: Any
) -> Callable[[nnx.Rngs], nnx.Embed]:
    """Return a function that creates the word embedding; pretrained vectors are read only with data."""
    vectors = None if data is None else _vectors(settings, vocabulary)
    init, size = initializers.uniform(_EMBEDDING_SCALE), settings.model.embedding_features
    how = dict(embedding_init=begin_with(vectors, init))
    return lambda rngs: nnx.Embed(len(vocabulary), size, **how, rngs=rngs)


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
            **model_options(spec, settings, data),
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
