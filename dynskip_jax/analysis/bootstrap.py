"""Paired bootstrap: is one model's score on a test set better than another's, or is it these sentences?"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Num

# Resamples whose counts are summed at once: memory, not the answer, depends on it.
_AT_ONCE = 256

Score = Callable[[Any], Any]


class Comparison(NamedTuple):
    """What a paired bootstrap says of two models.

    Attributes:
        difference: the second model's score less the first one's, on the test set as it is.
        low: lower end of the difference's interval.
        high: upper end.
        p: how often chance alone would make a difference this large in either direction; see
            `paired_bootstrap`.
    """

    difference: float
    low: float
    high: float
    p: float


def f1(counts: Num[np.ndarray, "*models 3"]) -> Float[np.ndarray, "*models"]:
    """F1 of summed counts (correct, predicted, gold), from 0 to 1; 0 where nothing is predicted or gold."""
    return _ratio(2 * counts[..., 0], counts[..., 1] + counts[..., 2])


def accuracy(counts: Num[np.ndarray, "*models 2"]) -> Float[np.ndarray, "*models"]:
    """Accuracy of summed counts (correct, all), from 0 to 1; 0 where there are none."""
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
    """Compares two models over the sentences of a test set (Koehn 2004; Berg-Kirkpatrick et al. 2012).

    As many sentences are drawn with replacement, `samples` times, and both models are scored on each such
    sample: what is easy or hard in it is so for both. Where a model was trained with several seeds, its
    score is the mean of theirs, on the same sentences; how much seeds differ is not in the interval.

    With d the difference on the test set and d* that on a sample,

    * the interval holds the middle of the d*, `confidence` of them (percentiles);
    * p = (1 + number of samples with |d* - d| ≥ |d|) / (1 + samples): were the models equally good, d* - d
      shows how far a difference strays from none. Berg-Kirkpatrick et al.'s p is this one for one direction.

    Args:
        counts_a: what the first model's score is made of, for each sentence, whole numbers that are summed
            over sentences: see `tasks.entity_score.entity_counts` and `tag_counts`. Seeds, if any, lead.
        counts_b: the same for the second model, same sentences in the same order.
        score: from summed counts, (..., counts), to scores (...): `f1` or `accuracy`.
        seed: of the samples; the same seed gives the same answer.
        samples: how many.
        confidence: from 0 to 1.

    Raises:
        ValueError: there are no sentences or no samples, or the models have different numbers of sentences.
    """
    sentences = counts_a.shape[-2]
    if counts_b.shape[-2] != sentences:
        raise ValueError(f"models of {sentences} and of {counts_b.shape[-2]} sentences cannot be paired")
    if not sentences or samples < 1:
        raise ValueError(f"a bootstrap needs sentences and samples, got {sentences} and {samples}")

    def difference(weights: np.ndarray) -> np.ndarray:
        """The one on each sample; a sample is how often each sentence is drawn, (samples, sentences)."""
        both = []
        for counts in (counts_a, counts_b):
            # In float64, where products of matrices are fast, and exact for whole numbers.
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
    # What is equal in whole numbers counts as equal.
    as_far = np.abs(drawn - observed) >= abs(observed) - 1e-12
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Comparison(observed, float(low), float(high), float((1 + as_far.sum()) / (1 + samples)))


def _pieces(samples: int) -> list[int]:
    whole, rest = divmod(samples, _AT_ONCE)
    return [_AT_ONCE] * whole + [rest] * bool(rest)


def _ratio(part: np.ndarray | np.number, whole: np.ndarray | np.number) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(np.shape(part)), where=whole != 0)
