"""Compute precision, recall and F1 of entities or chunks, counted as in `conlleval`, or of each tag."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from dynskip_jax.analysis.statistics import confusion_matrix, table_text
from dynskip_jax.data.tag_schemes import entities

Tags = Sequence[str]


class EntityCounts(NamedTuple):
    """Numbers of entities (or of words with a tag), and their scores.

    Attributes:
        correct: Number of entities predicted with the right words and type.
        predicted: Number of predicted entities.
        gold: Number of entities in the gold standard.
    """

    correct: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        """Fraction of predicted entities that are correct, from 0 to 1; 0 if none are predicted."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Fraction of gold entities that are found, from 0 to 1; 0 if there are none."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, from 0 to 1; 0 if both are 0."""
        total = self.predicted + self.gold
        return 2 * self.correct / total if total else 0.0


class EntityScore(NamedTuple):
    """Score over all sentences.

    Attributes:
        overall: Counts over all types.
        by_type: Counts of each type (or tag) that is predicted or in the gold standard, in sorted order.
        correct_tags: Number of words with the gold tag.
        words: Number of words.
    """

    overall: EntityCounts
    by_type: dict[str, EntityCounts]
    correct_tags: int
    words: int

    @property
    def accuracy(self) -> float:
        """Fraction of words with the gold tag, from 0 to 1; 0 if there are no words."""
        return self.correct_tags / self.words if self.words else 0.0

    def text(self, label: str = "type") -> str:
        """Return a text table with precision, recall, F1 and support of each type and of all types.

        Args:
            label: Heading of the first column.
        """
        rows = [[label, "precision", "recall", "F1", "support"]]
        for name, counts in {**self.by_type, "all": self.overall}.items():
            scores = (f"{score:.2%}" for score in (counts.precision, counts.recall, counts.f1))
            rows.append([name, *scores, f"{counts.gold:,}"])
        return table_text(rows)


def entity_score(gold: Sequence[Tags], predicted: Sequence[Tags]) -> EntityScore:
    """Return the scores that `conlleval` prints, as fractions instead of percentages.

    An entity is correct if its first word, its last word and its type are correct. `gold` and `predicted` may
    be in IOB1, BIO2 or BIOES, and in different schemes. Tags that break the rules of a scheme are read as
    `conlleval` reads them; see `data.tag_schemes.entities`. Accuracy compares the tags directly, so both
    arguments have to be in the same scheme. Published accuracies are for BIO2.

    Args:
        gold: True tags of each sentence.
        predicted: Predicted tags of each sentence.

    Raises:
        ValueError: If the numbers of sentences, or of tags in a sentence, differ.
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
    """Return precision, recall and F1 of each tag over the words; the overall F1 is the accuracy.

    Args:
        gold: True tags of each sentence.
        predicted: Predicted tags of each sentence.

    Raises:
        ValueError: If the numbers of sentences, or of tags in a sentence, differ.
    """
    pairs = Counter(
        pair for both in _pairs(gold, predicted) for pair in zip(*both, strict=True)
    )  # number of words for each (gold, predicted)
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
    """Return the confusion matrix of the words, and its labels; rows are true, columns predicted labels.

    Args:
        gold: True tags of each sentence.
        predicted: Predicted tags of each sentence.
        has_entities: Whether a word's label is the type of its entity, or `O`; otherwise it is the tag.

    Raises:
        ValueError: If the numbers of sentences, or of tags in a sentence, differ.
    """
    pairs = [pair for both in _pairs(gold, predicted) for pair in zip(*both, strict=True)]
    if has_entities:
        pairs = [(_label(a), _label(b)) for a, b in pairs]
    labels = tuple(sorted({label for pair in pairs for label in pair}))
    index = {label: i for i, label in enumerate(labels)}
    ids = np.array([[index[a], index[b]] for a, b in pairs], np.int64).reshape(-1, 2)
    return confusion_matrix(ids[:, 0], ids[:, 1], len(labels)), labels


def _label(tag: str) -> str:
    """Return the type of a word's entity, `entity` if tags have no types, or `O`."""
    return "O" if tag == "O" else tag.partition("-")[2] or "entity"


def entity_counts(gold: Sequence[Tags], predicted: Sequence[Tags]) -> Int[np.ndarray, "sentences 3"]:
    """Return the numbers of correct, predicted and gold entities of each sentence, for `analysis.statistics`.

    Args:
        gold: True tags of each sentence.
        predicted: Predicted tags of each sentence.

    Raises:
        ValueError: If the numbers of sentences, or of tags in a sentence, differ.
    """
    rows = []
    for gold_tags, predicted_tags in _pairs(gold, predicted):
        true, found = set(entities(gold_tags)), set(entities(predicted_tags))
        rows.append((len(true & found), len(found), len(true)))
    return np.array(rows, np.int64).reshape(-1, 3)


def tag_counts(gold: Sequence[Tags], predicted: Sequence[Tags]) -> Int[np.ndarray, "sentences 2"]:
    """Return the number of words with the right tag, and the number of words, of each sentence.

    Args:
        gold: True tags of each sentence.
        predicted: Predicted tags of each sentence.

    Raises:
        ValueError: If the numbers of sentences, or of tags in a sentence, differ.
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
