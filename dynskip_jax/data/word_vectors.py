"""Word vectors from a text file, as GloVe and word2vec write them; only those that are asked for are kept."""

import gzip
import os
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from dynskip_jax.errors import UserError

PathLike = str | os.PathLike[str]


class WordVectors(NamedTuple):
    """The vectors of a vocabulary.

    Attributes:
        table: one row for each word, zeros where the file has none, (words, width).
        found: whether it has one, (words,).
    """

    table: Float[np.ndarray, "words width"]
    found: Bool[np.ndarray, " words"]


def read_word_vectors(
    path: PathLike, words: Collection[str], width: int
) -> dict[str, Float[np.ndarray, " width"]]:
    """Reads the vectors of some words: a word and its numbers on each line, apart by blanks.

    A first line of two whole numbers, as word2vec writes it, says how many words there are and how wide their
    vectors. Words may hold blanks, as some of GloVe's do. Of a word that comes twice the first vector counts.
    The number of columns is checked on every line, numbers only where they are kept.

    Args:
        path: a text file in UTF-8, plain or .gz.
        words: those to be read.
        width: how many numbers a vector has to have.

    Raises:
        UserError: the file cannot be read, or a line is not as it should be; the message names the line.
    """
    found: dict[str, np.ndarray] = {}
    seen = False
    for number, line in _numbered_lines(path):
        fields = line.rstrip(" \t\r\n").replace("\t", " ").split(" ")
        if number == 1 and len(fields) == 2 and all(field.isdecimal() for field in fields):
            if int(fields[1]) != width:
                raise _bad_line(path, 1, f"vectors of {fields[1]} numbers, but {width} are wanted")
            continue
        if fields == [""]:
            continue
        seen = True
        given = len(fields) - 1
        if given < width or (given > width and _are_numbers(fields[1:])):
            wanted = "are wanted" if number == 1 else "are wanted on each line"
            raise _bad_line(path, number, f"{given} numbers after the word, but {width} {wanted}")
        word = " ".join(fields[:-width])
        if word not in words or word in found:
            continue
        try:
            vector = np.array(fields[-width:], np.float32)
        except ValueError as error:
            raise _bad_line(path, number, f"the vector of {word!r} is no list of numbers ({error})") from None
        if not np.isfinite(vector).all():
            raise _bad_line(path, number, f"the vector of {word!r} is not finite")
        found[word] = vector
    if not seen:
        raise UserError(f"{path} holds no word vector: is it the right file?")
    return found


def vectors_of(path: PathLike, words: Sequence[str], width: int) -> WordVectors:
    """The vector of each word, or that of its lower-case form where the file has none.

    Args:
        path: see `read_word_vectors`.
        words: the vocabulary.
        width: how many numbers a vector has.

    Raises:
        UserError: see `read_word_vectors`.
    """
    wanted = {form for word in words for form in (word, word.lower())}
    read = read_word_vectors(path, wanted, width)
    table, found = np.zeros((len(words), width), np.float32), np.zeros(len(words), bool)
    for row, word in enumerate(words):
        vector = read.get(word, read.get(word.lower()))
        if vector is not None:
            table[row], found[row] = vector, True
    return WordVectors(table, found)


def _numbered_lines(path: PathLike) -> Iterator[tuple[int, str]]:
    """The lines of a text file, one at a time: files of vectors are large."""
    path, number = Path(path), 0
    try:
        with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
            for number, line in enumerate(file, 1):
                yield number, line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad_line(path, number, "no UTF-8 text: is it a binary file? Convert it to text") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _bad_line(path, number + 1, f"a damaged gzip file ({error}): fetch it again") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): check its name") from error


def _are_numbers(fields: Sequence[str]) -> bool:
    try:
        [float(field) for field in fields]
    except ValueError:
        return False
    return True


def _bad_line(path: PathLike, number: int, problem: str) -> UserError:
    return UserError(f"{path}, line {number}: {problem}")
