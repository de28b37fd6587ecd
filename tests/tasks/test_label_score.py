"""Check label scores on hand-counted cases, and against conlleval (version 2004-01-26) on one of
them.
"""

import numpy as np
import pytest

from dynskip_jax.tasks.label_score import LabelCounts, score_labels


@pytest.mark.parametrize(
    "gold, predicted, expected",  # (correct, predicted, gold)
    [
        ("B-X B-X O B-Y", "B-X B-X O B-Y", (3, 3, 3)),
        ("I-X B-X I-X I-Y", "S-X B-X E-X S-Y", (3, 3, 3)),  # IOB1 against BIOES
        ("B-X B-X", "B-X I-X", (0, 1, 2)),  # adjacent entities of one type, predicted as one
        ("B-X I-X I-X", "B-X I-Y I-Y", (0, 2, 1)),
        ("B-X I-X O", "B-Y I-Y O", (0, 1, 1)),
        ("B-X I-X O", "B-X O O", (0, 1, 1)),
        ("B-X O B-Y", "U-X O L-Y", (2, 2, 2)),  # tags of no scheme
        ("O O", "O O", (0, 0, 0)),
    ],
)
def test_entities_counted_by_hand(gold, predicted, expected):
    def overall(gold, predicted):
        return score_labels([gold.split()], [predicted.split()], has_entities=True).overall

    correct, found, true = expected
    assert overall(gold, predicted) == expected and overall(predicted, gold) == (
        correct,
        true,
        found,
    )


# For these sentences the script prints: found: 9 phrases; correct: 5; precision: 55.56%; recall:
# 62.50%; FB1: 58.82; and for each type, with the number found:
SCRIPT = {
    "LOC": (100.0, 66.67, 80.0, 2),
    "MISC": (0.0, 0.0, 0.0, 1),
    "ORG": (100.0, 100.0, 100.0, 1),
    "PER": (40.0, 66.67, 50.0, 5),
}
GOLD = ["I-PER I-PER O I-LOC B-LOC O", "B-PER O B-ORG I-ORG O", "I-LOC I-MISC O I-PER I-PER"]
PREDICTED = [
    "I-PER B-PER O I-LOC B-LOC O",
    "I-PER O I-ORG I-ORG O",
    "I-PER I-MISC I-MISC B-PER I-PER",
]


def test_by_type_and_as_the_script_prints_it():
    gold, predicted = [tags.split() for tags in GOLD], [tags.split() for tags in PREDICTED]
    score = score_labels(gold, predicted, has_entities=True)
    assert score.overall == (5, 9, 8) and list(score.by_label) == list(SCRIPT)
    printed = [
        [100 * counts.precision, 100 * counts.recall, 100 * counts.f1, counts.predicted]
        for counts in (*score.by_label.values(), score.overall)
    ]
    np.testing.assert_allclose(printed, [*SCRIPT.values(), (55.56, 62.5, 58.82, 9)], atol=0.005)
    for nothing in (LabelCounts(0, 0, 0), LabelCounts(0, 0, 3), LabelCounts(0, 3, 0)):
        assert nothing.precision == nothing.recall == nothing.f1 == 0.0


def test_words_of_each_tag():
    gold, predicted = [["N", "V", "N"], [], ["D"]], [["N", "N", "N"], [], ["X"]]
    score = score_labels(gold, predicted, has_entities=False)
    assert score.by_label == {"D": (0, 0, 1), "N": (2, 3, 2), "V": (0, 0, 1), "X": (0, 1, 0)}
    assert score.overall.f1 == 0.5 and score.macro_f1 == pytest.approx(0.8 / 4)
    assert score_labels([], [], has_entities=False).macro_f1 == 0
