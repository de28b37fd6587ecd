"""Vocabularies of pieces of words: single characters, or byte pairs that are learnt from the training text.

A text is its words, with one space between them, and an `<eos>` after each line. A space belongs to the word
after it. So each distinct word is split once, with a space before it or not, wherever it occurs.
"""

import collections
import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.vocabulary import EOS, Vocabulary
from dynskip_jax.extras import needs

SPACE = "␣"  # how a space is shown
_CHUNK = 1 << 20


class Pieces(NamedTuple):
    """What a text is split into.

    Attributes:
      kind: single characters, or byte pairs (Sennrich et al. 2016).
      size: the number of byte pairs in the vocabulary, at most.
    """

    kind: Literal["characters", "bpe"]
    size: int = 4000


@dataclasses.dataclass(frozen=True)
class CharacterVocabulary(Vocabulary):
    """Single characters."""

    unit: ClassVar[str] = "character"

    def split(self, text: str) -> list[str]:
        """See `Vocabulary`."""
        return list(" ".join(text.split()))

    def join(self, tokens: Sequence[str]) -> str:
        """See `Vocabulary`."""
        return "".join("\n" if token == EOS else token for token in tokens).strip("\n")

    def shown(self, tokens: Sequence[str]) -> list[str]:
        """See `Vocabulary`; a space is `␣`."""
        return [SPACE if token == " " else token for token in tokens]

    def to_json(self) -> dict[str, Any]:
        """See `Vocabulary`."""
        return {"kind": "characters", "tokens": list(self.tokens)}


@dataclasses.dataclass(frozen=True)
class BytePairVocabulary(Vocabulary):
    """Byte pairs; every text can be read, so there is no `<unk>`.

    Attributes:
      tokenizer: of the library `tokenizers`, as JSON.
    """

    unit: ClassVar[str] = "piece"
    tokenizer: str

    @functools.cached_property
    def _tokenizer(self) -> Any:
        with needs("bpe"):
            from tokenizers import Tokenizer
        return Tokenizer.from_str(self.tokenizer)

    def split(self, text: str) -> list[str]:
        """See `Vocabulary`."""
        words = text.split()
        return [piece for form in self.split_all(_with_spaces(words)) for piece in form]

    def split_all(self, words: Sequence[str]) -> list[list[str]]:
        """Return the pieces of each word."""
        return [encoding.tokens for encoding in self._tokenizer.encode_batch(list(words))]

    def join(self, tokens: Sequence[str]) -> str:
        """See `Vocabulary`."""
        lines = (list(line) for is_end, line in itertools.groupby(tokens, EOS.__eq__) if not is_end)
        return "\n".join(self._tokenizer.decoder.decode(line) for line in lines)

    def shown(self, tokens: Sequence[str]) -> list[str]:
        """See `Vocabulary`; a space is `␣`, and `�` stands for a part of a character."""
        decode = self._tokenizer.decoder.decode
        return [token if token == EOS else decode([token]).replace(" ", SPACE) for token in tokens]

    def to_json(self) -> dict[str, Any]:
        """See `Vocabulary`."""
        return {"kind": "bpe", "tokens": list(self.tokens), "tokenizer": json.loads(self.tokenizer)}


class LanguageVocabulary:
    """The vocabulary of a language model: words, characters or byte pairs."""

    @staticmethod
    def from_json(stored: Any) -> Vocabulary:
        """Return the vocabulary that `to_json` of one of them described.

        Raises:
          ValueError: it describes no vocabulary.
        """
        if not isinstance(stored, dict):
            return Vocabulary.from_json(stored)
        tokens = Vocabulary.from_json(stored.get("tokens")).tokens
        if stored.get("kind") == "characters":
            return CharacterVocabulary(tokens)
        if stored.get("kind") == "bpe":
            return BytePairVocabulary(tokens, json.dumps(stored["tokenizer"]))
        raise ValueError(f"no kind of vocabulary: {stored.get('kind')!r}")


class SplitText(NamedTuple):
    """A text in pieces.

    Attributes:
      tokens: the distinct pieces; the first is `<eos>`.
      ids: the place of each piece among `tokens`, for each split.
      characters: the number of characters of each split, an end of line being one.
    """

    tokens: list[str]
    ids: dict[str, Int[np.ndarray, "_"]]
    characters: dict[str, int]


def learn_byte_pairs(words: Sequence[str], ids: Int[np.ndarray, " words"], size: int) -> BytePairVocabulary:
    """Learn byte pairs from a training text.

    Args:
      words: the distinct words; the first is `<eos>`.
      ids: the training text, as places among `words`.
      size: the number of entries, at most; 257 are `<eos>` and the bytes.

    Raises:
      MissingExtra: the library `tokenizers` is not installed.
    """
    with needs("bpe"):
        import tokenizers
    forms = _forms(words)
    counts = np.zeros(len(forms), np.int64)
    for part in consecutive_parts(_form_ids(ids)):
        counts += np.bincount(part, minlength=len(forms))
    # In a fixed order, which does not depend on where the words stand.
    counted = sorted((forms[i], int(counts[i])) for i in np.flatnonzero(counts) if forms[i] != EOS)
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[EOS],
        initial_alphabet=sorted(byte_level.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        (form for form, count in counted for form in itertools.repeat(form, count)), trainer
    )
    tokens = map(tokenizer.id_to_token, range(tokenizer.get_vocab_size()))
    return BytePairVocabulary(tuple(tokens), tokenizer.to_str())


def split_words(
    words: Sequence[str],
    ids: Mapping[str, Int[np.ndarray, "_"]],
    vocabulary: BytePairVocabulary | None = None,
) -> SplitText:
    """Split the words of a text into byte pairs, or into characters.

    Args:
      words: the distinct words; the first is `<eos>`.
      ids: each split, as places among `words`.
      vocabulary: of the byte pairs; None splits into characters.
    """
    forms = _forms(words)
    characters = np.array([1 if form == EOS else len(form) for form in forms])
    if vocabulary is None:
        numbers = collections.defaultdict(itertools.count().__next__)
        tables = [[numbers[piece] for piece in ([form] if form == EOS else form)] for form in forms]
        tokens = list(numbers)
    else:
        tables = [[vocabulary.index[piece] for piece in form] for form in vocabulary.split_all(forms)]
        tokens = list(vocabulary.tokens)
    form_ids = {split: _form_ids(of_split) for split, of_split in ids.items()}
    return SplitText(
        tokens,
        {split: _expand(of_split, tables) for split, of_split in form_ids.items()},
        {
            split: sum(int(characters[part].sum()) for part in consecutive_parts(of_split))
            for split, of_split in form_ids.items()
        },
    )


def _with_spaces(words: Sequence[str]) -> list[str]:
    """Return the words of a line, each but the first with a space before it."""
    return [word if place == 0 else f" {word}" for place, word in enumerate(words)]


def _forms(words: Sequence[str]) -> list[str]:
    """Return each word as it stands at the start of a line, and after another word."""
    return [form for word in words for form in ((word, word) if word == EOS else (word, f" {word}"))]


def _form_ids(ids: Int[np.ndarray, " words"]) -> Int[np.ndarray, " words"]:
    """Return the place of each word among `_forms`; `<eos>` is word 0."""
    form_ids = 2 * ids
    form_ids[1:] += ids[:-1] != 0
    return form_ids


def _expand(form_ids: Int[np.ndarray, " words"], tables: Sequence[Sequence[int]]) -> Int[np.ndarray, "_"]:
    """Return the pieces of all words, one after another."""
    lengths = np.array([len(table) for table in tables])
    starts = np.cumsum(lengths) - lengths
    flat = np.fromiter(itertools.chain.from_iterable(tables), np.int32, int(lengths.sum()))
    found = []
    for part in consecutive_parts(form_ids):
        ends = np.cumsum(lengths[part])
        offsets = np.repeat(starts[part] - (ends - lengths[part]), lengths[part])
        found.append(flat[offsets + np.arange(len(offsets))])
    return np.concatenate(found)


def consecutive_parts(ids: Int[np.ndarray, "_"]) -> Iterator[Int[np.ndarray, "_"]]:
    """Yield views of consecutive parts, so that temporary arrays stay small."""
    return (ids[start : start + _CHUNK] for start in range(0, ids.size, _CHUNK))
