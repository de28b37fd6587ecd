"""Make a table of the character ids of each word of a vocabulary."""

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from dynskip_jax.errors import UserError

PADDING, START, END = 0, 1, 2
_FIRST_SYMBOL = 3


def character_table(
    words: Sequence[str], max_length: int | None = None
) -> tuple[Int[np.ndarray, "vocabulary length"], tuple[str, ...]]:
    """Return the ids (int32) of each word's characters, between a start and an end mark (Kim et al. 2016).

    Id 0 is padding at the end of rows, 1 marks the start of a word, and 2 marks its end. Ids from 3 are the
    symbols in sorted order. A symbol is a character; a word such as `<unk>` or `<eos>` is a single symbol.

    Args:
      words: The vocabulary; row i belongs to `words[i]`.
      max_length: Maximum number of ids per row, including both marks. Longer words lose their last characters
        but keep the end mark. By default, the longest word determines the number of columns.

    Returns:
      The table (vocabulary, length), and the symbols: `symbols[i]` has the id i + 3.

    Raises:
      UserError: `max_length` leaves no room for a character between the marks.
    """
    if max_length is not None and max_length < 3:
        raise UserError(f"max_length must be at least 3, two of them for the marks, not {max_length}")
    spelt = [_symbols(word) for word in words]
    symbols = tuple(sorted({symbol for word in spelt for symbol in word}))
    index = {symbol: i for i, symbol in enumerate(symbols, _FIRST_SYMBOL)}
    kept = None if max_length is None else max_length - 2
    rows = [[START, *(index[symbol] for symbol in word[:kept]), END] for word in spelt]
    table = np.full((len(rows), max(map(len, rows), default=2)), PADDING, np.int32)
    for row, ids in zip(table, rows, strict=True):
        row[: len(ids)] = ids
    return table, symbols


def _symbols(word: str) -> tuple[str, ...]:
    """Return the characters of a word; a special token such as `<unk>` is a single symbol."""
    return (word,) if re.fullmatch(r"<[^<>]+>", word) else tuple(word)
