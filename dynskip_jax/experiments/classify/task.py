"""Labelled texts of your own, and the model that classifies them."""

import logging
from pathlib import Path
from typing import Any

from dynskip_jax import hooks
from dynskip_jax.analysis import plots
from dynskip_jax.data.labelled import find_labelled_text
from dynskip_jax.data.sentences import review_words, sentence_corpus
from dynskip_jax.data.vocabularies import ClassVocabulary
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import Dataset
from dynskip_jax.experiments.sentence_task import dataset_of, make_classification, reading_options, text_hooks
from dynskip_jax.tasks import Classification, Learner
from dynskip_jax.tasks.label_score import score_labels

logger = logging.getLogger(__name__)


def load(settings: Any) -> Dataset:
    """Load the texts."""
    data = settings.data
    if data.data is None:
        raise UserError("there are no texts to classify: give --data, a folder or a file of labelled texts")
    found = find_labelled_text(
        data.data,
        split_seed=data.split_seed,
        text=data.text_column,
        label=data.label_column,
        header={"auto": None, "yes": True, "no": False}[data.header],
        share=data.dev_share,
    )
    texts = found.labelled(split)
    how = reading_options(settings)
    corpus = sentence_corpus(found.name, texts, found.source, max_length=data.max_length, **how)
    lines = [*found.notes, found.about, corpus.about]
    vocabulary = ClassVocabulary(corpus.vocabulary.tokens, found.classes)
    return dataset_of(corpus, settings, vocabulary=vocabulary, lines=lines)


def make_task(spec: Any, settings: Any, data: Dataset | None, vocabulary: Any) -> Classification:
    """Return the task of a model."""
    return make_classification(spec, settings, data, vocabulary, vocabulary.classes)


def draw(
    spec: Any, settings: Any, learner: Learner, params: Any, keys: Any, folder: Path, member: int
) -> None:
    """Draw the usual, log the scores of each class on test, and draw the confusion matrix."""
    hooks.draw(spec, settings, learner, params, keys, folder, member)
    both = (learner.task.splits["test"].targets, learner.predictions(params, "test", keys)[member])
    truth, predicted = ([learner.task.class_names[i] for i in ids] for ids in both)
    seed = spec.all_seeds[member]
    logger.info("%s: scores on test, seed %d", spec.name, seed)
    for line in score_labels([truth], [predicted], has_entities=False).lines("class"):
        logger.info("%s", line)
    title = f"{spec.name}: predicted classes on test, seed {seed}"
    plots.confusion(truth, predicted, folder / "confusion.png", title)


split = review_words
encode, tokenize, format_prediction = text_hooks(split, lambda vocabulary: vocabulary.classes)
