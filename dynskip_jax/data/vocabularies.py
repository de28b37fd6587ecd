"""Map between tokens and ids: words, classes, code, and taggers' columns."""

import collections
import dataclasses
import functools
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.tag_schemes import Scheme
from dynskip_jax.errors import UserError
from dynskip_jax.terminal.messages import quoted

EOS = "<eos>"
UNK = "<unk>"
# Tokens of source code that stand for others, besides the numbered names `<name-0>`, `<name-1>`, ….
FILE = "<file>"
NEWLINE = "<newline>"
INDENT = "<indent>"
DEDENT = "<dedent>"
STRING = "<string>"
NUMBER = "<number>"
OTHER = "<other>"
NUMBERED_NAMES = 200

Digits = Literal["keep", "nine", "zero"]
CAPITALS = ("lower", "first", "all", "mixed", "none")
# Character ids of taggers.
_PADDING = 0
_UNKNOWN_CHARACTER = 1
_FIRST_CHARACTER = 2
# Ids in a `character_table`.
_START = 1
_END = 2
_FIRST_SYMBOL = 3


class Stored:
    """A dataclass that a run folder keeps as JSON, with the name of its class."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serializable value."""
        return {"kind": type(self).__name__, **dataclasses.asdict(self)}

    @staticmethod
    def from_json(kept: Mapping[str, Any]) -> Any:
        """Return the vocabulary that `to_json` returned as `kept`, of any class in this module."""
        kinds = (Vocabulary, ClassVocabulary, CodeVocabulary, TaggerVocabulary)
        make = {one.__name__: one for one in kinds}[kept["kind"]]
        fields = {name: value for name, value in kept.items() if name != "kind"}
        for name, value in fields.items():
            if isinstance(value, list):  # JSON has no tuples
                fields[name] = tuple(value)
        return make(**fields)


@dataclasses.dataclass(frozen=True)
class Vocabulary(Stored):
    """Distinct tokens in a fixed order; a token's id is its position."""

    unit: ClassVar[str] = "word"  # name of a token in messages
    start: ClassVar[str] = EOS  # the token that is read before the first one of a text
    restart_token: ClassVar[int | None] = None  # id of the token with which a document begins
    tokens: tuple[str, ...]

    def __post_init__(self):
        if len(self.index) != len(self.tokens):
            raise ValueError("a token occurs twice in the vocabulary")

    def __len__(self) -> int:
        return len(self.tokens)

    @functools.cached_property
    def index(self) -> Mapping[str, int]:
        """Id of each token."""
        return {token: i for i, token in enumerate(self.tokens)}

    def split(self, text: str) -> list[str]:
        """Return the tokens of a line of text, including unknown ones."""
        return text.split()

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens, with line ends for each `<eos>` except at both ends."""
        text = " ".join(map(_as_line_end, tokens))
        return re.sub(" ?\n ?", "\n", text).strip("\n")

    def encode(self, tokens: Sequence[str]) -> Int[np.ndarray, "n"]:
        """Return the ids (int32) of `tokens`; tokens that the vocabulary lacks become `<unk>`."""
        unknown = self.index.get(UNK)
        ids = [self.index.get(token, unknown) for token in tokens]
        if None in ids:
            problem = f"is not among the {len(self):,} of the vocabulary, which has no {UNK}"
            remedy = "use a text without it (explain: --text)"
            raise UserError(f"the token {quoted(tokens[ids.index(None)])} {problem}: {remedy}")
        return np.array(ids, np.int32)

    def decode(self, ids: Int[np.ndarray, "n"]) -> list[str]:
        """Return the tokens of `ids`."""
        return [self.tokens[i] for i in ids.tolist()]


def _as_line_end(token: str) -> str:
    return "\n" if token == EOS else token


def vocabulary_of_counts(counts: Mapping[str, int], min_count: int = 1) -> Vocabulary:
    """Return a text's vocabulary from its counts: most frequent first, then by alphabet.

    It always has `<eos>`, and `<unk>` if the text has it or a token is rarer than `min_count`; the
    count of `<unk>` includes those tokens.
    """
    kept: collections.Counter[str] = collections.Counter({EOS: 0})
    for token, count in counts.items():
        is_kept = count >= min_count or token in (EOS, UNK)
        kept[token if is_kept else UNK] += count
    return Vocabulary(tuple(sorted(kept, key=lambda token: (-kept[token], token))))


def word_vocabulary(
    counts: Mapping[str, int], *, max_words: int | None = None, more_words: Collection[str] = ()
) -> Vocabulary:
    """Return `<unk>`, up to `max_words` frequent words of train, and `more_words` by alphabet."""
    words = sorted({*counts} - {UNK}, key=lambda word: (-counts[word], word))[:max_words]
    return Vocabulary((UNK, *words, *sorted(set(more_words) - {UNK, *words})))


@dataclasses.dataclass(frozen=True)
class ClassVocabulary(Vocabulary):
    """A vocabulary of words with the names of the classes; class i is `classes[i]`."""

    classes: tuple[str, ...] = ()


class CodeToken(NamedTuple):
    """A token of a file; `start` and `stop` are its first character and the one after its last."""

    text: str  # as the vocabulary lists it
    start: int
    stop: int
    is_name: bool = False  # an identifier that is no keyword


@dataclasses.dataclass(frozen=True)
class CodeVocabulary(Vocabulary):
    """A vocabulary of code: `<file>`, numbered names, `num_names` names, and other tokens."""

    unit = "token"
    start = FILE
    restart_token = 0
    num_names: int

    def groups(self, ids: Any) -> dict[str, Any]:
        """Return which ids are names, and which are numbered ones."""
        numbered = (ids > 0) & (ids <= NUMBERED_NAMES)
        return {
            "names": (ids > 0) & (ids <= NUMBERED_NAMES + self.num_names),
            "new_names": numbered,
        }

    def number(self, tokens: Iterable[CodeToken]) -> list[str]:
        """Return the texts of `CodeToken`s; unknown ones become numbered names, or `<other>`.

        Names are numbered by their first appearance in the file, and numbers begin again after 200
        names.
        """
        numbers: dict[str, int] = {}
        found = []
        for token in tokens:
            text = token.text
            if text not in self.index and token.is_name:
                number = numbers.setdefault(text, len(numbers))
                text = f"<name-{number % NUMBERED_NAMES}>"
            found.append(text if text in self.index else OTHER)
        return found


def code_vocabulary(
    train: Iterable[CodeToken], *, min_count: int = 3, max_size: int = 10_000
) -> CodeVocabulary:
    """Return a vocabulary of code; a text that is mostly a name counts as a name."""
    counts = collections.Counter((token.text, token.is_name) for token in train)
    totals: collections.Counter[str] = collections.Counter()
    for (text, _), count in counts.items():
        totals[text] += count
    special = [FILE, *(f"<name-{number}>" for number in range(NUMBERED_NAMES))]
    others = [NEWLINE, INDENT, DEDENT, STRING, NUMBER, OTHER]
    # By alphabet among equally frequent ones, so that ids do not depend on the files' order.
    frequent = sorted(
        (text for text in totals if totals[text] >= min_count), key=lambda t: (-totals[t], t)
    )
    kept = [text for text in frequent if text not in others][
        : max_size - len(special) - len(others)
    ]
    names = [text for text in kept if counts[text, True] > counts[text, False]]
    others += [text for text in kept if counts[text, True] <= counts[text, False]]
    return CodeVocabulary((*special, *names, *others), len(names))


def character_table(
    words: Sequence[str],
) -> tuple[Int[np.ndarray, "vocabulary length"], tuple[str, ...]]:
    """Return the ids of each word's characters, between two marks (Kim et al. 2016), and symbols.

    Id 0 is padding, 1 and 2 mark the start and the end of a word, and the sorted symbols follow:
    characters, and whole words such as `<unk>`.
    """
    spelt = [(word,) if re.fullmatch(r"<[^<>]+>", word) else tuple(word) for word in words]
    symbols = tuple(sorted({symbol for word in spelt for symbol in word}))
    index = {symbol: i for i, symbol in enumerate(symbols, _FIRST_SYMBOL)}
    table = np.full((len(spelt), max(map(len, spelt), default=0) + 2), _PADDING, np.int32)
    for row, word in zip(table, spelt, strict=True):
        row[: len(word) + 2] = [_START, *(index[symbol] for symbol in word), _END]
    return table, symbols


class TokenIds(NamedTuple):
    """Encoded words of a tagger, int32."""

    words: Any  # ids of normal forms, (..., time)
    characters: Any  # padded with 0, (..., time, length)
    capitals: Any  # indices of `CAPITALS`, (..., time)
    columns: Any  # values of other columns, (..., time, columns)


def normal_form(word: str, *, lowercase: bool, digits: Digits) -> str:
    """Return how a vocabulary lists a word; `nine` replaces digits by 9 (Wu et al. 2016)."""
    if digits != "keep":
        word = re.sub(r"\d", {"nine": "9", "zero": "0"}[digits], word)
    return word.lower() if lowercase else word


def capitalisation(word: str) -> int:
    """Return which letters are capitals, as an index of `CAPITALS`; `all` needs several letters."""
    letters = [letter for letter in word if letter.isupper() or letter.islower()]
    upper = sum(letter.isupper() for letter in letters)
    if not letters:
        name = "none"
    elif not upper:
        name = "lower"
    elif upper == 1 and letters[0].isupper():
        name = "first"
    elif upper == len(letters):
        name = "all"
    else:
        name = "mixed"
    return CAPITALS.index(name)


@dataclasses.dataclass(frozen=True)
class TaggerVocabulary(Stored):
    """Words, characters and tags, each in a fixed order."""

    words: tuple[str, ...]  # normal forms: `<unk>`, then those of train, most frequent first
    num_frequent: int  # first id of the rare words, which occur at most once in train
    characters: tuple[str, ...]  # known ones, from id 2; 0 is padding and 1 is unknown
    tags: tuple[str, ...]
    lowercase: bool
    digits: Digits
    word_length: int  # characters of a word that are read; of a longer word the first and last half
    columns: tuple[
        Sequence[str], ...
    ] = ()  # known values of each other column, from id 1; 0 is unknown
    # Of the tags in the files of train; None if they do not mark entities.
    scheme: Scheme | None = None

    @property
    def num_characters(self) -> int:
        """Number of character ids, including padding and unknown."""
        return len(self.characters) + _FIRST_CHARACTER

    def knows(self, word: str) -> bool:
        """Return whether the vocabulary contains the normal form of `word`."""
        return self._normal(word) in self._word_ids

    def encode(
        self, words: Sequence[str], columns: Sequence[Sequence[str]] | None = None
    ) -> TokenIds:
        """Encode a sentence's words, and their values in the other columns, if given."""
        known = {symbol: i for i, symbol in enumerate(self.characters, _FIRST_CHARACTER)}
        table = np.full((len(words), self.word_length), _PADDING, np.int32)
        first = self.word_length // 2
        for row, word in zip(table, words, strict=True):
            # Prefixes and suffixes tell more than what is between them.
            if len(word) > self.word_length:
                word = word[:first] + word[len(word) - (self.word_length - first) :]
            row[: len(word)] = [known.get(symbol, _UNKNOWN_CHARACTER) for symbol in word]
        return TokenIds(
            np.array([self._word_ids.get(self._normal(word), 0) for word in words], np.int32),
            table,
            np.array([capitalisation(word) for word in words], np.int32),
            self.encode_columns(columns or [()] * len(words)),
        )

    def encode_columns(self, columns: Sequence[Sequence[str]]) -> Int[np.ndarray, "words columns"]:
        """Encode the values of other columns for each word of a sentence."""
        if any(len(values) < len(self.columns) for values in columns):
            problem = "this tagger was trained with --columns, which text has not"
            raise UserError(f"{problem}: give it a file of columns (predict --format columns)")
        ids = np.zeros((len(columns), len(self.columns)), np.int32)
        for column, values in enumerate(self.columns):
            known = {value: i for i, value in enumerate(values, 1)}
            ids[:, column] = [known.get(row[column], 0) for row in columns]
        return ids

    def _normal(self, word: str) -> str:
        return normal_form(word, lowercase=self.lowercase, digits=self.digits)

    @functools.cached_property
    def _word_ids(self) -> Mapping[str, int]:
        return {word: i for i, word in enumerate(self.words)}


def tagger_vocabulary(
    train: Iterable[Sequence[str]],
    tags: Sequence[str],
    *,
    lowercase: bool = False,
    digits: Digits = "keep",
    word_length: int = 20,
    more_words: Collection[str] = (),
    columns: Iterable[Sequence[tuple[str, ...]]] = (),
    scheme: Scheme | None = None,
) -> TaggerVocabulary:
    """Return the vocabulary of the training sentences' words, and of their other columns.

    `more_words` are additional normal forms, such as words with pretrained vectors.
    """
    forms = collections.Counter(itertools.chain(*train))
    counts: collections.Counter[str] = collections.Counter()
    for word, count in forms.items():
        counts[normal_form(word, lowercase=lowercase, digits=digits)] += count
    words = word_vocabulary(counts, more_words=more_words).tokens
    symbols = collections.Counter(symbol for word in forms for symbol in word)
    # One tuple of values for each column, over all words.
    values = zip(*(values for sentence in columns for values in sentence), strict=True)
    return TaggerVocabulary(
        words=words,
        num_frequent=1 + sum(counts[word] > 1 for word in words[1:]),
        # Others are unknown, so that the embedding of unknown characters is learned.
        characters=tuple(sorted(symbol for symbol, count in symbols.items() if count > 1)),
        tags=tuple(tags),
        lowercase=lowercase,
        digits=digits,
        word_length=word_length,
        columns=tuple(tuple(sorted(set(of_column))) for of_column in values),
        scheme=scheme,
    )
