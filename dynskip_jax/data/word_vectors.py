"""Read the vectors of given words from a text file in the format of GloVe or word2vec."""

import re
from collections.abc import Collection, Iterator

import numpy as np
from jaxtyping import Float

from dynskip_jax.data.files import PathLike, iter_lines
from dynskip_jax.terminal.messages import bad_file, bad_line, quoted

_SIZES = re.compile(r"[0-9]+ ([0-9]+)")
_NUMBERS = re.compile(r"(?: [+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)+$")


def vector_width(path: PathLike) -> int:
    """Return the size of the vectors: that in a first line of sizes, or that of the first line."""
    _, fields = next(_lines(path), (0, []))
    first = " ".join(fields)
    if sizes := _SIZES.fullmatch(first):
        return int(sizes[1])
    if numbers := _NUMBERS.search(first):
        return numbers[0].count(" ")
    problem = "has no numbers in its first line: expected a word and its vector on each line"
    raise bad_file(path, problem)


def read_word_vectors(
    path: PathLike, words: Collection[str], width: int
) -> dict[str, Float[np.ndarray, " width"]]:
    """Read the vectors of some words from a file with a word and its numbers on each line.

    Words may contain spaces: the last `width` columns are the vector. The first vector of a word
    counts. Lines of other words are not checked, nor is a first line of sizes, as word2vec's files
    have it.
    """
    given = vector_width(path)
    if given != width:
        problem = f"has vectors of {given} numbers, but the model's embeddings have {width}"
        raise bad_file(path, f"{problem}: give --embedding-features {given}")
    found: dict[str, np.ndarray] = {}
    for number, fields in _lines(path):
        word = " ".join(fields[:-width])
        if word not in words or word in found:
            continue
        try:
            found[word] = np.array([float(field) for field in fields[-width:]], np.float32)
        except ValueError as error:
            raise bad_line(path, number, f"the vector of {quoted(word)}: {error}") from None
    return found


def _lines(path: PathLike) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the columns of each line that is not empty."""
    for number, line in enumerate(iter_lines(path), 1):
        if fields := [field for field in line.replace("\t", " ").split(" ") if field]:
            yield number, fields
