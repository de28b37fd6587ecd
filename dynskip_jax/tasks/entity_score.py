"""Precision, recall and F1 of entities or chunks, as the CoNLL shared tasks' `conlleval` counts them."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.tag_schemes import entities

Tags = Sequence[str]


class EntityCounts(NamedTuple):
    """How many entities there are, and what follows from that.

    Attributes:
        correct: predicted with the right words and type.
        predicted: predicted.
        gold: in the gold standard.
    """

    correct: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        """The share of predicted entities that are correct, from 0 to 1; 0 where there are none."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """The share of gold entities that are found, from 0 to 1; 0 where there are none."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, from 0 to 1; 0 where both are 0."""
        total = self.predicted + self.gold
        return 2 * self.correct / total if total else 0.0


class EntityScore(NamedTuple):
    """The score of all sentences.

    Attributes:
        overall: the counts of all types together.
        by_type: those of each type that is predicted or in the gold standard, types in sorted order.
        correct_tags: words whose tag is the gold one.
        words: words altogether.
    """

    overall: EntityCounts
    by_type: dict[str, EntityCounts]
    correct_tags: int
    words: int

    @property
    def accuracy(self) -> float:
        """The share of words whose tag is the gold one, from 0 to 1; 0 where there are none."""
        return self.correct_tags / self.words if self.words else 0.0


def entity_score(gold: Sequence[Tags], predicted: Sequence[Tags]) -> EntityScore:
    """The score that `conlleval` prints, as shares of 1 where it has percents.

    An entity is correct where its first and last word and its type are. Both sides may be in IOB1, BIO2 or
    BIOES, and need not be in the same scheme; tags that break the rules are read as `conlleval` reads them
    (`data.tag_schemes.entities`, which says how). Accuracy compares tags as they stand: it asks for one
    scheme on both sides, and BIO2 for the number that others report.

    Args:
        gold: the true tags of each sentence.
        predicted: as many tags for the same sentences.

    Raises:
        ValueError: the numbers of sentences, or of a sentence's tags, differ.
    """
    correct, found, true = Counter(), Counter(), Counter()
    for gold_tags, predicted_tags in _pairs(gold, predicted):
        gold_entities, predicted_entities = set(entities(gold_tags)), set(entities(predicted_tags))
        correct.update(entity.kind for entity in gold_entities & predicted_entities)
        found.update(entity.kind for entity in predicted_entities)
        true.update(entity.kind for entity in gold_entities)
    kinds = sorted(found.keys() | true.keys())
    return EntityScore(
        EntityCounts(correct.total(), found.total(), true.total()),
        {kind: EntityCounts(correct[kind], found[kind], true[kind]) for kind in kinds},
        int(tag_counts(gold, predicted)[:, 0].sum()),
        sum(map(len, gold)),
    )


def entity_counts(gold: Sequence[Tags], predicted: Sequence[Tags]) -> Int[np.ndarray, "sentences 3"]:
    """Correct, predicted and gold entities of each sentence: what `analysis.bootstrap` draws from.

    Args:
        gold: the true tags of each sentence.
        predicted: as many tags for the same sentences.

    Raises:
        ValueError: the numbers of sentences, or of a sentence's tags, differ.
    """
    rows = []
    for gold_tags, predicted_tags in _pairs(gold, predicted):
        true, found = set(entities(gold_tags)), set(entities(predicted_tags))
        rows.append((len(true & found), len(found), len(true)))
    return np.array(rows, np.int64).reshape(-1, 3)


def tag_counts(gold: Sequence[Tags], predicted: Sequence[Tags]) -> Int[np.ndarray, "sentences 2"]:
    """Words with the right tag, and words, of each sentence.

    Args:
        gold: the true tags of each sentence.
        predicted: as many tags for the same sentences.

    Raises:
        ValueError: the numbers of sentences, or of a sentence's tags, differ.
    """
    rows = [(sum(map(str.__eq__, a, b)), len(a)) for a, b in _pairs(gold, predicted)]
    return np.array(rows, np.int64).reshape(-1, 2)


def _pairs(gold: Sequence[Tags], predicted: Sequence[Tags]) -> list[tuple[Tags, Tags]]:
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} sentences have gold tags, and {len(predicted)} predicted ones")
    for number, (a, b) in enumerate(zip(gold, predicted, strict=True), 1):
        if len(a) != len(b):
            raise ValueError(f"sentence {number} has {len(a)} gold tags, and {len(b)} predicted ones")
    return list(zip(gold, predicted, strict=True))
