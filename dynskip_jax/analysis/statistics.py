"""Compare scores of models over seeds and sentences, and describe choices; NumPy only."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Num

_RESAMPLES_AT_ONCE = 256  # bounds the memory of a product, and does not change the result
_BLOCK = 50
_LEAST_BLOCKS = 10
_BLOCK_RESAMPLES = 1000


# --- Seeds ---


class Interval(NamedTuple):
    """A mean over seeds, its standard deviation (n - 1) and interval; NaN where undefined."""

    mean: float
    sd: float
    low: float
    high: float
    count: int


def t_interval(values: Sequence[float]) -> Interval:
    """Return the mean of a value per seed, and Student's t interval of 95 %, mean ± t sd / √n."""
    from scipy.special import stdtrit  # scipy.stats would cost a second of start-up

    given = np.asarray(values, np.float64)
    count = given.size
    if count == 0:
        return Interval(math.nan, math.nan, math.nan, math.nan, count)
    mean = float(given.mean())
    if count == 1:
        return Interval(mean, math.nan, math.nan, math.nan, count)
    sd = float(given.std(ddof=1))
    half = float(stdtrit(count - 1, 0.975)) * sd / math.sqrt(count)
    return Interval(mean, sd, mean - half, mean + half, count)


def paired_difference(values: Mapping[int, float], baseline: Mapping[int, float]) -> Interval:
    """Return the mean and t interval of `values - baseline` over the seeds that both have."""
    return t_interval([values[seed] - baseline[seed] for seed in values if seed in baseline])


# --- Sentences of a test set ---


class Comparison(NamedTuple):
    """The second score minus the first, its confidence interval, and a two-sided p-value."""

    difference: float
    low: float
    high: float
    p: float


def f1(counts: Num[np.ndarray, "*models 3"]) -> Float[np.ndarray, "*models"]:
    """Return F1, in [0, 1], from summed counts (correct, predicted, gold); 0 without counts."""
    return 2.0 * counts[..., 0] / np.maximum(1, counts[..., 1] + counts[..., 2])


def paired_bootstrap(
    counts_a: Int[np.ndarray, "*seeds_a sentences 3"],
    counts_b: Int[np.ndarray, "*seeds_b sentences 3"],
    samples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Compare the F1 of two models over the sentences of a test set, with a 95 % interval.

    Each resample draws as many sentences as there are, with replacement, and scores both models on
    them. The score of several seeds is their mean on the same sentences. Let d be the difference on
    the test set and d* that on a resample. The interval is the percentile interval of d*, and p =
    (1 + number of resamples with |d* - d| ≥ |d|) / (1 + samples) (Koehn 2004; Berg-Kirkpatrick et
    al. 2012).
    """

    def difference(weights: np.ndarray) -> np.ndarray:
        """Return the difference on each resample; `weights` are (resamples, sentences)."""
        # float64: NumPy multiplies it faster than integers, and exactly for whole numbers.
        summed = [
            weights.astype(np.float64) @ counts.astype(np.float64)
            for counts in (counts_a, counts_b)
        ]
        of_a, of_b = (f1(each).reshape(-1, len(weights)).mean(axis=0) for each in summed)
        return of_b - of_a

    rng = np.random.default_rng(seed)
    sentences = counts_a.shape[-2]
    observed = float(difference(np.ones((1, sentences)))[0])
    sizes = [min(_RESAMPLES_AT_ONCE, samples - at) for at in range(0, samples, _RESAMPLES_AT_ONCE)]
    chances = np.full(sentences, 1 / sentences)
    drawn = np.concatenate(
        [difference(rng.multinomial(sentences, chances, size=size)) for size in sizes]
    )
    as_far = np.abs(drawn - observed) >= abs(observed) - 1e-12  # equal up to rounding
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Comparison(observed, float(low), float(high), float((1 + as_far.sum()) / (1 + samples)))


# --- Steps of a text, whose neighbours are alike ---


class Gain(NamedTuple):
    """A mean decrease of the loss over paired steps, in nats, and 1.96 standard errors of it."""

    mean: float
    margin: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.margin:.4f}"

    @property
    def is_chance(self) -> bool:
        """Whether the 95 % interval of the gain reaches down to 0, so that it may be chance."""
        return self.mean <= self.margin


def paired_gain(of_one: Float[np.ndarray, " steps"], of_other: Float[np.ndarray, " steps"]) -> Gain:
    """Return the mean of `of_one - of_other`, losses at the same two or more steps, and its margin.

    The standard error is that of a circular block bootstrap (Politis and Romano 1992) with blocks
    of 50 steps, or of a tenth of the steps if that is less.
    """
    less = np.asarray(of_one - of_other, np.float64)
    steps = len(less)
    size = max(1, min(_BLOCK, steps // _LEAST_BLOCKS))
    # Blocks that begin near the end go on at the beginning of the text.
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([less, less[: size - 1]]))])
    of_blocks = sums[size:] - sums[:-size]  # the sum of the block that begins at each step
    starts = np.random.default_rng(0).integers(steps, size=(_BLOCK_RESAMPLES, -(-steps // size)))
    means = of_blocks[starts].mean(axis=1) / size
    return Gain(float(less.mean()), float(1.96 * means.std(ddof=1)))


# --- Choices ---


class SeedAgreement(NamedTuple):
    """The fraction of equal choices of two agents, and the fraction by their rates alone."""

    share: float
    by_chance: float

    @property
    def kappa(self) -> float:
        """Cohen's κ (1960): 1 for equal choices, 0 for chance; NaN for constant agents."""
        if self.by_chance == 1:
            return math.nan
        return (self.share - self.by_chance) / (1 - self.by_chance)


def seed_agreement(actions: Int[np.ndarray, "steps agents"]) -> SeedAgreement:
    """Return the mean agreement over all pairs of two or more agents."""
    pairs = list(itertools.combinations(range(actions.shape[1]), 2))
    rates = np.stack([(actions == k).mean(axis=0) for k in np.unique(actions)], axis=1)
    share = np.mean([(actions[:, a] == actions[:, b]).mean() for a, b in pairs])
    return SeedAgreement(float(share), float(np.mean([rates[a] @ rates[b] for a, b in pairs])))


class SameWord(NamedTuple):
    """Fractions of steps at which the chosen state, or one that may be, follows the same word."""

    share: float
    possible: float
    # Expected `share` of choices drawn with the agent's rates, independently of the text.
    by_chance: float


def same_word(
    words: Int[np.ndarray, "rows time"],
    actions: Int[np.ndarray, "rows time"],
    counts: Bool[np.ndarray, "rows time"],
    *,
    choices: Int[np.ndarray, " choices"],
) -> SameWord:
    """Return how often choices lead back to the current word: x(t-k) = x(t) where h(t-k) is chosen.

    Each row of `words` is a text from its beginning. `choices` are the values of k that may be
    chosen.
    """
    rates = np.bincount(actions[counts], minlength=choices.max() + 1) / counts.sum()
    taken, within, expected = (np.zeros(words.shape, dtype) for dtype in (bool, bool, float))
    for k in choices:
        same = np.zeros(words.shape, bool)
        same[:, k:] = words[:, k:] == words[:, :-k]
        taken |= same & (actions == k)
        within |= same
        expected += rates[k] * same
    return SameWord(*(float(of[counts].mean()) for of in (taken, within, expected)))


def visited(actions: Int[np.ndarray, "examples time"]) -> Bool[np.ndarray, "examples time"]:
    """Return which positions lie on the chain of skips back from the last state of each example.

    The chain continues from t to t - k with k = actions[:, t], and ends at a k below 1 (padding).
    """
    reached = np.zeros(actions.shape, bool)
    reached[:, -1:] = True
    for t in reversed(range(actions.shape[1])):
        before = t - actions[:, t].astype(np.int64)
        (rows,) = np.nonzero(reached[:, t] & (before >= 0) & (before < t))
        reached[rows, before[rows]] = True
    return reached
