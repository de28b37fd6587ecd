"""Check the paired bootstrap against all resamples of a few sentences, and its general properties."""

import itertools

import numpy as np
import pytest

from dynskip_jax.analysis.bootstrap import accuracy, f1, paired_bootstrap

# (correct, predicted, gold) of four sentences.
A = np.array([[2, 3, 3], [0, 1, 2], [1, 1, 1], [1, 2, 1]])
B = np.array([[3, 3, 3], [1, 1, 2], [1, 2, 1], [0, 1, 1]])
SAMPLES = 20_000


def f1_of(rows):
    correct, predicted, gold = rows.sum(axis=0)
    return 2 * correct / (predicted + gold) if predicted + gold else 0.0


def accuracy_of(rows):
    correct, words = rows.sum(axis=0)
    return correct / words if words else 0.0


def all_differences(counts_a, counts_b, score_of):
    """Return the score difference, B minus A, of each of the equally likely resamples."""
    places = itertools.product(range(len(counts_a)), repeat=len(counts_a))
    return np.array([score_of(counts_b[list(i)]) - score_of(counts_a[list(i)]) for i in places])


@pytest.mark.parametrize(
    "a, b, score, score_of", [(A, B, f1, f1_of), (A[:, [0, 2]], B[:, [0, 2]], accuracy, accuracy_of)]
)
def test_it_is_the_share_of_all_resamples(a, b, score, score_of):
    exact = all_differences(a, b, score_of)
    observed = score_of(b) - score_of(a)
    p = np.mean(np.abs(exact - observed) >= abs(observed) - 1e-12)
    assert 0.1 < p < 0.9  # neither trivially small nor large
    result = paired_bootstrap(a, b, score, seed=0, samples=SAMPLES, confidence=0.8)
    assert result.difference == pytest.approx(observed, abs=1e-12)
    assert abs(result.p - p) < 4 * np.sqrt(p * (1 - p) / SAMPLES)
    # Quantiles of a discrete distribution jump, so the test checks the shares on both sides of them.
    for bound, share in ((result.low, 0.1), (result.high, 0.9)):
        assert np.mean(exact < bound - 1e-9) - 0.02 <= share <= np.mean(exact <= bound + 1e-9) + 0.02


def test_scores_of_summed_counts():
    np.testing.assert_allclose(f1(np.array([[3, 4, 6], [0, 0, 0], [0, 2, 0]])), [0.6, 0.0, 0.0])
    np.testing.assert_allclose(accuracy(np.array([[3, 4], [0, 0]])), [0.75, 0.0])
    assert f1(np.array([1, 1, 1])) == 1.0


def test_the_second_less_the_first():
    forth = paired_bootstrap(A, B, f1, seed=3, samples=300)
    back = paired_bootstrap(B, A, f1, seed=3, samples=300)
    assert forth.difference == pytest.approx(-back.difference) and forth.p == back.p
    assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low))
    assert forth.low <= forth.difference <= forth.high


def test_a_seed_makes_the_answer():
    assert paired_bootstrap(A, B, f1, seed=1, samples=600) == paired_bootstrap(A, B, f1, seed=1, samples=600)
    assert paired_bootstrap(A, B, f1, seed=1, samples=600) != paired_bootstrap(A, B, f1, seed=2, samples=600)


def test_one_model_is_no_better_than_itself():
    assert paired_bootstrap(A, A, f1, seed=0, samples=100) == (0.0, 0.0, 0.0, 1.0)


def test_a_clear_difference_is_told_and_p_is_never_zero():
    words = np.full(200, 10)
    worse, better = np.stack([words - 3, words], axis=1), np.stack([words - 1, words], axis=1)
    result = paired_bootstrap(worse, better, accuracy, seed=0, samples=99)
    assert result == pytest.approx((0.2, 0.2, 0.2, 0.01))


def test_pairs_are_kept():
    """Both models fail in the same sentences, and their difference is the same in each sentence."""
    rng = np.random.default_rng(0)
    right = rng.integers(0, 9, size=100)
    a, b = (np.stack([right + extra, np.full(100, 10)], axis=1) for extra in (0, 1))
    result = paired_bootstrap(a, b, accuracy, seed=0, samples=200)
    assert result[:3] == pytest.approx((0.1, 0.1, 0.1))


def test_seeds_are_averaged_on_the_same_sentences():
    rng = np.random.default_rng(0)
    gold = rng.integers(1, 4, size=30)

    def model():
        correct = rng.binomial(gold, 0.8)
        return np.stack([correct, gold, gold], axis=-1)

    a, b = np.stack([model() for _ in range(3)]), np.stack([model() for _ in range(2)])
    result = paired_bootstrap(a, b, f1, seed=0, samples=300)
    means = [np.mean([f1_of(rows) for rows in counts]) for counts in (a, b)]
    assert result.difference == pytest.approx(means[1] - means[0])
    # Repeating the seeds of one model, or adding a seed axis to the other, changes nothing.
    assert (
        paired_bootstrap(a, b[0], f1, seed=0, samples=300).p
        == paired_bootstrap(np.concatenate([a, a]), b[:1], f1, seed=0, samples=300).p
    )


def test_what_cannot_be_drawn():
    with pytest.raises(ValueError, match="models of 4 and of 3 sentences cannot be paired"):
        paired_bootstrap(A, B[:3], f1, seed=0)
    with pytest.raises(ValueError, match="needs sentences and samples"):
        paired_bootstrap(A[:0], B[:0], f1, seed=0)
    with pytest.raises(ValueError, match="needs sentences and samples"):
        paired_bootstrap(A, B, f1, seed=0, samples=0)
