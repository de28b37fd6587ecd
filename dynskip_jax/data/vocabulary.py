"""Define the vocabulary, which maps between tokens and integer ids, and build it from a text."""

import collections
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.messages import quoted
from dynskip_jax.errors import UserError

EOS = "<eos>"
UNK = "<unk>"


def join_tokens(tokens: Sequence[str]) -> str:
    """Return tokens as readable text, with a line end in place of each `<eos>`.

    Line ends at the start and end of the text are removed. So the first `<eos>` of `<eos> the cat`, which
    marks the start of a line, adds no empty line. Two `<eos>` in a row between words are an empty line. For
    lines that contain words, this function is the inverse of `tokenize`.
    """
    lines: list[list[str]] = [[]]
    for token in tokens:
        if token == EOS:
            lines.append([])
        else:
            lines[-1].append(token)
    return "\n".join(" ".join(line) for line in lines).strip("\n")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Distinct tokens in a fixed order; a token's id is its position.

    Attributes:
      tokens: Tokens; `tokens[i]` has the id i.

    Raises:
      ValueError: If a token occurs twice.
    """

    unit: ClassVar[str] = "word"  # Name of a token in messages.
    tokens: tuple[str, ...]

    def __post_init__(self):
        if len(self.index) != len(self.tokens):
            repeated = next(t for t, n in collections.Counter(self.tokens).items() if n > 1)
            raise ValueError(f"the token {repeated!r} occurs twice in the vocabulary")

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
        """Return the text of tokens; see `join_tokens`."""
        return join_tokens(tokens)

    def shown(self, tokens: Sequence[str]) -> list[str]:
        """Return the tokens in a readable form."""
        return list(tokens)

    def to_json(self) -> Any:
        """Return the vocabulary as a JSON-serializable value, for the run folder."""
        return list(self.tokens)

    @classmethod
    def from_json(cls, kept: Any) -> "Vocabulary":
        """Return the vocabulary that `to_json` returned as `kept`.

        Raises:
          ValueError: If `kept` is not a list of words.
        """
        if not isinstance(kept, list) or not all(isinstance(word, str) for word in kept):
            raise ValueError("no list of words")
        return cls(tuple(kept))

    def encode(self, tokens: Sequence[str]) -> Int[np.ndarray, "n"]:
        """Return the ids (int32) of `tokens`; tokens that the vocabulary lacks become `<unk>`.

        Raises:
          UserError: If a token is unknown and the vocabulary has no `<unk>`.
        """
        index, unknown = self.index, self.index.get(UNK)
        if unknown is None:
            missing = next((token for token in tokens if token not in index), None)
            if missing is not None:
                raise UserError(
                    f"the token {quoted(missing)} is not among the {len(self):,} of the vocabulary, which "
                    f"has no {UNK}: replace the token, or add {UNK} to the vocabulary"
                )
        ids = (index.get(token, unknown) for token in tokens)
        return np.fromiter(ids, dtype=np.int32, count=len(tokens))

    def decode(self, ids: Int[np.ndarray, "n"]) -> list[str]:
        """Return the tokens of `ids`.

        Raises:
          ValueError: If an id is outside of 0 .. len(self) - 1.
        """
        if ids.size and (ids.min() < 0 or ids.max() >= len(self)):
            raise ValueError(f"ids must lie in 0..{len(self) - 1}, found {ids.min()}..{ids.max()}")
        return [self.tokens[i] for i in ids.tolist()]


def build_vocabulary(tokens: Iterable[str], max_size: int | None = None, min_count: int = 1) -> Vocabulary:
    """Return the vocabulary of a text, most frequent token first, ties in alphabetical order.

    The vocabulary always contains `<eos>`. It contains `<unk>` if the text does or if a token is dropped.
    Both are ordered by frequency like other tokens; the frequency of `<unk>` includes the tokens that it
    replaces.

    Args:
      tokens: Tokens of the text.
      max_size: Maximum number of entries, including `<eos>` and `<unk>`; None keeps all.
      min_count: Tokens that occur less often are dropped.

    Raises:
      ValueError: If `max_size` is less than 2, which leaves no room for `<eos>` and `<unk>`.
    """
    return vocabulary_of_counts(collections.Counter(tokens), max_size, min_count)


def vocabulary_of_counts(
    counts: Mapping[str, int], max_size: int | None = None, min_count: int = 1
) -> Vocabulary:
    """Return the vocabulary of a text from the count of each token; see `build_vocabulary`.

    Raises:
      ValueError: If `max_size` is less than 2, which leaves no room for `<eos>` and `<unk>`.
    """
    if max_size is not None and max_size < 2:
        raise ValueError(f"max_size must be at least 2, for {EOS} and {UNK}, not {max_size}")
    counts = collections.Counter(counts)

    def rank(token: str) -> tuple[int, str]:
        return -counts[token], token

    words = sorted(counts.keys() - {EOS, UNK}, key=rank)
    kept = [word for word in words if counts[word] >= min_count]
    # <unk> takes an entry only if a word is dropped or the text has it; that entry counts towards `max_size`.
    needs_unknown = UNK in counts or len(kept) < len(words)
    if max_size is not None and 1 + needs_unknown + len(kept) > max_size:
        needs_unknown = True
        kept = kept[: max_size - 2]
    dropped = set(words) - set(kept)
    specials = {EOS, UNK} if needs_unknown else {EOS}
    counts[UNK] += sum(counts[word] for word in dropped)
    return Vocabulary(tuple(sorted([*kept, *specials], key=rank)))
