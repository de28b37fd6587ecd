"""Read the vectors of given words from a text file in the format of GloVe or word2vec."""

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from dynskip_jax.data.messages import bad_file, bad_line, quoted
from dynskip_jax.data.text_files import PathLike, iter_lines

_SIZES = re.compile(r"[0-9]{1,12} [0-9]{1,12}")
_LOOKED_AT = 100  # Number of lines that are examined for the width of the vectors.


class WordVectors(NamedTuple):
    """The vectors of a vocabulary.

    Attributes:
        table: Vector of each word, (words, width); zeros if the file has no vector of the word.
        found: Whether the file has a vector of each word, (words,).
    """

    table: Float[np.ndarray, "words width"]
    found: Bool[np.ndarray, " words"]


def read_word_vectors(
    path: PathLike, words: Collection[str], width: int
) -> dict[str, Float[np.ndarray, " width"]]:
    """Read the vectors of some words from a file with a word and its numbers on each line.

    Columns are separated by spaces or tabs. A first line of two whole numbers, as in word2vec's files,
    contains the number of words and the width of their vectors. Words may contain spaces: the last `width`
    columns are the vector. If a word occurs twice, its first vector is used. The numbers are checked only for
    the given words.

    Args:
        path: UTF-8 text file, plain or .gz.
        words: Words whose vectors are read.
        width: Number of components of a vector.

    Returns:
        Vector of each word that was found, (width,).

    Raises:
        UserError: If the file cannot be read, contains fewer vectors than its first line states, or has a
            line that is not a vector of this width; the message names the line.
    """
    found: dict[str, np.ndarray] = {}
    lines = ((number, fields) for number, fields in _rows(path) if fields)
    announced = None
    looked_at = list(itertools.islice(lines, _LOOKED_AT))
    if looked_at and _SIZES.fullmatch(" ".join(looked_at[0][1])):
        count, given = map(int, looked_at[0][1])
        if given == width or width > 1:  # else the line is a word with its one number, not a header
            number, _ = looked_at.pop(0)
            announced = count
            if given != width:
                raise bad_line(path, number, f"vectors of {given} numbers, but {width} are wanted")
    if announced is None:
        _check_width(path, looked_at, width)
    seen = 0
    for number, fields in itertools.chain(looked_at, lines):
        seen += 1
        given = len(fields) - 1
        if given < width:
            problem = f"{given} numbers after the word, but {width} are wanted on each line"
            raise bad_line(path, number, problem)
        word = " ".join(fields[:-width])
        if word in words and word not in found:
            found[word] = _vector(path, number, word, fields[-width:])
    if not seen:
        raise bad_file(path, "holds no word vector: is it the right file?")
    if announced is not None and seen < announced:
        problem = f"holds {seen:,} vectors, but its first line says {announced:,}: it is cut, fetch it again"
        raise bad_file(path, problem)
    return found


def vectors_of(words: Sequence[str], read: Mapping[str, np.ndarray], width: int) -> WordVectors:
    """Return the vector of each word, or that of its lower-case form if the word has none.

    Args:
        words: Words of the vocabulary.
        read: Vectors from `read_word_vectors`.
        width: Number of components of a vector.
    """
    table, found = np.zeros((len(words), width), np.float32), np.zeros(len(words), bool)
    for row, word in enumerate(words):
        vector = read.get(word, read.get(word.lower()))
        if vector is not None:
            table[row], found[row] = vector, True
    return WordVectors(table, found)


def _rows(path: PathLike) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and columns of each line; several spaces or tabs may separate two columns."""
    for number, line in enumerate(iter_lines(path), 1):
        line = line.replace("\t", " ")
        fields = line.split(" ")
        if "" in fields:
            fields = [field for field in fields if field]
        yield number, fields


def _check_width(path: PathLike, rows: Sequence[tuple[int, list[str]]], width: int) -> None:
    """Raise a `UserError` if no row has exactly `width` numbers after a word.

    A row with more columns may be a word with spaces, such as `10 000`, but not every row can be one.
    """
    if any(_count_numbers(fields, width + 1) == width for _, fields in rows):
        return
    for number, fields in rows:
        given = len(fields) - 1
        raise bad_line(path, number, f"{given} numbers after the word, but {width} are wanted")


def _count_numbers(fields: Sequence[str], most: int) -> int:
    """Return how many of the last columns are numbers, without the first column and at most `most`."""
    count = 0
    for field in fields[:0:-1]:
        if count == most or not _is_number(field):
            break
        count += 1
    return count


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _vector(path: PathLike, number: int, word: str, fields: Sequence[str]) -> Float[np.ndarray, " width"]:
    try:
        with np.errstate(over="ignore"):
            vector = np.array(fields, np.float32)
    except ValueError:
        wrong = next((field for field in fields if not _is_number(field)), fields[0])
        problem = f"the vector of {quoted(word)} is no list of numbers: {quoted(wrong)} is none"
        raise bad_line(path, number, problem) from None
    if not np.isfinite(vector).all():
        raise bad_line(path, number, f"the vector of {quoted(word)} is not finite in 32 bits")
    return vector
