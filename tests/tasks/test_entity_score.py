"""Check the entity score on hand-counted cases, and against conlleval (version 2004-01-26) on one of them."""

import numpy as np
import pytest

from dynskip_jax.analysis.statistics import merge_rare
from dynskip_jax.tasks.entity_score import (
    EntityCounts,
    entity_counts,
    entity_score,
    tag_confusion,
    tag_counts,
    tag_score,
)


def overall(gold, predicted):
    return tuple(entity_score([gold.split()], [predicted.split()]).overall)


@pytest.mark.parametrize(
    "gold, predicted, expected",  # (correct, predicted, gold)
    [
        # IOB1, BIO2 and BIOES, all correct; also one scheme against another.
        ("I-X B-X O I-Y", "I-X B-X O I-Y", (3, 3, 3)),
        ("B-X B-X O B-Y", "B-X B-X O B-Y", (3, 3, 3)),
        ("S-X B-X E-X S-Y", "S-X B-X E-X S-Y", (3, 3, 3)),
        ("I-X B-X I-X I-Y", "S-X B-X E-X S-Y", (3, 3, 3)),
        # Adjacent entities of one type, predicted as one.
        ("B-X B-X", "B-X I-X", (0, 1, 2)),
        ("B-X E-X B-X E-X", "B-X I-X I-X E-X", (0, 1, 2)),
        # An E ends an entity before a following B.
        ("B-X E-X B-X E-X", "B-X E-X B-X E-X", (2, 2, 2)),
        # I after O begins an entity.
        ("O B-X I-X", "O I-X I-X", (1, 1, 1)),
        # A change of type inside: two entities.
        ("B-X I-X I-X", "B-X I-Y I-Y", (0, 2, 1)),
        ("B-X I-Y", "B-X B-Y", (2, 2, 2)),
        # Right words, wrong type; right type, one word short, one too many.
        ("B-X I-X O", "B-Y I-Y O", (0, 1, 1)),
        ("B-X I-X O", "B-X O O", (0, 1, 1)),
        ("B-X I-X O", "B-X I-X I-X", (0, 1, 1)),
        # Tags that do not parse.
        ("B-X O B-Y", "U-X O L-Y", (2, 2, 2)),
        ("B-X O", "X O", (0, 0, 1)),
        # No entities in one or both.
        ("O O", "O O", (0, 0, 0)),
        ("O O", "O B-X", (0, 1, 0)),
        ("B-X O", "O O", (0, 0, 1)),
    ],
)
def test_counted_by_hand(gold, predicted, expected):
    assert overall(gold, predicted) == expected
    correct, found, true = expected
    assert overall(predicted, gold) == (correct, true, found)


# For these sentences the script prints: processed 16 tokens with 8 phrases; found: 9 phrases; correct: 5.
# accuracy: 62.50%; precision: 55.56%; recall: 62.50%; FB1: 58.82; and for each type, with the number found:
SCRIPT = {
    "LOC": (100.0, 66.67, 80.0, 2),
    "MISC": (0.0, 0.0, 0.0, 1),
    "ORG": (100.0, 100.0, 100.0, 1),
    "PER": (40.0, 66.67, 50.0, 5),
}
GOLD = ["I-PER I-PER O I-LOC B-LOC O", "B-PER O B-ORG I-ORG O", "I-LOC I-MISC O I-PER I-PER"]
PREDICTED = ["I-PER B-PER O I-LOC B-LOC O", "I-PER O I-ORG I-ORG O", "I-PER I-MISC I-MISC B-PER I-PER"]


def test_by_type_and_as_the_script_prints_it():
    gold, predicted = [tags.split() for tags in GOLD], [tags.split() for tags in PREDICTED]
    score = entity_score(gold, predicted)
    assert list(score.by_type) == list(SCRIPT)
    for kind, counts in score.by_type.items():
        printed = [100 * counts.precision, 100 * counts.recall, 100 * counts.f1, counts.predicted]
        np.testing.assert_allclose(printed, SCRIPT[kind], atol=0.005)
    assert score.overall == (5, 9, 8) and score.words == 16
    printed = [
        100 * x for x in (score.accuracy, score.overall.precision, score.overall.recall, score.overall.f1)
    ]
    np.testing.assert_allclose(printed, [62.5, 55.56, 62.5, 58.82], atol=0.005)
    np.testing.assert_array_equal(entity_counts(gold, predicted).sum(axis=0), score.overall)
    np.testing.assert_array_equal(tag_counts(gold, predicted).sum(axis=0), (score.correct_tags, score.words))


def test_precision_recall_and_f1():
    counts = EntityCounts(correct=3, predicted=4, gold=6)
    assert counts.precision == 0.75 and counts.recall == 0.5
    assert counts.f1 == pytest.approx(2 * 0.75 * 0.5 / 1.25)
    assert EntityCounts(0, 0, 0)[:] == (0, 0, 0)
    for nothing in (EntityCounts(0, 0, 0), EntityCounts(0, 0, 3), EntityCounts(0, 3, 0)):
        assert nothing.precision == nothing.recall == nothing.f1 == 0.0
    assert entity_score([], []).accuracy == 0.0


def test_counts_of_each_sentence():
    gold = [["B-X", "O"], [], ["O"], ["B-X", "B-X", "B-Y"]]
    predicted = [["B-X", "O"], [], ["B-X"], ["B-X", "I-X", "B-Y"]]
    assert entity_counts(gold, predicted).tolist() == [[1, 1, 1], [0, 0, 0], [0, 1, 0], [1, 2, 3]]
    assert tag_counts(gold, predicted).tolist() == [[2, 2], [0, 0], [0, 1], [2, 3]]
    assert entity_counts([], []).shape == (0, 3) and tag_counts([], []).shape == (0, 2)


def test_words_of_each_tag_and_which_are_confused():
    gold, predicted = [["N", "V", "N"], [], ["D"]], [["N", "N", "N"], [], ["X"]]
    score = tag_score(gold, predicted)
    assert {tag: tuple(counts) for tag, counts in score.by_type.items()} == {
        "D": (0, 0, 1), "N": (2, 3, 2), "V": (0, 0, 1), "X": (0, 1, 0),
    }  # fmt: skip
    assert score.accuracy == score.overall.f1 == 0.5
    assert score.text("tag").splitlines()[2].split() == ["N", "66.67%", "100.00%", "80.00%", "2"]
    matrix, labels = tag_confusion(gold, predicted, has_entities=False)
    assert labels == ("D", "N", "V", "X") and matrix.sum() == 4
    assert matrix[1, 1] == 2 and matrix[2, 1] == 1 and matrix[0, 3] == 1
    matrix, labels = tag_confusion([["B-A", "I-A", "O", "B"]], [["B-A", "O", "O", "B-A"]], has_entities=True)
    assert labels == ("A", "O", "entity") and matrix.tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 0]]


def test_rare_classes_are_merged():
    matrix = np.arange(16).reshape(4, 4)
    merged, names = merge_rare(matrix, "abcd", 3)
    assert names == ("c", "d", "2 others") and merged.sum() == matrix.sum()
    assert merged[0, 1] == matrix[2, 3] and merged[2, 2] == matrix[:2, :2].sum()
    assert merge_rare(matrix, "abcd", 4)[1] == ("a", "b", "c", "d")


def test_what_does_not_belong_together():
    with pytest.raises(ValueError, match="2 sentences have gold tags, and 1 predicted ones"):
        entity_score([["O"], ["O"]], [["O"]])
    with pytest.raises(ValueError, match="sentence 2 has 1 gold tags, and 2 predicted ones"):
        tag_counts([["O"], ["O"]], [["O"], ["O", "O"]])
