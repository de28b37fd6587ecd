"""Data, model, tables and texts of all taggers."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from flax import nnx

from dynskip_jax import hooks
from dynskip_jax.analysis.reading import Reading
from dynskip_jax.data.batches import with_buckets
from dynskip_jax.data.messages import shares
from dynskip_jax.data.notes import DataNotes
from dynskip_jax.data.sentences import treebank_words
from dynskip_jax.data.tag_schemes import allowed_transitions, convert_tags
from dynskip_jax.data.tagged import TaggedCorpus, tagged_examples
from dynskip_jax.data.vocabularies import (
    CAPITALS,
    UNK,
    TaggerVocabulary,
    TokenIds,
    normal_form,
    tagger_vocabulary,
)
from dynskip_jax.experiment import Dataset
from dynskip_jax.experiments.tagger_config import TaggerSettings
from dynskip_jax.experiments.vectors import begin_with, having, read_vectors, with_vectors
from dynskip_jax.models import Tagger
from dynskip_jax.nn import CharAffixes, CharCNN
from dynskip_jax.nn.initializers import by_size
from dynskip_jax.spec import ModelSpec
from dynskip_jax.tasks import Tagging
from dynskip_jax.trained import Trained

_CHAR_FEATURES, _CHAR_OUTPUTS, _CHAR_WIDTH, _SMALL_FEATURES, _COLUMN_FEATURES = 30, 30, 3, 5, 20
# Details of published systems: filters, dropout of characters, capitals, words at a time, options
# of cells, and whether agents are rewarded for words.
_USUAL = dict(
    filters=_CHAR_OUTPUTS,
    char_dropout=0.0,
    capitals=_SMALL_FEATURES,
    window=1,
    cell={},
    by_word=True,
)
_GLOROT = nnx.initializers.glorot_uniform()
_MA = dict(kernel_init=_GLOROT, recurrent_kernel_init=_GLOROT, forget_bias=1.0)
_WU = dict(kernel_init=nnx.initializers.variance_scaling(0.01, "fan_in", "normal"))
_RECIPES: dict[str, dict[str, Any]] = {
    "none": _USUAL,
    "ma2016": {**_USUAL, "char_dropout": 0.5, "capitals": 0, "cell": _MA, "by_word": False},
    "ncrfpp": {**_USUAL, "filters": 50, "capitals": 0},
    "wu2016": {**_USUAL, "window": 3, "cell": _WU, "by_word": False},
}


def dataset_of(
    corpus: TaggedCorpus, tags: Sequence[str], settings: TaggerSettings, lines: Sequence[str] = ()
) -> Dataset:
    """Return a corpus as a data set, with the vocabulary of its words and of the `tags` to
    predict.
    """
    m, path, train = settings.model, settings.data.embeddings, corpus.splits["train"]
    how = dict(lowercase=m.lowercase, digits=m.digits)
    all_words = {split: [w for s in of for w in s.words] for split, of in corpus.splits.items()}
    forms = {normal_form(word, **how) for words in all_words.values() for word in words}
    notes = DataNotes(strict=settings.data.strict)
    read = read_vectors(path, forms, m.embedding_features, notes)
    vocabulary = tagger_vocabulary(
        (sentence.words for sentence in train),
        tags,
        **how,
        more_words=having(forms, read),
        columns=(sentence.columns for sentence in train),
        scheme=corpus.scheme,
    )
    unknown = {
        s: sum(not vocabulary.knows(w) for w in words) / len(words)
        for s, words in all_words.items()
    }
    lines = [*corpus.notes, *notes.lines, *lines, f"words that are not known: {shares(unknown)}"]
    about = (
        corpus.name,
        {**corpus.sizes, "words": len(vocabulary.words)},
        corpus.fingerprint,
        corpus.source,
    )
    dataset = Dataset(*about, content=corpus, vocabulary=vocabulary, lines=lines)
    return with_vectors(dataset, path, vocabulary.words, read, m.embedding_features)


def make_task(
    spec: ModelSpec, settings: TaggerSettings, data: Dataset | None, vocabulary: TaggerVocabulary
) -> Tagging:
    """Return the task of a model; tags of entities follow BIOES."""
    batch_size, splits, gold = settings.training.batch_size, {}, {}
    index = {tag: i for i, tag in enumerate(vocabulary.tags)}
    unknown = index.get(UNK)
    for split, sentences in {} if data is None else data.content.splits.items():
        gold[split] = [sentence.tags for sentence in sentences]
        ids = [[index.get(tag, unknown) for tag in tags] for tags in gold[split]]
        splits[split] = tagged_examples(sentences, ids, vocabulary)
    return Tagging(
        with_buckets(splits, batch_size) if splits else {},
        partial(_make_model, spec, settings, vocabulary, data and data.vectors),
        tags=vocabulary.tags,
        scheme=None if vocabulary.scheme is None else "BIOES",
        gold=gold,
        rewards_words=_RECIPES[settings.model.recipe]["by_word"],
        decode_in_training=settings.model.output == "softmax" or settings.agent.reward == "correct",
        unknown_tag=unknown,
        batch_size=batch_size,
    )


def _make_model(
    spec: ModelSpec,
    settings: TaggerSettings,
    vocabulary: TaggerVocabulary,
    vectors: Any,
    rngs: nnx.Rngs,
) -> Tagger:
    m, recipe = settings.model, _RECIPES[settings.model.recipe]
    count, characters = vocabulary.num_characters, []
    how = dict(
        char_features=_CHAR_FEATURES, dropout=recipe["char_dropout"], dtype=spec.dtype, rngs=rngs
    )
    if m.characters == "cnn":
        characters.append(CharCNN(count, filters=recipe["filters"], width=_CHAR_WIDTH, **how))
    if m.affixes:
        characters.append(
            CharAffixes(count, char_features=_SMALL_FEATURES, count=m.affixes, rngs=rngs)
        )
    has_scheme = vocabulary.scheme is not None and m.output == "crf"
    return Tagger(
        len(vocabulary.words),
        len(vocabulary.tags),
        m.features,
        **spec.layer_options(),
        embedding_features=m.embedding_features,
        word_init=begin_with(
            vectors, by_size(m.embedding_features)
        ),  # U(±√(3/d)) for words without one
        characters=characters,
        capitals=(len(CAPITALS), recipe["capitals"]) if recipe["capitals"] else None,
        columns=[
            (1 + len(values), _COLUMN_FEATURES) for values in vocabulary.columns
        ],  # 0 is unknown
        window=recipe["window"],
        output=m.output,
        allowed=allowed_transitions(vocabulary.tags, "BIOES") if has_scheme else None,
        dropout=m.dropout_rates,
        unknown_rate=m.unknown_rate,
        num_frequent=vocabulary.num_frequent,
        cell=dict(spec.cell_options) | recipe["cell"],
        rngs=rngs,
    )


# --- Tables, pictures and texts ---


def metrics(trained: Trained) -> dict[str, np.ndarray]:
    """Return precision, recall, F1 and support of each entity type or each frequent tag."""
    found, learner = {}, trained.learner
    for split in ("dev", "test"):
        predictions = learner.predictions(trained.all_params, split, trained.keys)
        rows = [learner.task.label_metrics(split, of) for of in predictions]
        found |= {f"{split}_{name}": np.array([row[name] for row in rows]) for name in rows[0]}
    return found


def draw(trained: Trained) -> None:
    """Log the scores of each type or tag on dev; draw the confusion matrix, and skips at each
    tag.
    """
    task, has_entities = trained.learner.task, trained.learner.task.scheme is not None
    predictions = trained.learner.predictions(trained.all_params, "dev", trained.keys)[
        trained.member
    ]
    what, labels = (
        "type" if has_entities else "tag",
        (task.gold["dev"], task.predicted_tags(predictions)),
    )
    hooks.draw_confusion(trained, "dev", what, *labels, has_entities=has_entities)
    hooks.draw_skips(trained, "tag", "targets", task.tags)


def tokenize(trained: Trained, text: str) -> str:
    """Separate the words of a text by spaces; case is kept, because the model reads characters
    unchanged.
    """
    return " ".join(treebank_words(text, lowercase=False))


def encode(trained: Trained, text: str) -> tuple[TokenIds, list[str]]:
    """Return the ids of the words of a text, and the words: unknown ones are read by characters."""
    words = text.split()
    return trained.vocabulary.encode(words), words


def read(trained: Trained, text: str) -> Reading:
    """Read a text; `probabilities` are the marginal probabilities of each word's tag."""
    vocabulary, (inputs, words) = trained.vocabulary, trained.encode(text)
    found, best = trained.learner.read(trained.params, inputs, len(words), trained.policy)
    best, marginals = np.asarray(best), np.asarray(found.log_probs.marginals)
    tags = written([vocabulary.tags[tag] for tag in best], trained.learner.task.scheme)
    probabilities = np.exp(np.take_along_axis(marginals, best[:, None], axis=1)[:, 0])
    pairs = [f"{word}/{tag}" for word, tag in zip(words, tags, strict=True)]
    return Reading(
        pairs,
        unknown=[word for word in dict.fromkeys(words) if not vocabulary.knows(word)],
        probabilities=probabilities.tolist(),
        prediction=f"{' '.join(pairs)}  ({probabilities.min():.3f})",
        is_of_predictions=True,
        **trained.choices(found.decisions, found.observations, len(words)),
    )


def written(tags: Sequence[str], own: str | None) -> list[str]:
    """Convert tags to what users see: entity tags (of the scheme `own`) in BIO2, others as is."""
    return list(tags) if own is None else convert_tags(tags, "BIO2")
