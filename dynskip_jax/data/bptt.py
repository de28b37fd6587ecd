"""Truncated back-propagation over segments of random length (Merity et al. 2018, Section 4.1)."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.batching import Batch, num_segments, segments
from dynskip_jax.errors import UserError


def bptt_lengths(
    num_tokens_per_stream: int,
    num_steps: int,
    rng: np.random.Generator,
    *,
    short_probability: float = 0.05,
    std: float = 5.0,
    minimum: int = 5,
    multiple: int = 10,
    drop_tail: bool = False,
) -> list[int]:
    """Draws the lengths of an epoch's segments, so that no token always stands at the end of one.

    As in the authors' code a length is max(minimum, N(mean, std) without its fraction), with the mean
    `num_steps`, or half of it with `short_probability`. Each is then rounded to a multiple, since every
    length is one more program to compile: of N(70, 5) nearly all are 60, 70 or 80. (They also multiply the
    learning rate by length / num_steps, since their loss is a mean over tokens; a loss that is a sum over the
    segment needs no such factor.)

    Args:
      num_tokens_per_stream: tokens in a row, as `num_segments(num_tokens, batch_size, 1, drop_tail=True)`.
      num_steps: the usual length.
      rng: the source of chance, usually made from (seed, epoch); an epoch read again needs the same one.
      short_probability: how often the mean is num_steps / 2.
      std: standard deviation of a length before it is rounded, in steps.
      minimum: no drawn length is below it.
      multiple: of which the lengths are, rounded to the nearest that is not below the minimum; 1 for the
        published lengths.
      drop_tail: False: the last segment takes what is left, be it a single token (the authors drop that).
        True: that too is cut to a multiple and no shorter than the minimum; the few tokens then left are
        dropped.

    Returns:
      The lengths in order; their sum is `num_tokens_per_stream` unless the tail is dropped.

    Raises:
      UserError: for numbers out of range, and when the text does not fill one segment.
    """
    counts = {
        "the number of tokens": num_tokens_per_stream,
        "the number of steps": num_steps,
        "the shortest length": minimum,
        "the multiple of lengths": multiple,
    }
    for name, value in counts.items():
        if value < 1:
            raise UserError(f"{name} is {value}: use 1 or more")
    if not 0.0 <= short_probability <= 1.0:
        raise UserError(f"the probability of a short segment lies in [0, 1], got {short_probability}")
    if not std >= 0.0:
        raise UserError(f"the standard deviation of lengths must not be negative, got {std}")
    shortest = -(-minimum // multiple) * multiple
    if drop_tail and num_tokens_per_stream < shortest:
        raise UserError(
            f"a stream of {num_tokens_per_stream:,} tokens does not fill one segment of {shortest} steps: "
            "use a smaller --batch-size"
        )

    def draw() -> int:
        mean = num_steps if rng.random() < 1.0 - short_probability else num_steps / 2
        length = max(minimum, int(rng.normal(mean, std)))
        return max(shortest, (length + multiple // 2) // multiple * multiple)

    tail_multiple, tail_minimum = (multiple, shortest) if drop_tail else (1, 1)
    lengths: list[int] = []
    rest = num_tokens_per_stream
    while rest >= tail_minimum:
        lengths.append(min(draw(), rest // tail_multiple * tail_multiple))
        rest -= lengths[-1]
    return lengths


def segments_of_lengths(
    tokens: Int[np.ndarray, "tokens"],
    batch_size: int,
    lengths: Sequence[int],
    *,
    drop_tail: bool = True,
    first_token: int,
) -> Iterator[Batch]:
    """As `segments`, but cut at the given lengths: the same tokens in the same order and rows.

    Args:
      tokens: token ids of the text.
      batch_size: rows, B.
      lengths: columns of each segment, as from `bptt_lengths`.
      drop_tail: True for training: rows of N // B tokens, of which those beyond the lengths are dropped.
        False: rows of ceil(N / B), the ends padded and masked; the lengths then reach to their end.
      first_token: the input before the first target, usually `<eos>`.

    Raises:
      UserError: for sizes below 1, and when the rows are too short for the lengths.
      ValueError: when, with `drop_tail=False`, the lengths leave tokens over.
    """
    if any(length < 1 for length in lengths):
        raise UserError(f"a segment of {min(lengths)} steps: use 1 or more")
    row_length = num_segments(tokens.size, batch_size, 1, drop_tail=drop_tail)
    ends = np.cumsum([0, *lengths]).tolist()
    if ends[-1] > row_length:
        raise UserError(
            f"segments of {ends[-1]:,} steps in all do not fit into {batch_size} rows of {row_length:,} "
            "tokens: use a smaller --batch-size"
        )
    if ends[-1] < row_length and not drop_tail:
        raise ValueError(f"lengths of {ends[-1]} steps in all leave tokens of rows of {row_length} over")
    (rows,) = segments(tokens, batch_size, row_length, drop_tail=drop_tail, first_token=first_token)
    columns = (slice(*span) for span in itertools.pairwise(ends))
    return (Batch(*(sheet[:, part] for sheet in rows[:3])) for part in columns)
