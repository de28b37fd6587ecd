"""Paired bootstrap: test whether the difference between two models' scores on a test set is significant."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Num

# Number of resamples in one matrix product. It bounds the memory and does not change the result.
_AT_ONCE = 256

Score = Callable[[Any], Any]


class Comparison(NamedTuple):
    """Result of a paired bootstrap.

    Attributes:
        difference: Score of the second model minus score of the first one, on the test set itself.
        low: Lower end of the confidence interval of the difference.
        high: Upper end of the confidence interval of the difference.
        p: Two-sided p-value: probability of a difference at least this large if the models are equally good;
            see `paired_bootstrap`.
    """

    difference: float
    low: float
    high: float
    p: float


def f1(counts: Num[np.ndarray, "*models 3"]) -> Float[np.ndarray, "*models"]:
    """Return F1, in [0, 1], from summed counts (correct, predicted, gold); 0 if all counts are 0."""
    return _ratio(2 * counts[..., 0], counts[..., 1] + counts[..., 2])


def accuracy(counts: Num[np.ndarray, "*models 2"]) -> Float[np.ndarray, "*models"]:
    """Return the accuracy, in [0, 1], from summed counts (correct, all); 0 if there are none."""
    return _ratio(counts[..., 0], counts[..., 1])


def paired_bootstrap(
    counts_a: Int[np.ndarray, "*seeds_a sentences counts"],
    counts_b: Int[np.ndarray, "*seeds_b sentences_b counts"],
    score: Score,
    *,
    seed: int,
    samples: int = 10_000,
    confidence: float = 0.95,
) -> Comparison:
    """Compare two models over the sentences of a test set (Koehn 2004; Berg-Kirkpatrick et al. 2012).

    Each of the `samples` resamples draws as many sentences as the test set has, with replacement, and scores
    both models on them. So hard and easy sentences affect both models. If a model was trained with several
    seeds, its score is the mean over the seeds, on the same sentences. The interval does not include the
    variation between seeds.

    Let d be the difference on the test set and d* the difference on a resample.

    * The interval is the percentile interval of d*: it contains the central fraction `confidence` of them.
    * p = (1 + number of resamples with |d* - d| ≥ |d|) / (1 + samples). It uses d* - d as the distribution of
      the difference between equally good models. Berg-Kirkpatrick et al. use the same p in one direction.

    Args:
        counts_a: Counts from which the first model's score is computed, (*seeds, sentences, counts). They
            are whole numbers that are summed over sentences, such as those of
            `tasks.entity_score.entity_counts` and `tag_counts`.
        counts_b: The same for the second model, for the same sentences in the same order.
        score: Function from summed counts, (..., counts), to scores, (...): `f1` or `accuracy`.
        seed: Seed of the resamples. The same seed gives the same result.
        samples: Number of resamples.
        confidence: Confidence level of the interval, between 0 and 1.

    Raises:
        ValueError: There are no sentences or no samples, or the models have different numbers of sentences.
    """
    sentences = counts_a.shape[-2]
    if counts_b.shape[-2] != sentences:
        raise ValueError(f"models of {sentences} and of {counts_b.shape[-2]} sentences cannot be paired")
    if not sentences or samples < 1:
        raise ValueError(f"a bootstrap needs sentences and samples, got {sentences} and {samples}")

    def difference(weights: np.ndarray) -> np.ndarray:
        """Return the difference on each resample; `weights` counts draws, (resamples, sentences)."""
        both = []
        for counts in (counts_a, counts_b):
            # NumPy multiplies float64 matrices faster than integer ones, and exactly for whole numbers.
            summed = weights.astype(np.float64) @ counts.astype(np.float64)
            both.append(score(summed).reshape(-1, len(weights)).mean(axis=0))
        return both[1] - both[0]

    rng = np.random.default_rng(seed)
    observed = float(difference(np.ones((1, sentences)))[0])
    drawn = np.concatenate(
        [
            difference(rng.multinomial(sentences, np.full(sentences, 1 / sentences), size=size))
            for size in _pieces(samples)
        ]
    )
    # The tolerance treats differences as equal that differ by rounding only.
    as_far = np.abs(drawn - observed) >= abs(observed) - 1e-12
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Comparison(observed, float(low), float(high), float((1 + as_far.sum()) / (1 + samples)))


def _pieces(samples: int) -> list[int]:
    whole, rest = divmod(samples, _AT_ONCE)
    return [_AT_ONCE] * whole + [rest] * bool(rest)


def _ratio(part: np.ndarray | np.number, whole: np.ndarray | np.number) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(np.shape(part)), where=whole != 0)
