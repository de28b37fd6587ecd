"""The characters of each word of a vocabulary, as a table of ids."""

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
    """Ids (int32) of each word's characters, between marks of its start and its end (Kim et al. 2016).

    0 is padding, at the end of rows; 1 marks the start and 2 the end of a word; from 3 on come the symbols in
    sorted order. A symbol is a character; a word such as `<unk>` or `<eos>` is one symbol as a whole.

    Args:
      words: the vocabulary; row i belongs to `words[i]`.
      max_length: the most ids in a row, both marks included; of longer words the last characters are cut,
        and the mark of the end stays. By default the table is as long as the longest word needs.

    Returns:
      The table, and its symbols: `symbols[i]` is the one with id i + 3.

    Raises:
      UserError: when `max_length` leaves no room for a character between the marks.
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
    """The characters of a word; `<...>` is none of text, but stands for something, and is one symbol."""
    return (word,) if re.fullmatch(r"<[^<>]+>", word) else tuple(word)
