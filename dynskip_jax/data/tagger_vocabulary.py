"""What a tagger knows: words in their normal form, characters, tags; sentences as numbers."""

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

PADDING, UNKNOWN = 0, 1  # ids of characters
_FIRST_SYMBOL = 2
CAPITALS = ("lower", "first", "all", "mixed", "none")


class TokenIds(NamedTuple):
    """Words as numbers; each array leads with (*sentences, time).

    Attributes:
        words: id of each word's normal form.
        characters: ids of its characters, (..., time, length), 0 past its end.
        capitals: its capitalisation, an index of `CAPITALS`.
        columns: ids of what stands beside it in other columns of a file, (..., time, columns), 0 unknown.
    """

    words: Any
    characters: Any
    capitals: Any
    columns: Any


def normal_form(word: str, *, lowercase: bool, digits: Digits) -> str:
    """A word as the vocabulary has it: digits become 9 (Wu et al. 2016) or 0, letters lower case, or not."""
    if digits != "keep":
        word = re.sub(r"\d", {"nine": "9", "zero": "0"}[digits], word)
    return word.lower() if lowercase else word


def capitalisation(word: str) -> int:
    """Which letters are capitals, an index of `CAPITALS`: no letter, the first letter alone, all of several,
    others, or none because the word has no letters with case."""
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
        words: normal forms; the first, `<unk>`, stands for all that are not known. Those of train come next,
            the most frequent first.
        num_frequent: the words before this one are no rare ones: `<unk>`, and what train has more than once.
        characters: the first has the id 2: 0 is padding, 1 an unknown one.
        tags: the tags that may be predicted.
        lowercase: see `normal_form`.
        digits: see `normal_form`.
        word_length: characters of a word that are read: of a longer one the first and the last, as many each.
        columns: of each other column that is read the values known; the first one has the id 1.
        scheme: in which the files of train have the tags; None where tags spell out no entities, or in a
            run of an older version.

    Raises:
        UserError: fewer than two characters of a word are to be read.
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
        """Checks what types cannot say."""
        if self.word_length < 2:
            raise UserError(f"at least 2 characters of a word are read, not {self.word_length}")

    @property
    def column_sizes(self) -> tuple[int, ...]:
        """Ids of each other column, the unknown one included."""
        return tuple(len(values) + 1 for values in self.columns)

    @property
    def num_characters(self) -> int:
        """Ids of characters, padding and the unknown one included."""
        return len(self.characters) + _FIRST_SYMBOL

    def knows(self, word: str) -> bool:
        """Whether the word, in its normal form, is one of those known."""
        return self._normal(word) in self._word_ids

    def encode(self, words: Sequence[str], columns: Sequence[Sequence[str]] = ()) -> TokenIds:
        """One sentence, (time, ...), int32.

        Args:
            words: as they are spelled.
            columns: what stands beside each word in the other columns that the vocabulary has.

        Raises:
            UserError: there are other columns, and it is not said what stands in them.
        """
        return self.encode_forms(words)._replace(columns=self.encode_columns(columns, len(words)))

    def encode_forms(self, words: Sequence[str]) -> TokenIds:
        """Words by themselves, (words, ...), int32, without other columns."""
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
        """What stands beside the words of a sentence of this length; see `encode`."""
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
        """The characters of each word, as they are written, padded with 0."""
        known, table = self._character_ids, np.full((len(words), self.word_length), PADDING, np.int32)
        first = self.word_length // 2
        for row, word in zip(table, words, strict=True):
            if len(word) > self.word_length:
                word = word[:first] + word[len(word) - (self.word_length - first) :]
            row[: len(word)] = [known.get(symbol, UNKNOWN) for symbol in word]
        return table

    def unknown_characters(self, words: Iterable[str]) -> set[str]:
        """The characters of these words that are not known."""
        return {symbol for word in words for symbol in word} - self._character_ids.keys()

    def to_json(self) -> dict[str, Any]:
        """What a run folder keeps of it, as JSON holds it."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "TaggerVocabulary":
        """The vocabulary that `to_json` described."""
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
    """The vocabulary of a training split.

    Args:
        train: the words of each sentence.
        tags: those that may be predicted.
        lowercase: see `normal_form`.
        digits: see `normal_form`.
        min_count: normal forms that train has fewer times are `<unk>`.
        min_character_count: characters that distinct words of train have fewer times are unknown ones, which
            teaches the model what those are.
        word_length: see `TaggerVocabulary`.
        more_words: normal forms that train need not have, such as words of other splits that have pretrained
            vectors; they come last.
        columns: what stands beside the words of each sentence of train in other columns.
        scheme: in which the files of train have the tags.
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
