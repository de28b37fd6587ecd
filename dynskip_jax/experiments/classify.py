"""Your own texts with a class each: any labels, from TSV, CSV, JSON lines, or one folder per class.

    python -m experiments.classify --data DIR
    python -m experiments.classify --data reviews.csv --text-column review --label-column stars
    python -m experiments.classify predict --run-dir DIR < texts.txt
    python -m experiments.classify explain --run-dir DIR --text "not as bad as they say"

DIR holds files for train, dev and test in the usual names (train.tsv, valid.csv, test.jsonl …), folders of
these names with a folder per class, or a folder per class; a single file works, too. Missing splits are drawn
from train, the same share of each class. Presets: `small` (64 units, mean of the states, for two cores),
`strong` (200 units in both directions, maximum over the states).

Accuracy stands beside macro F1 and beside the accuracy of always predicting the most frequent class. A table
and a picture show which classes are confused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dynskip_jax.errors import UserError
from dynskip_jax.experiments import shared_settings as shared
from dynskip_jax.experiments.imdb import PRESETS as IMDB_PRESETS
from dynskip_jax.experiments.model_spec import ModelSpec
from dynskip_jax.experiments.sentences import ClassifierExperiment, ClassifierSettings, SentenceData
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import setting

if TYPE_CHECKING:
    from dynskip_jax.data.sentences import SentenceCorpus
    from dynskip_jax.data.vocabularies import ClassVocabulary
    from dynskip_jax.tasks import Learner

class_vocabulary = LazyModule("dynskip_jax.data.vocabularies")
statistics = LazyModule("dynskip_jax.analysis.statistics")
confusion_tables = LazyModule("dynskip_jax.experiments.confusion")
labelled_text = LazyModule("dynskip_jax.data.labelled")
sentence_data = LazyModule("dynskip_jax.data.sentences")

_MOST_CLASSES = 12  # number of classes whose text counts are printed

PRESETS: dict[str, dict[str, Any]] = {name: IMDB_PRESETS[name] for name in ("small", "strong")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifyData(SentenceData):
    """The texts."""

    text_column: str = setting("text", "Column or JSON key of the texts: a name, or a number from 0.")
    label_column: str = setting("label", "Column or JSON key of the classes.")
    header: Literal["auto", "yes", "no"] = setting(
        "auto", "Whether the first line of TSV and CSV names the columns; auto: if columns have names."
    )
    split_seed: int = shared.split_seed(0)
    dev_share: float = setting(
        0.1, "Fraction of the texts that becomes dev, if there is none.", above=0, below=1
    )
    test_share: float = setting(
        0.1, "Fraction of the texts that becomes test, if there is none.", above=0, below=1
    )
    max_length: int = shared.max_length(400)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifySettings(ClassifierSettings):
    """All settings of classifiers of your own texts."""

    data: ClassifyData = dataclasses.field(default_factory=ClassifyData)


@dataclasses.dataclass(frozen=True)
class ClassifyCorpus:
    """Texts as ids, with the names of their classes and a description.

    Attributes:
        corpus: Texts as ids.
        vocabulary: Words and classes.
        fingerprint: SHA-256 (hex) over the texts and classes of all splits.
        lines: Lines that are printed before training.
    """

    corpus: SentenceCorpus
    vocabulary: ClassVocabulary
    fingerprint: str
    lines: Sequence[str]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.corpus, name)


class Classify(ClassifierExperiment):
    """See `Experiment`."""

    name = "classify"
    settings_type = ClassifySettings
    presets = PRESETS
    default_model = "dynamic:3"
    commands = ("predict", "explain", "oracle")
    columns = {  # noqa: RUF012 (read only)
        "dev_accuracy": ("dev accuracy", ".2%"),
        "test_accuracy": ("test accuracy", ".2%"),
        "test_macro_f1": ("test macro F1", ".2%"),
        "test_accuracy_averaged": ("test, averaged", ".2%"),
        "test_read_fraction": ("words read", ".1%"),
    }
    sample_text = "not as bad as they say"
    has_macro_f1 = True

    def load_data(self) -> ClassifyCorpus:
        """See `Experiment`."""
        data = self.settings.data
        if data.data is None:
            raise UserError(
                "there are no texts to classify: give --data, a folder or a file of labelled texts"
            )
        found = labelled_text.find_labelled_text(
            data.data,
            split_seed=data.split_seed,
            text=data.text_column,
            label=data.label_column,
            header={"auto": None, "yes": True, "no": False}[data.header],
            dev_share=data.dev_share,
            test_share=data.test_share,
        )
        corpus = sentence_data.labelled_corpus(
            found.name,
            found.labelled(self.split),
            found.source,
            min_count=data.min_count,
            max_words=data.max_words,
            max_length=data.max_length,
            buckets=data.buckets,
            batch_size=self.settings.training.batch_size,
            known=self.known,
        )
        vocabulary = class_vocabulary.ClassVocabulary(corpus.vocabulary.tokens, found.classes)
        lines = [*found.notes, found.about, corpus.about, _balance(found.class_counts)]
        return ClassifyCorpus(corpus, vocabulary, found.fingerprint, lines)

    def describe_data(self, data: ClassifyCorpus) -> Sequence[str]:
        """See `Experiment`."""
        return data.lines

    def vocabulary_type(self) -> type[ClassVocabulary]:
        """See `Experiment`."""
        return class_vocabulary.ClassVocabulary

    def class_names(self, vocabulary: ClassVocabulary) -> tuple[str, ...]:
        """See `ClassifierExperiment`."""
        return vocabulary.classes

    def split(self, text: str) -> list[str]:
        """See `Experiment`."""
        return sentence_data.review_words(text)

    @property
    def max_length(self) -> int:
        """See `ClassifierExperiment`."""
        return self.settings.data.max_length

    def draw(
        self, spec: ModelSpec, learner: Learner, params: Any, keys: Any, folder: Path, member: int
    ) -> None:
        """See `Experiment`; also draw and log the confusion matrix of test."""
        super().draw(spec, learner, params, keys, folder, member)
        examples, classes = learner.task.splits["test"], learner.task.class_names
        predicted = np.asarray(learner.predictions(params, "test", keys)[member])
        matrix = statistics.confusion_matrix(np.asarray(examples.targets), predicted, len(classes))
        confusion_tables.show_confusion(matrix, classes, folder, spec, member, split="test")


def _balance(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Return a line with the number of texts of each class of train, for the first classes only."""
    shown = [f"{name} {count:,}" for name, count in list(counts["train"].items())[:_MOST_CLASSES]]
    more = len(counts["train"]) - len(shown)
    return f"classes of train: {', '.join(shown)}" + (f", and {more} more" if more > 0 else "")


if __name__ == "__main__":
    from dynskip_jax.experiments.__main__ import run_file

    run_file(__file__)
