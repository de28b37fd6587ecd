"""Precision, recall and F1 of entities or chunks, as `conlleval` counts them, or of the words of each tag."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from dynskip_jax.analysis.confusion import confusion_matrix, table_text
from dynskip_jax.data.tag_schemes import entities

Tags = Sequence[str]


class EntityCounts(NamedTuple):
    """How many entities (or words of a tag) there are, and the scores that follow.

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
        by_type: those of each type (or tag) that is predicted or in the gold standard, in sorted order.
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

    def text(self, label: str = "type") -> str:
        """Return a table as lines of text: precision, recall, F1 and support of each type, and of all.

        Args:
            label: the heading of the first column.
        """
        rows = [[label, "precision", "recall", "F1", "support"]]
        for name, counts in {**self.by_type, "all": self.overall}.items():
            scores = (f"{score:.2%}" for score in (counts.precision, counts.recall, counts.f1))
            rows.append([name, *scores, f"{counts.gold:,}"])
        return table_text(rows)


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


def tag_score(gold: Sequence[Tags], predicted: Sequence[Tags]) -> EntityScore:
    """Return the score of words: precision, recall and F1 of each tag; the overall F1 is the accuracy.

    Args:
        gold: the true tags of each sentence.
        predicted: as many tags for the same sentences.

    Raises:
        ValueError: the numbers of sentences, or of a sentence's tags, differ.
    """
    pairs = Counter(
        pair for both in _pairs(gold, predicted) for pair in zip(*both, strict=True)
    )  # from (gold, predicted) to words
    true, found = Counter(), Counter()
    for (gold_tag, predicted_tag), count in pairs.items():
        true[gold_tag] += count
        found[predicted_tag] += count
    by_tag = {
        tag: EntityCounts(pairs[tag, tag], found[tag], true[tag])
        for tag in sorted(true.keys() | found.keys())
    }
    correct = sum(counts.correct for counts in by_tag.values())
    return EntityScore(EntityCounts(correct, pairs.total(), pairs.total()), by_tag, correct, pairs.total())


def tag_confusion(
    gold: Sequence[Tags], predicted: Sequence[Tags], *, has_entities: bool
) -> tuple[Int[np.ndarray, "labels labels"], tuple[str, ...]]:
    """Return how many words with the label of the row are predicted with that of the column, and the labels.

    Args:
        gold: the true tags of each sentence.
        predicted: as many tags for the same sentences.
        has_entities: whether a word's label is the type of its entity, or `O`; otherwise it is its tag.

    Raises:
        ValueError: the numbers of sentences, or of a sentence's tags, differ.
    """
    pairs = [pair for both in _pairs(gold, predicted) for pair in zip(*both, strict=True)]
    if has_entities:
        pairs = [(_label(a), _label(b)) for a, b in pairs]
    labels = tuple(sorted({label for pair in pairs for label in pair}))
    index = {label: i for i, label in enumerate(labels)}
    ids = np.array([[index[a], index[b]] for a, b in pairs], np.int64).reshape(-1, 2)
    return confusion_matrix(ids[:, 0], ids[:, 1], len(labels)), labels


def _label(tag: str) -> str:
    """Return the type of a word's entity, `entity` where tags have no types, or `O`."""
    return "O" if tag == "O" else tag.partition("-")[2] or "entity"


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
