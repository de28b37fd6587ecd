"""Data, model, tables and texts of all taggers."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.analysis import plots
from dynskip_jax.analysis.reading import Reading
from dynskip_jax.data.batches import with_buckets
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
from dynskip_jax.data.word_vectors import WordVectors
from dynskip_jax.experiment import Dataset
from dynskip_jax.experiments.tagger_config import TaggerSettings
from dynskip_jax.experiments.vectors import vectors_for, with_vectors, words_with_vectors
from dynskip_jax.models import Tagger
from dynskip_jax.nn import CharAffixes, CharCNN, CharLSTM
from dynskip_jax.nn.initializers import by_size
from dynskip_jax.spec import ModelSpec
from dynskip_jax.tasks import Learner, Tagging
from dynskip_jax.tasks.label_score import word_labels

logger = logging.getLogger(__name__)

_SPLITS = ("train", "dev", "test")
_MOST_ROWS = 20  # largest number of tags in a plot
_WORD_LENGTH = 20  # characters of a word that are read; of longer words the first and last half
_CHAR_FEATURES, _CHAR_OUTPUTS, _CHAR_WIDTH, _SMALL_FEATURES, _COLUMN_FEATURES = 30, 30, 3, 5, 20
# Details of published systems: filters, dropout of characters, capitals, words at a time, gain of the initial
# weights on inputs (their standard deviation is this / √fan-in), and whether agents are rewarded for words.
_USUAL = dict(
    filters=_CHAR_OUTPUTS, char_dropout=0.0, capitals=_SMALL_FEATURES, window=1, gain=1.0, by_word=True
)
_RECIPES: dict[str, dict[str, Any]] = {
    "none": _USUAL,
    "ma2016": {**_USUAL, "char_dropout": 0.5, "capitals": 0, "by_word": False},
    "ncrfpp": {**_USUAL, "filters": 50, "capitals": 0},
    "wu2016": {**_USUAL, "window": 3, "gain": 0.1, "by_word": False},
}


def dataset_of(
    corpus: TaggedCorpus,
    tags: Sequence[str],
    settings: TaggerSettings,
    lines: Sequence[str] = (),
) -> Dataset:
    """Return a corpus as a data set, with its vocabulary.

    Args:
        corpus: Tagged sentences.
        tags: Tags that may be predicted.
        settings: All settings.
        lines: Further lines to print before training.
    """
    m, path = settings.model, settings.data.embeddings
    how, more = dict(lowercase=m.lowercase, digits=m.digits), set()
    all_words = {split: [w for s in corpus.splits[split] for w in s.words] for split in _SPLITS}
    if path is not None:
        forms = {normal_form(word, **how) for words in all_words.values() for word in words}
        more = words_with_vectors(path, m.embedding_features, forms)
    vocabulary = tagger_vocabulary(
        (sentence.words for sentence in corpus.splits["train"]),
        tags,
        **how,
        min_count=settings.data.min_count,
        word_length=_WORD_LENGTH,
        more_words=more,
        columns=(sentence.columns for sentence in corpus.splits["train"]),
        scheme=corpus.scheme,
    )
    shares = []
    for split, words in all_words.items():
        unknown = sum(not vocabulary.knows(word) for word in words) / len(words)
        shares.append(f"{100 * unknown:.2g} % of {split}")
    lines = [
        *([corpus.note] if corpus.note else []),
        *lines,
        f"words that are not known: {', '.join(shares)}",
    ]
    vectors = vectors_for(path, m.embedding_features, vocabulary.words)
    if vectors is not None:
        found, count = int(vectors.found.sum()), len(vocabulary.words)
        lines.append(f"vectors: {path} has {found:,} of {count:,} words ({100 * found / count:.1f} %)")
    return Dataset(
        corpus.name,
        {**corpus.sizes, "words": len(vocabulary.words)},
        with_vectors(corpus.fingerprint, vectors),
        corpus.source,
        content=corpus,
        vocabulary=vocabulary,
        lines=lines,
    )


def make_tagging(
    spec: ModelSpec,
    settings: TaggerSettings,
    data: Dataset | None,
    vocabulary: TaggerVocabulary,
    scheme: str | None = None,
) -> Tagging:
    """Return the task of a model; `scheme` is that of entity tags, such as BIOES."""
    batch_size, splits, gold = settings.training.batch_size, {}, {}
    index = {tag: i for i, tag in enumerate(vocabulary.tags)}
    unknown = index.get(UNK)
    if data is not None:
        for split in _SPLITS:
            sentences = data.content.splits[split]
            gold[split] = [sentence.tags for sentence in sentences]
            ids = [[index.get(tag, unknown) for tag in tags] for tags in gold[split]]
            splits[split] = tagged_examples(sentences, ids, vocabulary)
        splits = with_buckets(splits, batch_size)
    path, size = settings.data.embeddings, settings.model.embedding_features
    vectors = None if data is None else vectors_for(path, size, vocabulary.words)
    return Tagging(
        splits,
        partial(_make_model, spec, settings, vocabulary, vectors, scheme),
        tags=vocabulary.tags,
        scheme=scheme,
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
    vectors: WordVectors | None,
    scheme: str | None,
    rngs: nnx.Rngs,
) -> Tagger:
    m, recipe = settings.model, _RECIPES[settings.model.recipe]
    count, dtype, characters = vocabulary.num_characters, spec.dtype, []
    how = dict(char_features=_CHAR_FEATURES, dropout=recipe["char_dropout"], dtype=dtype, rngs=rngs)
    if m.characters == "cnn":
        characters.append(CharCNN(count, filters=recipe["filters"], width=_CHAR_WIDTH, **how))
    elif m.characters == "lstm":
        characters.append(CharLSTM(count, features=recipe["filters"], **how))
    if m.affixes:
        characters.append(CharAffixes(count, char_features=_SMALL_FEATURES, count=m.affixes, rngs=rngs))
    options = dict(spec.cell_options)
    if recipe["gain"] != 1.0:
        init = nnx.initializers.variance_scaling(recipe["gain"] ** 2, "fan_in", "normal")
        options = {"kernel_init": init} | options
    has_scheme = scheme is not None and m.output == "crf"
    return Tagger(
        len(vocabulary.words),
        len(vocabulary.tags),
        m.features,
        (F.Previous(),) * (m.num_layers - 1) + (spec.skip,),
        **spec.recurrent_options,
        embedding_features=m.embedding_features,
        word_init=None if vectors is None else partial(_beginning, vectors),
        characters=characters,
        capitals=(len(CAPITALS), recipe["capitals"]) if recipe["capitals"] else None,
        columns=[(size, _COLUMN_FEATURES) for size in vocabulary.column_sizes],
        window=recipe["window"],
        output=m.output,
        allowed=allowed_transitions(vocabulary.tags, scheme) if has_scheme else None,
        dropout=_dropout(m.dropout, m.num_layers),
        unknown_rate=m.unknown_rate,
        num_frequent=vocabulary.num_frequent,
        dtype=dtype,
        cell=options,
        rngs=rngs,
    )


def _dropout(rates: Sequence[float], num_layers: int) -> tuple[float, ...]:
    """Return the dropout rate at each place, bottom first; see `SkipLayers`."""
    inputs, first, between, output = {1: (0, 0, 0, 0), 3: (0, 1, 1, 2), 4: (0, 1, 2, 3)}[len(rates)]
    places = [inputs, *([first] + [between] * (num_layers - 2) if num_layers > 1 else []), output]
    return tuple(rates[place] for place in places)


def _beginning(
    vectors: WordVectors, key: Any, shape: tuple[int, int], dtype: Any = "float32", *_: Any
) -> Any:
    """Return initial embeddings of size d: pretrained vectors, and U(±√(3/d)) for words without one."""
    drawn = by_size(shape[1])(key, shape, dtype)
    return jnp.where(jnp.asarray(vectors.found)[:, None], jnp.asarray(vectors.table, dtype), drawn)


# --- Tables, pictures and texts ---


def metrics(spec: Any, settings: Any, learner: Learner, params: Any, keys: Any) -> dict[str, np.ndarray]:
    """Return precision, recall, F1 and support of each entity type or each frequent tag."""
    found = {}
    for split in ("dev", "test"):
        rows = [learner.task.label_metrics(split, of) for of in learner.predictions(params, split, keys)]
        found |= {f"{split}_{name}": np.array([row[name] for row in rows]) for name in rows[0]}
    return found


def draw(
    spec: ModelSpec, settings: Any, learner: Learner, params: Any, keys: Any, folder: Path, member: int
) -> None:
    """Log the scores of each type or tag on dev; draw the confusion matrix, and skips at each tag."""
    task, has_entities = learner.task, learner.task.scheme is not None
    predictions, what = learner.predictions(params, "dev", keys)[member], "type" if has_entities else "tag"
    seed = spec.all_seeds[member]
    logger.info("%s: scores on dev, seed %d", spec.name, seed)
    for line in task.score_labels("dev", predictions).lines(what):  # a record is one line
        logger.info("%s", line)
    both = (task.gold["dev"], task.predicted_tags(predictions))
    truth, predicted = (word_labels(tags, has_entities=has_entities) for tags in both)
    title = f"{spec.name}: predicted {what}s of words on dev, seed {seed}"
    plots.confusion(truth, predicted, folder / "confusion.png", title)
    for direction, layer in learner.top_layers.items() if spec.skip.has_agent else ():
        counts = np.zeros((len(task.tags), spec.skip.max_skip), np.int64)
        for batch, chosen in learner.choices(params, "dev", keys, layer=layer):
            inside = np.arange(batch.targets.shape[1]) < batch.seq_lengths[:, None]
            where = inside & batch.mask[:, None]
            np.add.at(counts, (batch.targets[where], chosen[member][where] - 1), 1)
        rows = np.argsort(-counts.sum(axis=1), kind="stable")[:_MOST_ROWS]
        rows = rows[counts[rows].any(axis=1)]  # tags that never occur are left out
        plots.action_distribution(
            counts[rows],
            folder / f"skips_by_tag_{direction}.png",
            f"{spec.name}: how far the {direction} layer reaches at words with each tag",
            note=f"dev, greedy, the most frequent tags, seed {learner.seeds[member]}",
            rows=[task.tags[row] for row in rows],
        )


def tokenize(vocabulary: TaggerVocabulary, text: str) -> str:
    """Separate the words of a text by spaces; case is kept, because the model reads characters unchanged."""
    return " ".join(treebank_words(text, lowercase=False))


def encode(settings: Any, vocabulary: TaggerVocabulary, text: str) -> tuple[TokenIds, list[str]]:
    """Return the ids of the words of a text, and the words: unknown ones are read by characters."""
    words = text.split()
    return vocabulary.encode(words), words


def read(trained: Any, text: str) -> Reading:
    """Read a text; `probabilities` are the marginal probabilities of each word's tag."""
    vocabulary = trained.vocabulary
    inputs, words = encode(trained.settings, vocabulary, text)
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


def written(tags: Sequence[str], own: str | None, scheme: str = "BIO2") -> list[str]:
    """Convert tags to what users see: entity tags (of the scheme `own`) in `scheme`, others as is."""
    return list(tags) if own is None else convert_tags(tags, scheme)
