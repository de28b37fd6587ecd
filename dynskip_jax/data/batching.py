"""Cut corpora and data sets into batches."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from dynskip_jax.errors import UserError


class Batch(NamedTuple):
    """What a step is given; every array leads with the rows, None stands for what a task has not.

    Attributes:
      inputs: what the model reads, such as ids (rows, time).
      targets: the truth, such as classes (rows,) or the token after each input (rows, time).
      mask: False where nothing is counted: at rows that only fill the batch, (rows,), or at steps, (rows,
        time).
      seq_lengths: true lengths of padded rows, (rows,).
      weights: of the rows in the training loss, (rows,).
      index: the number of each row's example in its split, (rows,).
    """

    inputs: Any
    targets: Any
    mask: Bool[np.ndarray, "rows *time"] | None = None
    seq_lengths: Int[np.ndarray, " rows"] | None = None
    weights: Float[np.ndarray, " rows"] | None = None
    index: Int[np.ndarray, " rows"] | None = None


def segments(
    tokens: Int[np.ndarray, "tokens"], batch_size: int, num_steps: int, *, drop_tail: bool, first_token: int
) -> Iterator[Batch]:
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
    return (Batch(*(sheet[:, part] for sheet in sheets)) for part in columns)


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


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{name} is {value}: use 1 or more")
