"""Generate associative recall (Arora et al. 2023): pairs of words, then some keys again.

A row begins with its pairs, k1 v1 k2 v2 … Each key returns once, at a distance drawn from a power
law, and asks for its value. All other places hold random words. Keys are from the lower half of the
vocabulary, values from the upper half, and no key or value occurs in two pairs.
"""

from collections.abc import Mapping

import numpy as np

from dynskip_jax.data.batches import generated
from dynskip_jax.data.dataset import Dataset
from dynskip_jax.data.vocabularies import Vocabulary
from dynskip_jax.errors import UserError

NUM_WORDS = 8192
STEPS_OF_A_PAIR = 16  # a row of 64 words has 4 pairs
NOT_ASKED = -1  # target where nothing is asked
_POWER = 0.01
DEFAULT_SIZES: Mapping[str, int] = {"dev": 1_000, "test": 1_000}


def load_recall(length: int, train_examples: int) -> Dataset:
    """Generate all splits for rows of `length` words; `twice` has test rows of twice the length."""
    if length < 2 * STEPS_OF_A_PAIR or length % STEPS_OF_A_PAIR:
        lengths = f"{2 * STEPS_OF_A_PAIR} or another multiple of {STEPS_OF_A_PAIR}"
        raise UserError(f"--length is {lengths}, got {length}")
    sizes = {"train": train_examples, **DEFAULT_SIZES}
    rows = {split: generate(length, size, seed) for seed, (split, size) in enumerate(sizes.items())}
    rows["twice"] = generate(2 * length, DEFAULT_SIZES["test"], len(sizes))
    vocabulary = Vocabulary(tuple(map(str, range(NUM_WORDS))))
    return generated(f"recall/length_{length}", rows, vocabulary)


def generate(length: int, num_examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return words and targets, (examples, time); targets are `NOT_ASKED` where none is asked."""
    rng = np.random.default_rng(seed)
    pairs = length // STEPS_OF_A_PAIR
    each = (num_examples, pairs)
    rows = np.arange(num_examples)[:, None]
    keys = _distinct(rng, 1, NUM_WORDS // 2, each)
    values = _distinct(rng, NUM_WORDS // 2, NUM_WORDS, each)
    words = np.zeros((num_examples, length), np.int32)
    words[:, 0 : 2 * pairs : 2] = keys
    words[:, 1 : 2 * pairs : 2] = values
    # The largest Gumbel-perturbed log-probabilities are draws without replacement.
    # Questions are near the pairs more often than far from them, by a power of the distance.
    places = np.arange(1, (length - 2 * pairs) // 2 + 1)
    scores = (_POWER - 1) * np.log(places) + rng.gumbel(size=(num_examples, len(places)))
    asked = 2 * pairs + 2 * np.argsort(-scores, axis=1)[:, :pairs]
    targets = np.full_like(words, NOT_ASKED)
    words[rows, asked] = keys
    targets[rows, asked] = values
    # Words that are neither asked nor in a pair are drawn at random.
    others = rng.integers(NUM_WORDS, size=words.shape, dtype=np.int32)
    return np.where(words == 0, others, words), targets


def _distinct(rng: np.random.Generator, low: int, high: int, shape: tuple[int, int]) -> np.ndarray:
    """Draw rows of distinct numbers in [low, high); rows with a repeated number are drawn again."""
    drawn = rng.integers(low, high, shape)
    while (repeated := (np.diff(np.sort(drawn, axis=1), axis=1) == 0).any(axis=1)).any():
        drawn[repeated] = rng.integers(low, high, (repeated.sum(), shape[1]))
    return drawn
