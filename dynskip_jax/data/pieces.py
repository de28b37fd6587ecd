"""Split words into pieces: single characters, or byte pairs that are learned from the training text.

A text consists of words with one space between them, and an `<eos>` after each line. A space belongs to the
word after it. So each distinct word has two forms, with and without a leading space, and each form is split
only once.
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

SPACE = "␣"  # displayed in place of a space
_CHUNK = 1 << 20


class Pieces(NamedTuple):
    """The units into which words are split.

    Attributes:
      kind: Single characters, or byte pairs (BPE, Sennrich et al. 2016).
      size: Maximum size of the vocabulary of byte pairs, including `<eos>` and the 256 bytes.
    """

    kind: Literal["characters", "bpe"]
    size: int = 4000


@dataclasses.dataclass(frozen=True)
class CharacterVocabulary(Vocabulary):
    """A vocabulary of single characters."""

    unit: ClassVar[str] = "character"

    def split(self, text: str) -> list[str]:
        """See `Vocabulary`."""
        return list(" ".join(text.split()))

    def join(self, tokens: Sequence[str]) -> str:
        """See `Vocabulary`."""
        return "".join("\n" if token == EOS else token for token in tokens).strip("\n")

    def shown(self, tokens: Sequence[str]) -> list[str]:
        """See `Vocabulary`; a space becomes `␣`."""
        return [SPACE if token == " " else token for token in tokens]

    def to_json(self) -> dict[str, Any]:
        """See `Vocabulary`."""
        return {"kind": "characters", "tokens": list(self.tokens)}


@dataclasses.dataclass(frozen=True)
class BytePairVocabulary(Vocabulary):
    """A vocabulary of byte pairs; every text can be split into them, so there is no `<unk>`.

    Attributes:
      tokenizer: A `tokenizers.Tokenizer` as JSON.
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
        """See `Vocabulary`; a space becomes `␣`, and a part of a character becomes `�`."""
        decode = self._tokenizer.decoder.decode
        return [token if token == EOS else decode([token]).replace(" ", SPACE) for token in tokens]

    def to_json(self) -> dict[str, Any]:
        """See `Vocabulary`."""
        return {"kind": "bpe", "tokens": list(self.tokens), "tokenizer": json.loads(self.tokenizer)}


class LanguageVocabulary:
    """Loader for any vocabulary of a language model: words, characters or byte pairs."""

    @staticmethod
    def from_json(stored: Any) -> Vocabulary:
        """Return the vocabulary for the JSON values that the `to_json` of any of these vocabularies returned.

        Raises:
          ValueError: The values do not describe a vocabulary.
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
    """A text that is split into pieces.

    Attributes:
      tokens: Distinct pieces; the first is `<eos>`.
      ids: For each split, the index in `tokens` of each piece of the text.
      characters: Number of characters of each split; the end of a line counts as one.
    """

    tokens: list[str]
    ids: dict[str, Int[np.ndarray, "_"]]
    characters: dict[str, int]


def learn_byte_pairs(words: Sequence[str], ids: Int[np.ndarray, " words"], size: int) -> BytePairVocabulary:
    """Learn a vocabulary of byte pairs from a training text.

    Args:
      words: Distinct words; the first is `<eos>`.
      ids: The training text, as indices into `words`.
      size: Maximum number of entries, including `<eos>` and the 256 bytes.

    Raises:
      MissingExtra: The library `tokenizers` is not installed.
    """
    with needs("bpe"):
        import tokenizers
    forms = _forms(words)
    counts = np.zeros(len(forms), np.int64)
    for part in consecutive_parts(_form_ids(ids)):
        counts += np.bincount(part, minlength=len(forms))
    # Sorted, so that the result does not depend on the order of the words in the text.
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
      words: Distinct words; the first is `<eos>`.
      ids: For each split, the text as indices into `words`.
      vocabulary: Vocabulary of the byte pairs; None splits words into characters.
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
    """Return the words of a line, with a space before every word except the first."""
    return [word if place == 0 else f" {word}" for place, word in enumerate(words)]


def _forms(words: Sequence[str]) -> list[str]:
    """Return the two forms of each word: at the start of a line, and with a space after another word.

    Both forms of `<eos>` are the same.
    """
    return [form for word in words for form in ((word, word) if word == EOS else (word, f" {word}"))]


def _form_ids(ids: Int[np.ndarray, " words"]) -> Int[np.ndarray, " words"]:
    """Return the index in `_forms` of each word of a text; `ids` are indices of words, where 0 is `<eos>`."""
    form_ids = 2 * ids
    form_ids[1:] += ids[:-1] != 0
    return form_ids


def _expand(form_ids: Int[np.ndarray, " words"], tables: Sequence[Sequence[int]]) -> Int[np.ndarray, "_"]:
    """Return the piece ids of a text, one form after another; `tables[i]` has the piece ids of form i."""
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
    """Yield views of consecutive parts of `ids`, so that temporary arrays stay small."""
    return (ids[start : start + _CHUNK] for start in range(0, ids.size, _CHUNK))
