"""Compute precision, recall and F1 of entities, as `conlleval` does, or of tags and classes."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dynskip_jax.data.tag_schemes import Entity, entities

Tags = Sequence[Any]  # of a sentence


class LabelCounts(NamedTuple):
    """Numbers of entities, or of words with a tag, and scores in [0, 1]; 0 where undefined."""

    correct: int  # predicted with the right words and label
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        """Fraction of predicted entities that are correct."""
        return self.correct / max(1, self.predicted)

    @property
    def recall(self) -> float:
        """Fraction of gold entities that are found."""
        return self.correct / max(1, self.gold)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.correct / max(1, self.predicted + self.gold)


class LabelScore(NamedTuple):
    """Counts over all labels, and those of each label, predicted or true, sorted."""

    overall: LabelCounts
    by_label: dict[Any, LabelCounts]

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the labels; 0 if there are none."""
        if not self.by_label:
            return 0.0
        return float(np.mean([counts.f1 for counts in self.by_label.values()]))


def score_labels(
    gold: Sequence[Tags], predicted: Sequence[Tags], *, has_entities: bool
) -> LabelScore:
    """Return the score over all sentences.

    With `has_entities`, an entity is correct if its first word, its last word and its type are
    correct, as in `conlleval`. `gold` and `predicted` may be in different schemes; see
    `data.tag_schemes.entities`. Otherwise each word counts with its tag, and the overall F1 is the
    accuracy.
    """
    correct = Counter()
    found = Counter()
    true = Counter()
    for ours, theirs in zip(gold, predicted, strict=True):
        right = _spans(ours, has_entities)
        said = _spans(theirs, has_entities)
        correct.update(span.kind for span in right & said)
        found.update(span.kind for span in said)
        true.update(span.kind for span in right)
    by_label = {
        kind: LabelCounts(correct[kind], found[kind], true[kind])
        for kind in sorted({**found, **true})
    }
    return LabelScore(LabelCounts(correct.total(), found.total(), true.total()), by_label)


def _spans(tags: Tags, has_entities: bool) -> set[Entity]:
    """Return the entities of a sentence, or its words with their tags."""
    if has_entities:
        return set(entities(tags))
    return {Entity(tag, at, at + 1) for at, tag in enumerate(tags)}
