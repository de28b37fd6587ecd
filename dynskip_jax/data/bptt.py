"""Cut a text into segments of random length for truncated BPTT (Merity et al. 2018, Section 4.1)."""

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
    """Draw the lengths of an epoch's segments, so that no token is at the end of a segment in every epoch.

    As in the authors' code, a length is a sample of N(mean, std), truncated to an integer and not below
    `minimum`. The mean is `num_steps`, or `num_steps / 2` with probability `short_probability`. The length is
    then rounded to a multiple of `multiple`, because each different length needs one more compiled program.
    For example, nearly all lengths from N(70, 5) become 60, 70 or 80.

    The authors also multiply the learning rate by length / num_steps, because their loss is a mean over
    tokens. A loss that is a sum over the segment needs no such factor.

    Args:
      num_tokens_per_stream: Tokens per row: `num_segments(num_tokens, batch_size, 1, drop_tail=True)`.
      num_steps: Usual length.
      rng: Random generator, usually made from (seed, epoch). To repeat an epoch, pass an equal generator.
      short_probability: Probability that the mean is num_steps / 2.
      std: Standard deviation of a length before rounding, in steps.
      minimum: Lower bound of the drawn lengths.
      multiple: Lengths are rounded to the nearest multiple of this number that is not below `minimum`. 1
        gives the published lengths.
      drop_tail: False: the last segment takes all remaining tokens, even a single one (which the authors
        drop). True: the last segment is also a multiple of `multiple` and not below `minimum`; the tokens
        after it are dropped.

    Returns:
      The lengths in order. Their sum is `num_tokens_per_stream` unless the tail is dropped.

    Raises:
      UserError: A number is out of range, or the tail is dropped and the text does not fill one segment.
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
    """Cut a text into segments of the given lengths; the rows are those of `segments`.

    Args:
      tokens: Token ids of the text.
      batch_size: Number of rows, B.
      lengths: Number of columns of each segment, for example from `bptt_lengths`.
      drop_tail: True for training: rows have N // B tokens, and columns beyond the sum of `lengths` are
        dropped. False: rows have ceil(N / B) tokens, their ends are padded and masked, and `lengths` must
        cover the whole rows.
      first_token: Input for the first target, usually `<eos>`.

    Raises:
      UserError: A size is below 1, or the rows are shorter than the sum of `lengths`.
      ValueError: With `drop_tail=False`, `lengths` do not cover the rows.
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
