"""Cut corpora and data sets into batches."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from dynskip_jax.errors import UserError


class Segment(NamedTuple):
    """A stretch of text in `batch` parallel rows, for truncated back-propagation through time.

    Attributes:
      inputs: int32 token ids (batch, num_steps).
      targets: int32 (batch, num_steps), the token after each input.
      mask: (batch, num_steps), False where the target is padding.
    """

    inputs: Int[np.ndarray, "batch num_steps"]
    targets: Int[np.ndarray, "batch num_steps"]
    mask: Bool[np.ndarray, "batch num_steps"]


def segments(
    tokens: Int[np.ndarray, "tokens"], batch_size: int, num_steps: int, *, drop_tail: bool, first_token: int
) -> Iterator[Segment]:
    """Segments of a text, each of which continues the rows of the one before.

    The targets are all tokens in order; the input before each is the token before it, `first_token` before
    the first. The text is laid out as `batch_size` contiguous rows, cut every `num_steps` columns.

    Args:
      tokens: token ids of the text.
      batch_size: rows, B.
      num_steps: columns of a segment.
      drop_tail: True for training: rows of N // B tokens, and what does not fill a segment is dropped
        (Zaremba et al. 2014). False for evaluation: rows of ceil(N / B), the ends padded with
        `first_token` and masked, so that the mask counts exactly N over all segments.
      first_token: the input before the first target, usually `<eos>`.

    Raises:
      UserError: for sizes below 1, and when a training text does not fill one segment.
    """
    count = num_segments(tokens.size, batch_size, num_steps, drop_tail=drop_tail)
    row_length = _row_length(tokens.size, batch_size, drop_tail)
    inputs = np.concatenate([np.array([first_token], np.int32), tokens[:-1].astype(np.int32)])
    mask = np.ones(tokens.size, bool)

    def lay_out(flat: np.ndarray, padding: int | bool) -> np.ndarray:
        rows = np.full(batch_size * row_length, padding, flat.dtype)
        used = min(rows.size, tokens.size)
        rows[:used] = flat[:used]
        rows = rows.reshape(batch_size, row_length)
        missing = max(0, count * num_steps - row_length)
        return np.pad(rows, ((0, 0), (0, missing)), constant_values=padding)

    sheets = (
        lay_out(inputs, first_token),
        lay_out(tokens.astype(np.int32), first_token),
        lay_out(mask, False),
    )
    columns = (slice(i * num_steps, (i + 1) * num_steps) for i in range(count))
    return (Segment(*(sheet[:, part] for sheet in sheets)) for part in columns)


def num_segments(num_tokens: int, batch_size: int, num_steps: int, *, drop_tail: bool) -> int:
    """How many segments `segments` gives for a text of `num_tokens`.

    Raises:
      UserError: as `segments`.
    """
    _check_positive("--batch-size", batch_size)
    _check_positive("the number of steps", num_steps)
    row_length = _row_length(num_tokens, batch_size, drop_tail)
    if not drop_tail:
        return -(-row_length // num_steps)
    if row_length < num_steps:
        raise UserError(
            f"the training text of {num_tokens:,} tokens does not fill one segment of {batch_size} rows by "
            f"{num_steps} steps ({batch_size * num_steps:,} tokens): use a smaller --batch-size"
        )
    return row_length // num_steps


def _row_length(num_tokens: int, batch_size: int, drop_tail: bool) -> int:
    return num_tokens // batch_size if drop_tail else -(-num_tokens // batch_size)


def epoch_order(num_examples: int, seed: int, epoch: int) -> Int[np.ndarray, "examples"]:
    """The order of the examples in an epoch: a permutation that depends on (seed, epoch) alone."""
    return np.random.default_rng([seed, epoch]).permutation(num_examples)


def minibatches(
    order: Int[np.ndarray, "examples"], batch_size: int, drop_remainder: bool
) -> Iterator[Int[np.ndarray, "batch"]]:
    """Consecutive pieces of `order`, `batch_size` indices each; a shorter last one unless it is dropped.

    Raises:
      UserError: for a batch size below 1, or above the number of examples where the remainder is dropped.
    """
    _check_positive("--batch-size", batch_size)
    if drop_remainder and order.size < batch_size:
        raise UserError(
            f"{order.size:,} examples do not fill one batch of {batch_size:,}: use a smaller --batch-size"
        )
    stop = order.size // batch_size * batch_size if drop_remainder else order.size
    return (order[start : start + batch_size] for start in range(0, stop, batch_size))


def padded_minibatches(
    num_examples: int, batch_size: int
) -> Iterator[tuple[Int[np.ndarray, "batch"], Bool[np.ndarray, "batch"]]]:
    """The examples 0, 1, ... in order, in batches of one size, for evaluation.

    Yields:
      Indices (batch,) and mask (batch,): the last batch is filled up with index 0, masked False.

    Raises:
      UserError: for a batch size below 1.
    """
    _check_positive("--batch-size", batch_size)
    starts = range(0, num_examples, batch_size)
    positions = (np.arange(start, start + batch_size) for start in starts)
    return ((np.where(rows < num_examples, rows, 0), rows < num_examples) for rows in positions)


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{name} is {value}: use 1 or more")
