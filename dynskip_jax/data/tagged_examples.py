"""Tagged sentences as examples: ids of words, characters and tags, in buckets by length."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from dynskip_jax.data.batching import Batch
from dynskip_jax.data.examples import Examples, pad_sequences
from dynskip_jax.data.tagger_vocabulary import TaggerVocabulary, TokenIds

_FIRST = 8  # the least length to which sentences are padded


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggedExamples(Examples):
    """Sentences; their characters are looked up batch by batch, for a table of all would be large.

    Attributes:
        spellings: the characters of each distinct word, (forms, length); `inputs.characters` has the number
            of each word's own, and a batch its characters.
    """

    spellings: Int[np.ndarray, "forms length"]

    def batch(
        self, index: Int[np.ndarray, "*lead rows"], mask: Bool[np.ndarray, "*lead rows"] | None, bucket: int
    ) -> Batch:
        """See `Examples`; characters are (*lead, rows, time, length)."""
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
    """The examples of a split.

    Args:
        sentences: the words of each.
        tags: the index of each word's tag.
        vocabulary: what is known.
        columns: what stands beside the words of each in the other columns that the vocabulary has.
        least: so many sentences have a bucket of their own; see `sentence_buckets`.
        most: how many buckets there may be; likewise.
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
    """The least of 8, 16, 24, 40, 64, 104, 168 and so on (eight times the Fibonacci numbers) that is no less:
    few lengths, so that few programs are compiled, and the same ones for all splits."""
    size, following = _FIRST, 2 * _FIRST
    while size < length:
        size, following = following, size + following
    return size


def sentence_buckets(
    lengths: Int[np.ndarray, " sentences"], least: int, most: int | None = None
) -> tuple[int, ...]:
    """The padded lengths of a split; one that fewer sentences than `least` have is left to the next.

    Where these are more than `most`, `least` is doubled.
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
