"""Generate number prediction (Gui et al. 2019): follow pointers in a sequence of digits.

The paper uses the lengths 11 (one hop) and 21 (two hops). As an extension, every other length up to
501 is a one-hop task whose pointer can point to any position before the last.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.batches import generated
from dynskip_jax.data.dataset import Dataset
from dynskip_jax.errors import UserError
from dynskip_jax.terminal.messages import shown

DEFAULT_SIZES: Mapping[str, int] = {"dev": 10_000, "test": 10_000}
SHORTEST = 11
LONGEST = 501
TWO_HOPS = 21
NUM_DIGITS = 10

Digits = Int[np.ndarray, "examples time"]
Labels = Int[np.ndarray, " examples"]


def num_hops(length: int) -> int:
    """Return the number of pointers to follow: two at length 21, one at every other length."""
    return 2 if length == TWO_HOPS else 1


def num_symbols(length: int) -> int:
    """Return the number of symbols: 10 with two hops, `max(10, length - 1)` with one hop."""
    return NUM_DIGITS if num_hops(length) == 2 else max(NUM_DIGITS, length - 1)


def follow(digits: Digits, hops: int) -> Labels:
    """Return each row's symbol after `hops` hops: x[x[T-1]] after one, x[x[x[T-1]]] after two."""
    value = digits[:, -1]
    for _ in range(hops):
        value = digits[np.arange(len(digits)), value]
    return value


def hops_of(digits: Digits) -> Int[np.ndarray, "examples hops"]:
    """Return the positions to which the pointers point, in order; the last has the answer."""
    return np.stack([follow(digits, hop) for hop in range(num_hops(digits.shape[1]))], axis=1)


def generate(length: int, num_examples: int, seed: int, stream: int = 0) -> tuple[Digits, Labels]:
    """Draw examples whose digits are uniform in 0..9.

    With one hop, y = x[x[T-1]], and the last symbol is uniform in 0..T-2. With two, x' = x[x[T-1]]
    and y = x[x'], and rows are drawn again unless x' < x[T-1]. Each `stream` of a seed is
    independent.
    """
    if not SHORTEST <= length <= LONGEST:
        lengths = f"{TWO_HOPS} (two hops) or any other from {SHORTEST} to {LONGEST} (one hop)"
        raise UserError(f"number prediction has no length {shown(length)}: use --length {lengths}")
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream,)))
    limits = np.array([NUM_DIGITS] * (length - 1) + [num_symbols(length)])
    hops = num_hops(length)
    rows = np.empty((0, length), np.int32)
    while len(rows) < num_examples:
        # With two hops, nearly half of the rows are allowed, so two or three rounds are enough.
        drawn = rng.integers(limits, size=(hops * num_examples, length), dtype=np.int32)
        if hops == 2:
            drawn = drawn[follow(drawn, 1) < drawn[:, -1]]
        rows = np.concatenate([rows, drawn])
    digits = np.ascontiguousarray(rows[:num_examples])
    return digits, follow(digits, hops)


def load_number_prediction(length: int, train_examples: int) -> Dataset:
    """Generate the splits of one length, from independent random streams."""
    sizes = {"train": train_examples, **DEFAULT_SIZES}
    splits = {
        of: generate(length, size, 0, stream) for stream, (of, size) in enumerate(sizes.items())
    }
    return generated(f"number_prediction/length_{length}", splits)
