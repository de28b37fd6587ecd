"""Labelled texts of your own, and the model that classifies them."""

import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from typing_extensions import override

from dynskip_jax.config.experiment import Dataset
from dynskip_jax.data.labelled import find_labelled_text
from dynskip_jax.data.sentences import review_words
from dynskip_jax.data.tables import DELIMITERS
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.sentence_task import TextClassification, load_sentences
from dynskip_jax.terminal.console import say


class LabelledTexts(TextClassification):
    """Classify texts of your own."""

    @override
    @staticmethod
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
        )
        texts = found.labelled(review_words)
        lines = [*found.notes, found.about]
        return load_sentences(found.name, texts, found.source, settings, found.classes, lines)

    @override
    def split(self, text: str) -> list[str]:
        return review_words(text)

    @override
    def predict_lines(
        self, trained: Any, lines: Iterable[str], format: str, score: bool
    ) -> Iterator[tuple[str, bool]]:
        lines = iter(lines)
        first = list(itertools.islice(lines, 1))
        data = trained.settings.data
        if first and _begins_table(first[0], data.text_column, data.label_column):
            say(
                "standard input looks like a table, all of which is read as text: write only its "
                f"column {data.text_column}, one text per line, without the header",
                sys.stderr,
            )
        yield from super().predict_lines(trained, itertools.chain(first, lines), format, score)

    @override
    def draw(self, trained: Any) -> None:
        """Draw the usual, log the scores of each class on test, and draw the confusion matrix."""
        from dynskip_jax.tasks.pictures import draw_confusion

        super().draw(trained)
        of_all = trained.learner.predictions(trained.all_params, "test", trained.keys)
        both = (self.splits["test"].targets, of_all[trained.member])
        # Each text counts as one "word" of one long sentence.
        names = ([[self.class_names[i] for i in ids]] for ids in both)
        draw_confusion(trained, "test", "class", *names)


def _begins_table(line: str, text: str, label: str) -> bool:
    """Return whether a line is a header with the column of texts, or JSON with its key."""
    if line.lstrip().startswith("{"):
        return re.search(rf'"{re.escape(text)}"\s*:', line) is not None
    if text.isdigit():  # a column without a name
        return False
    for mark in DELIMITERS.values():
        names = [name.strip('"').strip() for name in line.strip("\ufeff\r\n ").split(mark)]
        if text in names and (label in names or len(names) == 1):
            return True
    return False
