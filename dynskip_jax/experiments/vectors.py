"""Word vectors from a file, as initial embeddings."""

import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from dynskip_jax.data.word_vectors import WordVectors, read_word_vectors, vectors_of


class _VectorFile:
    """A file of word vectors that is read again only when new words are requested."""

    def __init__(self, path: Path, width: int):
        self._path, self._width = path, width
        self._asked: set[str] = set()
        self._found: Mapping[str, np.ndarray] = {}

    def read(self, words: Collection[str]) -> Mapping[str, np.ndarray]:
        """Return the vectors of words and of their lowercase forms, including those of earlier calls."""
        wanted = {form for word in words for form in (word, word.lower())}
        if not wanted <= self._asked:
            self._asked |= wanted
            self._found = read_word_vectors(self._path, self._asked, self._width)
        return self._found


_file = functools.lru_cache(maxsize=1)(_VectorFile)


def words_with_vectors(
    path: Path, width: int, words: Collection[str], beside: Collection[str] = ()
) -> set[str]:
    """Return the words that have a vector in a file; `beside` are others that will be asked for."""
    found = _file(path, width).read({*words, *beside})
    return {word for word in words if word in found or word.lower() in found}


def vectors_for(path: Path | None, width: int, words: Sequence[str]) -> WordVectors | None:
    """Return the vectors of a vocabulary's words; None without a file."""
    return None if path is None else vectors_of(words, _file(path, width).read(words), width)


def with_vectors(fingerprint: str, vectors: WordVectors | None) -> str:
    """Return a hash (SHA-256, hex) over data and vectors, but not over the path of their file."""
    if vectors is None:
        return fingerprint
    digest = hashlib.sha256(fingerprint.encode())
    digest.update(vectors.table.astype("<f4").tobytes())
    return digest.hexdigest()


def begin_with(vectors: WordVectors | None, init: Callable[..., Any]) -> Callable[..., Any]:
    """Return an initializer of embeddings: pretrained vectors, and what `init` draws for other words."""

    def start(key: Any, shape: tuple[int, ...], dtype: Any = jnp.float32, out_sharding: Any = None) -> Any:
        drawn = init(key, shape, dtype)
        if vectors is None:
            return drawn
        return jnp.where(vectors.found[:, None], vectors.table.astype(dtype), drawn)

    return start
