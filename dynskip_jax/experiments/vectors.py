"""Word vectors from a file, as initial embeddings."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from dynskip_jax.config.experiment import Dataset
from dynskip_jax.data import batches
from dynskip_jax.data.vocabularies import UNK
from dynskip_jax.data.word_vectors import read_word_vectors, vector_width


class WordVectors(NamedTuple):
    """The vector of each word of a vocabulary, zeros if the file has none, and whether it has."""

    table: Float[np.ndarray, "words width"]
    found: Bool[np.ndarray, " words"]


def width_of_vectors(settings: Any) -> dict[str, int]:
    """Return the size of embeddings, if they begin with vectors from a file."""
    path = settings.data.embeddings
    if path is None:
        return {}
    return {"embedding_features": vector_width(path)}


def read_vectors(path: Path | None, words: Collection[str], width: int) -> Mapping[str, np.ndarray]:
    """Return the vectors in a file of words, their lowercase forms and `<unk>`."""
    if path is None:
        return {}
    return read_word_vectors(path, {UNK, *words, *(word.lower() for word in words)}, width)


def having(words: Collection[str], read: Mapping[str, np.ndarray]) -> set[str]:
    """Return the words that have a vector, or whose lowercase form has one."""
    return {word for word in words if word in read or word.lower() in read}


def with_vectors(
    data: Dataset,
    path: Path | None,
    words: Sequence[str],
    read: Mapping[str, np.ndarray],
    width: int,
) -> Dataset:
    """Return a data set whose embeddings of `words` begin with vectors, if there is a `path`.

    The fingerprint covers the vectors, but not the path of their file.
    """
    if path is None:
        return data
    table = np.zeros((len(words), width), np.float32)
    found = np.zeros(len(words), bool)
    for row, word in enumerate(words):
        # Published vectors are often of lower-case words only.
        vector = read.get(word, read.get(word.lower()))
        if vector is not None:
            table[row] = vector
            found[row] = True
    line = (
        f"vectors: {path} has {found.sum():,} of {len(words):,} words ({100 * found.mean():.1f} %)"
    )
    return dataclasses.replace(
        data,
        # Another file of vectors is another data set: a run cannot be resumed with it.
        fingerprint=batches.fingerprint(data.fingerprint, table),
        lines=[*data.lines, line],
        vectors=WordVectors(table, found),
    )


def begin_with(vectors: WordVectors | None, init: Callable[..., Any]) -> Callable[..., Any]:
    """Return an initializer of embeddings: pretrained vectors, and `init` for other words."""
    if vectors is None:
        return init

    def start(
        key: Any, shape: tuple[int, ...], dtype: Any = jnp.float32, out_sharding: Any = None
    ) -> Any:
        return jnp.where(
            vectors.found[:, None], vectors.table.astype(dtype), init(key, shape, dtype)
        )

    return start
