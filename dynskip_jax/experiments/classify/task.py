"""Labelled texts of your own, and the model that classifies them."""

from typing import Any

from dynskip_jax import hooks
from dynskip_jax.data.labelled import find_labelled_text
from dynskip_jax.data.sentences import review_words as split
from dynskip_jax.data.sentences import sentence_corpus
from dynskip_jax.data.vocabularies import ClassVocabulary
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import Dataset
from dynskip_jax.experiments.sentence_task import dataset_of, make_classification, reading_options
from dynskip_jax.tasks import Classification
from dynskip_jax.tasks.label_score import score_labels

__all__ = ["draw", "load", "make_task", "split"]


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
    how = dict(max_length=data.max_length, **reading_options(settings))
    corpus = sentence_corpus(found.name, found.labelled(split), found.source, **how)
    vocabulary = ClassVocabulary(corpus.vocabulary.tokens, found.classes)
    lines = [*found.notes, found.about, corpus.about]
    return dataset_of(corpus, settings, vocabulary=vocabulary, lines=lines)


def make_task(spec: Any, settings: Any, data: Dataset | None, vocabulary: Any) -> Classification:
    """Return the task of a model."""
    return make_classification(spec, settings, data, vocabulary, vocabulary.classes)


def draw(trained: Any) -> None:
    """Draw the usual, log the scores of each class on test, and draw the confusion matrix."""
    hooks.draw(trained)
    task = trained.learner.task
    predictions = trained.learner.predictions(trained.all_params, "test", trained.keys)[trained.member]
    both = (task.splits["test"].targets, predictions)
    truth, predicted = ([task.class_names[i] for i in ids] for ids in both)
    score = score_labels([truth], [predicted], has_entities=False)
    hooks.draw_confusion(trained, "class", "test", score, truth, predicted)
