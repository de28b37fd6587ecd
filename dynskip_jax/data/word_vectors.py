"""Read the vectors of given words from a text file in the format of GloVe or word2vec."""

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from dynskip_jax.data.files import PathLike, iter_lines
from dynskip_jax.data.numbers import read_number
from dynskip_jax.terminal.messages import bad_file, bad_line, quoted

_SIZES = re.compile(r"[0-9]{1,12} [0-9]{1,12}")


class WordVectors(NamedTuple):
    """The vector of each word of a vocabulary, zeros if the file has none, and whether it has."""

    table: Float[np.ndarray, "words width"]
    found: Bool[np.ndarray, " words"]


def vector_width(path: PathLike) -> int:
    """Return the size of the vectors: that in a first line of sizes, or that of the first line."""
    _, fields = next(_lines(path), (0, []))
    if _SIZES.fullmatch(" ".join(fields)):
        return int(fields[1])
    width = sum(1 for _ in itertools.takewhile(_is_number, fields[:0:-1]))
    if not width:
        problem = "has no numbers in its first line: expected a word and its vector on each line"
        raise bad_file(path, problem)
    return width


def read_word_vectors(
    path: PathLike, words: Collection[str], width: int
) -> dict[str, Float[np.ndarray, " width"]]:
    """Read the vectors of some words from a file with a word and its numbers on each line.

    A first line of two whole numbers, as in word2vec's files, is skipped. Words may contain spaces:
    the last `width` columns are the vector. The first vector of a word counts. Only the vectors of
    given words are checked.
    """
    given = vector_width(path)
    if given != width:
        problem = f"has vectors of {given} numbers, but the model's embeddings have {width}"
        raise bad_file(path, f"{problem}: give --embedding-features {given}")
    found: dict[str, np.ndarray] = {}
    for number, fields in _lines(path):
        if number == 1 and _SIZES.fullmatch(" ".join(fields)):
            continue
        if len(fields) - 1 < width:
            problem = f"{len(fields) - 1} numbers after the word"
            raise bad_line(path, number, f"{problem}, but {width} are wanted on each line")
        word = " ".join(fields[:-width])
        if word in words and word not in found:
            found[word] = _vector(path, number, word, fields[-width:])
    return found


def _vector(
    path: PathLike, number: int, word: str, fields: Sequence[str]
) -> Float[np.ndarray, " width"]:
    """Return the vector of a line from the texts of its numbers."""
    numbers = [read_number(field) for field in fields]
    with np.errstate(over="ignore"):
        vector = np.array([np.nan if one is None else one for one in numbers], np.float32)
    if (wrong := np.flatnonzero(~np.isfinite(vector))).size:
        problem = f"has {quoted(fields[wrong[0]])}, which is no finite number in 32 bits"
        raise bad_line(path, number, f"the vector of {quoted(word)} {problem}")
    return vector


def vectors_of(words: Sequence[str], read: Mapping[str, np.ndarray], width: int) -> WordVectors:
    """Return the vector of each word, or that of its lower-case form if the word has none."""
    table = np.zeros((len(words), width), np.float32)
    found = np.zeros(len(words), bool)
    for row, word in enumerate(words):
        # Published vectors are often of lower-case words only.
        vector = read.get(word, read.get(word.lower()))
        if vector is not None:
            table[row] = vector
            found[row] = True
    return WordVectors(table, found)


def _lines(path: PathLike) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the columns of each line that is not empty."""
    for number, line in enumerate(iter_lines(path), 1):
        if fields := [field for field in line.replace("\t", " ").split(" ") if field]:
            yield number, fields


def _is_number(field: str) -> bool:
    return read_number(field) is not None
