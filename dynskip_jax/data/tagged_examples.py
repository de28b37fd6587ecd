"""Turn tagged sentences into examples: ids of words, characters and tags, in buckets by length."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from dynskip_jax.data.batches import Batch, Examples, pad_sequences
from dynskip_jax.data.tagger_vocabulary import TaggerVocabulary, TokenIds

_FIRST = 8  # The shortest length to which sentences are padded.


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggedExamples(Examples):
    """Sentences as ids; the characters of words are looked up for each batch, to save memory.

    Attributes:
        spellings: Character ids of each distinct word, (forms, length). `inputs.characters` contains the row
            of each word in this table; `batch` replaces the row numbers by the characters.
    """

    spellings: Int[np.ndarray, "forms length"]

    def batch(
        self, index: Int[np.ndarray, "*lead rows"], mask: Bool[np.ndarray, "*lead rows"] | None, bucket: int
    ) -> Batch:
        """Return a batch as `Examples.batch` does; `inputs.characters` is (*lead, rows, time, length)."""
        batch = super().batch(index, mask, bucket)
        characters = self.spellings[batch.inputs.characters]
        return batch._replace(inputs=batch.inputs._replace(characters=characters))


def tagged_examples(
    sentences: Sequence[Sequence[str]],
    tags: Sequence[Sequence[int]],
    vocabulary: TaggerVocabulary,
    *,
    columns: Sequence[Sequence[tuple[str, ...]]] | None = None,
    least: int = 1,
    most: int | None = None,
) -> TaggedExamples:
    """Return the examples of a split.

    Args:
        sentences: Words of each sentence.
        tags: Tag index of each word of each sentence.
        vocabulary: Vocabulary of words, characters, and values of other columns.
        columns: Values of the vocabulary's other columns for each word of each sentence; None if it has none.
        least: Minimum number of sentences of a bucket; see `sentence_buckets`.
        most: Maximum number of buckets; see `sentence_buckets`.
    """
    forms = {word: i for i, word in enumerate(dict.fromkeys(word for words in sentences for word in words))}
    known = vocabulary.encode_forms(list(forms))
    numbers = [np.array([forms[word] for word in words], np.int32) for words in sentences]
    padded, lengths = pad_sequences(numbers)
    inside = np.arange(padded.shape[1]) < lengths[:, None]
    beside = np.zeros((*padded.shape, len(vocabulary.columns)), np.int32)
    for row, values, length in zip(beside, columns or [()] * len(beside), lengths, strict=True):
        row[:length] = vocabulary.encode_columns(values, int(length))
    inputs = TokenIds(
        *(np.where(inside, ids, 0) for ids in (known.words[padded], padded, known.capitals[padded])), beside
    )
    targets, _ = pad_sequences([np.array(row, np.int32) for row in tags])
    buckets = sentence_buckets(lengths, least, most)
    return TaggedExamples(inputs, targets, lengths, buckets=buckets, spellings=known.characters)


def padded_length(length: int) -> int:
    """Return the smallest of 8, 16, 24, 40, 64, 104, 168, … (8 times the Fibonacci numbers) >= `length`.

    All splits share these few lengths, so that few programs are compiled.
    """
    size, following = _FIRST, 2 * _FIRST
    while size < length:
        size, following = following, size + following
    return size


def sentence_buckets(
    lengths: Int[np.ndarray, " sentences"], least: int, most: int | None = None
) -> tuple[int, ...]:
    """Return the padded lengths (buckets) of a split.

    Args:
        lengths: Length of each sentence.
        least: Minimum number of sentences of a bucket. Smaller buckets are merged into the next longer one;
            only the longest bucket may have fewer sentences.
        most: Maximum number of buckets; None means no maximum. `least` is doubled until the maximum holds.
    """
    sizes, counts = np.unique([padded_length(int(length)) for length in lengths], return_counts=True)
    kept, waiting = [], 0
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        waiting += count
        if waiting >= least or size == sizes[-1]:
            kept.append(size)
            waiting = 0
    if most is not None and len(kept) > max(1, most):
        return sentence_buckets(lengths, 2 * least, most)
    return tuple(kept)
