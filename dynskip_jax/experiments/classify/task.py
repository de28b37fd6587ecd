"""Labelled texts of your own, and the model that classifies them."""

from typing import Any

from typing_extensions import override

from dynskip_jax.config.experiment import Dataset
from dynskip_jax.data.labelled import find_labelled_text, labelled_words
from dynskip_jax.data.sentences import review_words
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.sentence_task import TextClassification, load_sentences


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
            share=data.dev_share,
        )
        texts = {
            split: labelled_words(own, review_words, found.classes)
            for split, own in found.splits.items()
        }
        about = (found.name, texts, found.source)
        return load_sentences(*about, settings, found.classes, [found.about])

    @override
    def split(self, text: str) -> list[str]:
        return review_words(text)
