"""Cut corpora and data sets into batches."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from dynskip_jax.errors import UserError


class Batch(NamedTuple):
    """A batch for one training or evaluation step.

    The first axis of every array is the rows. Optional fields are None if a task does not use them.

    Attributes:
      inputs: Inputs of the model, such as token ids (rows, time).
      targets: Targets, such as classes (rows,) or the token after each input (rows, time).
      mask: False for padding rows (rows,) or padding steps (rows, time), which do not count.
      seq_lengths: True lengths of padded rows, (rows,).
      weights: Weights of the rows in the training loss, (rows,).
      index: Index of each row's example in its split, (rows,).
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
    """Cut a text into segments; the rows of each segment continue those of the previous one.

    The text of N tokens is laid out as `batch_size` contiguous rows and cut every `num_steps` columns. The
    targets are all tokens in order. The input for each target is the token before it; the input for the first
    target is `first_token`.

    Args:
      tokens: Token ids of the text.
      batch_size: Number of rows, B.
      num_steps: Number of columns of a segment.
      drop_tail: True for training: rows have N // B tokens, and columns that do not fill a segment are
        dropped (Zaremba et al. 2014). False for evaluation: rows have ceil(N / B) tokens, and their ends are
        padded with `first_token` and masked, so that the mask counts exactly N tokens over all segments.
      first_token: Input for the first target, usually `<eos>`.

    Raises:
      UserError: A size is below 1, or a training text does not fill one segment.
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
    """Return the number of segments that `segments` yields for a text of `num_tokens` tokens.

    Raises:
      UserError: A size is below 1, or a training text does not fill one segment.
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
    """Return the order of the examples in an epoch: a permutation that depends only on (seed, epoch)."""
    return np.random.default_rng([seed, epoch]).permutation(num_examples)


def minibatches(
    order: Int[np.ndarray, "examples"], batch_size: int, drop_remainder: bool
) -> Iterator[Int[np.ndarray, "batch"]]:
    """Cut `order` into consecutive parts of `batch_size` indices.

    Args:
      order: Indices of the examples.
      batch_size: Number of indices per part.
      drop_remainder: Whether to drop a shorter last part.

    Raises:
      UserError: The batch size is below 1 or, if the remainder is dropped, above the number of examples.
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
