"""Labelled texts of your own, and the model that classifies them."""

from typing import Any

from dynskip_jax import hooks
from dynskip_jax.data.labelled import find_labelled_text
from dynskip_jax.data.sentences import review_words as split
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import Dataset
from dynskip_jax.experiments.sentence_task import load_sentences
from dynskip_jax.experiments.sentence_task import make_classification as make_task

__all__ = ["draw", "load", "make_task", "split"]


def load(settings: Any) -> Dataset:
    """Load the texts."""
    data = settings.data
    if data.data is None:
        raise UserError(
            "there are no texts to classify: give --data, a folder or a file of labelled texts"
        )
    found = find_labelled_text(
        data.data,
        text=data.text_column,
        label=data.label_column,
        header={"auto": None, "yes": True, "no": False}[data.header],
        delimiter=data.delimiter,
        share=data.dev_share,
        strict=data.strict,
    )
    lines = [*found.notes, found.about]
    return load_sentences(
        found.name, found.labelled(split), found.source, settings, found.classes, lines
    )


def draw(trained: Any) -> None:
    """Draw the usual, log the scores of each class on test, and draw the confusion matrix."""
    hooks.draw(trained)
    task = trained.learner.task
    predictions = trained.learner.predictions(trained.all_params, "test", trained.keys)[
        trained.member
    ]
    both = (task.splits["test"].targets, predictions)
    hooks.draw_confusion(
        trained, "test", "class", *([[task.class_names[i] for i in ids]] for ids in both)
    )
