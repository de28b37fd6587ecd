"""A vocabulary: the two-way mapping between tokens and integer ids."""

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
    """The text of tokens, for people: each `<eos>` ends a line, and text neither begins nor ends with one.

    For lines with words it undoes `tokenize`. The first `<eos>` of `<eos> the cat`, which tells a model that
    a line begins, is no line of its own; two of them in a row are an empty line.
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
      tokens: the tokens, `tokens[i]` being the one with id i.

    Raises:
      ValueError: when a token occurs twice.
    """

    unit: ClassVar[str] = "word"  # what a token is called
    tokens: tuple[str, ...]

    def __post_init__(self):
        if len(self.index) != len(self.tokens):
            repeated = next(t for t, n in collections.Counter(self.tokens).items() if n > 1)
            raise ValueError(f"the token {repeated!r} occurs twice in the vocabulary")

    def __len__(self) -> int:
        return len(self.tokens)

    @functools.cached_property
    def index(self) -> Mapping[str, int]:
        """The id of each token."""
        return {token: i for i, token in enumerate(self.tokens)}

    def split(self, text: str) -> list[str]:
        """Return the tokens of a line of text, known or not."""
        return text.split()

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens."""
        return join_tokens(tokens)

    def shown(self, tokens: Sequence[str]) -> list[str]:
        """Return the tokens as people read them."""
        return list(tokens)

    def to_json(self) -> Any:
        """What a run folder keeps of it, as JSON holds it."""
        return list(self.tokens)

    @classmethod
    def from_json(cls, kept: Any) -> "Vocabulary":
        """The vocabulary that `to_json` described.

        Raises:
          ValueError: it is no list of words.
        """
        if not isinstance(kept, list) or not all(isinstance(word, str) for word in kept):
            raise ValueError("no list of words")
        return cls(tuple(kept))

    def encode(self, tokens: Sequence[str]) -> Int[np.ndarray, "n"]:
        """Ids (int32) of `tokens`; those that the vocabulary lacks become `<unk>`.

        Raises:
          UserError: for an unknown token when the vocabulary has no `<unk>`.
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
        """Tokens of `ids`.

        Raises:
          ValueError: for an id outside 0 .. len(self) - 1.
        """
        if ids.size and (ids.min() < 0 or ids.max() >= len(self)):
            raise ValueError(f"ids must lie in 0..{len(self) - 1}, found {ids.min()}..{ids.max()}")
        return [self.tokens[i] for i in ids.tolist()]


def build_vocabulary(tokens: Iterable[str], max_size: int | None = None, min_count: int = 1) -> Vocabulary:
    """The vocabulary of a text, most frequent token first, ties in alphabetical order.

    `<eos>` is always in it; `<unk>` is in it when the text has it or when a token is dropped. Both stand at
    the place of their frequency, that of `<unk>` including the occurrences it replaces.

    Args:
      tokens: the text.
      max_size: the most entries to keep, `<eos>` and `<unk>` included; None keeps all.
      min_count: tokens that occur less often are dropped.

    Raises:
      ValueError: when `max_size` leaves no room for `<eos>` and `<unk>`.
    """
    return vocabulary_of_counts(collections.Counter(tokens), max_size, min_count)


def vocabulary_of_counts(
    counts: Mapping[str, int], max_size: int | None = None, min_count: int = 1
) -> Vocabulary:
    """Return the vocabulary of a text whose tokens are counted; see `build_vocabulary`.

    Raises:
      ValueError: when `max_size` leaves no room for `<eos>` and `<unk>`.
    """
    if max_size is not None and max_size < 2:
        raise ValueError(f"max_size must be at least 2, for {EOS} and {UNK}, not {max_size}")
    counts = collections.Counter(counts)

    def rank(token: str) -> tuple[int, str]:
        return -counts[token], token

    words = sorted(counts.keys() - {EOS, UNK}, key=rank)
    kept = [word for word in words if counts[word] >= min_count]
    # <unk> takes a place only where it is needed, and whether it is depends on the room it leaves.
    needs_unknown = UNK in counts or len(kept) < len(words)
    if max_size is not None and 1 + needs_unknown + len(kept) > max_size:
        needs_unknown = True
        kept = kept[: max_size - 2]
    dropped = set(words) - set(kept)
    specials = {EOS, UNK} if needs_unknown else {EOS}
    counts[UNK] += sum(counts[word] for word in dropped)
    return Vocabulary(tuple(sorted([*kept, *specials], key=rank)))
