"""Build a tagger's vocabulary of words, characters and tags, and encode sentences with it."""

import collections
import dataclasses
import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.tag_schemes import Scheme
from dynskip_jax.data.vocabulary import UNK
from dynskip_jax.errors import UserError

Digits = Literal["keep", "nine", "zero"]

PADDING, UNKNOWN = 0, 1  # Character ids.
_FIRST_SYMBOL = 2
CAPITALS = ("lower", "first", "all", "mixed", "none")


class TokenIds(NamedTuple):
    """Encoded words; the leading axes of each array are (*sentences, time).

    Attributes:
        words: Id of each word's normal form, (..., time).
        characters: Ids of each word's characters, (..., time, length), padded with 0.
        capitals: Capitalisation of each word, an index of `CAPITALS`, (..., time).
        columns: Ids of each word's values in other columns of a file, (..., time, columns); 0 is unknown.
    """

    words: Any
    characters: Any
    capitals: Any
    columns: Any


def normal_form(word: str, *, lowercase: bool, digits: Digits) -> str:
    """Return the normal form of a word, under which the vocabulary lists it.

    Args:
        word: Word as it is spelled.
        lowercase: Whether to convert the word to lower case.
        digits: `nine` replaces each digit by 9 (Wu et al. 2016), `zero` by 0; `keep` replaces none.
    """
    if digits != "keep":
        word = re.sub(r"\d", {"nine": "9", "zero": "0"}[digits], word)
    return word.lower() if lowercase else word


def capitalisation(word: str) -> int:
    """Return the capitalisation of a word, as an index of `CAPITALS`.

    The classes are: no capitals (`lower`), only the first letter (`first`), all of several letters (`all`),
    any other capitals (`mixed`), and no letters with case (`none`).
    """
    cased = [letter for letter in word if letter.isupper() or letter.islower()]
    upper = sum(letter.isupper() for letter in cased)
    if not cased:
        return CAPITALS.index("none")
    if upper == 0:
        return CAPITALS.index("lower")
    if upper == 1 and cased[0].isupper():
        return CAPITALS.index("first")
    return CAPITALS.index("all" if upper == len(cased) else "mixed")


@dataclasses.dataclass(frozen=True)
class TaggerVocabulary:
    """Words, characters and tags, each in a fixed order.

    Attributes:
        words: Normal forms of words. The first one is `<unk>`, which stands for all unknown words. The words
            of train come next, the most frequent ones first.
        num_frequent: First id of the rare words. Smaller ids are `<unk>` and words that occur more than once
            in train.
        characters: Known characters. The first one has the id 2, because 0 is padding and 1 is unknown.
        tags: Tags that may be predicted.
        lowercase: See `normal_form`.
        digits: See `normal_form`.
        word_length: Maximum number of characters of a word to read. Of a longer word only the beginning and
            the end are read, about half of the characters each.
        columns: Known values of each other column that is read; the first value has the id 1.
        scheme: Scheme of the tags in the files of train. None if the tags do not mark entities, or if the run
            was made by an older version.

    Raises:
        UserError: If `word_length` is less than 2.
    """

    words: tuple[str, ...]
    num_frequent: int
    characters: tuple[str, ...]
    tags: tuple[str, ...]
    lowercase: bool
    digits: Digits
    word_length: int
    columns: tuple[Sequence[str], ...] = ()
    scheme: Scheme | None = None

    def __post_init__(self) -> None:
        """Check that `word_length` is at least 2."""
        if self.word_length < 2:
            raise UserError(f"at least 2 characters of a word are read, not {self.word_length}")

    @property
    def column_sizes(self) -> tuple[int, ...]:
        """Number of ids of each other column, including that of unknown values."""
        return tuple(len(values) + 1 for values in self.columns)

    @property
    def num_characters(self) -> int:
        """Number of character ids, including padding and unknown."""
        return len(self.characters) + _FIRST_SYMBOL

    def knows(self, word: str) -> bool:
        """Return whether the vocabulary contains the normal form of `word`."""
        return self._normal(word) in self._word_ids

    def encode(self, words: Sequence[str], columns: Sequence[Sequence[str]] = ()) -> TokenIds:
        """Encode one sentence as int32 arrays of shape (time, ...).

        Args:
            words: Words as they are spelled.
            columns: Values of the vocabulary's other columns for each word; ignored if it has none.

        Raises:
            UserError: If the vocabulary has other columns and `columns` does not have one entry per word.
        """
        return self.encode_forms(words)._replace(columns=self.encode_columns(columns, len(words)))

    def encode_forms(self, words: Sequence[str]) -> TokenIds:
        """Encode words as int32 arrays of shape (words, ...), without values of other columns."""
        known = self._word_ids
        return TokenIds(
            np.array([known.get(self._normal(word), 0) for word in words], np.int32),
            self.spell(words),
            np.array([capitalisation(word) for word in words], np.int32),
            np.zeros((len(words), 0), np.int32),
        )

    def encode_columns(
        self, columns: Sequence[Sequence[str]], length: int
    ) -> Int[np.ndarray, "length columns"]:
        """Encode the values of other columns for a sentence of `length` words; see `encode`."""
        if not self.columns:
            return np.zeros((length, 0), np.int32)
        if len(columns) != length:
            raise UserError(
                "this tagger was trained with --columns, which text has not: give it a file of columns "
                "(predict --format columns)"
            )
        known = self._column_ids
        ids = [[of.get(value, 0) for of, value in zip(known, row, strict=True)] for row in columns]
        return np.array(ids, np.int32)

    def spell(self, words: Sequence[str]) -> Int[np.ndarray, "words length"]:
        """Encode the characters of each word as it is spelled, padded with 0; see `word_length`."""
        known, table = self._character_ids, np.full((len(words), self.word_length), PADDING, np.int32)
        first = self.word_length // 2
        for row, word in zip(table, words, strict=True):
            if len(word) > self.word_length:
                word = word[:first] + word[len(word) - (self.word_length - first) :]
            row[: len(word)] = [known.get(symbol, UNKNOWN) for symbol in word]
        return table

    def unknown_characters(self, words: Iterable[str]) -> set[str]:
        """Return the characters of `words` that the vocabulary lacks."""
        return {symbol for word in words for symbol in word} - self._character_ids.keys()

    def to_json(self) -> dict[str, Any]:
        """Return the vocabulary as a JSON-serializable value, for the run folder."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "TaggerVocabulary":
        """Return the vocabulary that `to_json` returned as `kept`."""
        return cls(
            **{name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
        )

    def _normal(self, word: str) -> str:
        return normal_form(word, lowercase=self.lowercase, digits=self.digits)

    @functools.cached_property
    def _word_ids(self) -> Mapping[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    @functools.cached_property
    def _column_ids(self) -> Sequence[Mapping[str, int]]:
        return [{value: i for i, value in enumerate(values, 1)} for values in self.columns]

    @functools.cached_property
    def _character_ids(self) -> Mapping[str, int]:
        return {symbol: i for i, symbol in enumerate(self.characters, _FIRST_SYMBOL)}


def tagger_vocabulary(
    train: Iterable[Sequence[str]],
    tags: Sequence[str],
    *,
    lowercase: bool = False,
    digits: Digits = "keep",
    min_count: int = 1,
    min_character_count: int = 2,
    word_length: int = 20,
    more_words: Collection[str] = (),
    columns: Iterable[Sequence[tuple[str, ...]]] = (),
    scheme: Scheme | None = None,
) -> TaggerVocabulary:
    """Return the vocabulary of a training split.

    Args:
        train: Words of each sentence.
        tags: Tags that may be predicted.
        lowercase: See `normal_form`.
        digits: See `normal_form`.
        min_count: Normal forms that occur less often in train become `<unk>`.
        min_character_count: Characters that occur less often in the distinct words of train become unknown,
            so that the model learns an embedding of unknown characters.
        word_length: See `TaggerVocabulary`.
        more_words: Additional normal forms, which train may lack, such as words of other splits with
            pretrained vectors. They come last, in alphabetical order.
        columns: Values of other columns for each word of each sentence of train.
        scheme: Scheme of the tags in the files of train.
    """
    forms = collections.Counter(word for sentence in train for word in sentence)
    counts: collections.Counter[str] = collections.Counter()
    for word, count in forms.items():
        counts[normal_form(word, lowercase=lowercase, digits=digits)] += count
    counts.pop(UNK, None)
    kept = [word for word, count in counts.items() if count >= min_count]
    kept.sort(key=lambda word: (-counts[word], word))
    symbols = collections.Counter(symbol for word in forms for symbol in word)
    return TaggerVocabulary(
        words=(UNK, *kept, *sorted(set(more_words) - {UNK, *kept})),
        num_frequent=1 + sum(counts[word] > 1 for word in kept),
        characters=tuple(sorted(s for s, count in symbols.items() if count >= min_character_count)),
        tags=tuple(tags),
        lowercase=lowercase,
        digits=digits,
        word_length=word_length,
        columns=tuple(
            tuple(sorted(set(values)))
            for values in zip(*(values for sentence in columns for values in sentence), strict=True)
        ),
        scheme=scheme,
    )
