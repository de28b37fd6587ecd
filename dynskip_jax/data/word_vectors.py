"""Read the vectors of given words from a text file in the format of GloVe or word2vec."""

import itertools
import re
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from dynskip_jax.data.files import PathLike, iter_lines
from dynskip_jax.data.messages import bad_file, bad_line, quoted

_SIZES = re.compile(r"[0-9]{1,12} [0-9]{1,12}")
_LOOKED_AT = 100  # number of lines that are examined for the width of the vectors


class WordVectors(NamedTuple):
    """The vector of each word of a vocabulary, zeros if the file has none, and whether it has one."""

    table: Float[np.ndarray, "words width"]
    found: Bool[np.ndarray, " words"]


def vector_width(path: PathLike) -> int:
    """Return the size of the vectors: that in a first line of sizes, or that of most lines."""
    rows = [fields for _, fields in itertools.islice(_rows(path), _LOOKED_AT)]
    if not rows:
        raise bad_file(path, "holds no word vector: is it the right file?")
    if _SIZES.fullmatch(" ".join(rows[0])) and (len(rows) == 1 or len(rows[1]) > 2):
        return int(rows[0][1])
    # How many of the last columns are numbers, without the first column.
    counts = [sum(1 for _ in itertools.takewhile(_is_number, fields[:0:-1])) for fields in rows]
    width = min(statistics.multimode(counts))
    if not width:
        raise bad_file(path, "has no numbers after most words: expected a word and its vector on each line")
    return width


def read_word_vectors(
    path: PathLike, words: Collection[str], width: int
) -> dict[str, Float[np.ndarray, " width"]]:
    """Read the vectors of some words from a file with a word and its numbers on each line.

    A first line of two whole numbers, as in word2vec's files, is left out. Words may contain spaces: the last
    `width` columns are the vector. The first vector of a word counts, and only given words are checked.
    """
    given = vector_width(path)
    if given != width:
        problem = f"has vectors of {given} numbers, but the model's embeddings have {width}"
        raise bad_file(path, f"{problem}: give --embedding-features {given}")
    found: dict[str, np.ndarray] = {}
    for place, (number, fields) in enumerate(_rows(path)):
        if not place and len(fields) == 2 and width > 1:
            continue  # `vector_width` has checked that this line has two whole numbers
        if len(fields) - 1 < width:
            problem = f"{len(fields) - 1} numbers after the word, but {width} are wanted on each line"
            raise bad_line(path, number, problem)
        word = " ".join(fields[:-width])
        if word in words and word not in found:
            numbers = [float(field) if _is_number(field) else np.nan for field in fields[-width:]]
            with np.errstate(over="ignore"):
                found[word] = np.array(numbers, np.float32)
            if (wrong := np.flatnonzero(~np.isfinite(found[word]))).size:
                field = quoted(fields[wrong[0] - width])
                problem = f"the vector of {quoted(word)} has {field}, which is no finite number in 32 bits"
                raise bad_line(path, number, problem)
    return found


def vectors_of(words: Sequence[str], read: Mapping[str, np.ndarray], width: int) -> WordVectors:
    """Return the vector of each word, or that of its lower-case form if the word has none."""
    table, found = np.zeros((len(words), width), np.float32), np.zeros(len(words), bool)
    for row, word in enumerate(words):
        vector = read.get(word, read.get(word.lower()))
        if vector is not None:
            table[row], found[row] = vector, True
    return WordVectors(table, found)


def _rows(path: PathLike) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and columns, separated by spaces or tabs, of each line that is not empty."""
    for number, line in enumerate(iter_lines(path), 1):
        if fields := [field for field in line.replace("\t", " ").split(" ") if field]:
            yield number, fields


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
