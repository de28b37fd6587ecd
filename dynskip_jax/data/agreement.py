"""Agreement at a distance: bracketed text whose last word has to agree with the one that opened its clause.

A positive control, made by this project: text by a grammar, where the right skip is known. A clause is opened
by a word of one of several kinds, in one of several forms, and closed by a word of the same kind; in between
stand fillers and whole other clauses, and no kind is opened again while it is open. The last word closes a
clause that was opened anywhere before: the answer is the form in which it was opened, and the right choice at
the last step is the state that had just read the opening word.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from dynskip_jax.errors import UserError

NUM_KINDS, NUM_FORMS, NUM_FILLERS = 8, 10, 10
NUM_OPENING = NUM_KINDS * NUM_FORMS
NUM_SYMBOLS = NUM_OPENING + NUM_KINDS + NUM_FILLERS
SHORTEST, LONGEST = 5, 500
DEFAULT_SIZES: Mapping[str, int] = {"train": 50_000, "dev": 5_000, "test": 5_000}
_FILLER_RATE = 0.4
_OPENING_RATE = 0.5  # of what is no filler, where both opening and closing are possible
_KINDS = "abcdefgh"


class Texts(NamedTuple):
    """Texts side by side.

    Attributes:
        symbols: padded with 0 at the end, (examples, time).
        lengths: words of each, (examples,).
        forms: those asked for, (examples,).
        places: where they stand, (examples,).
    """

    symbols: Int[np.ndarray, "examples time"]
    lengths: Int[np.ndarray, " examples"]
    forms: Int[np.ndarray, " examples"]
    places: Int[np.ndarray, " examples"]


@dataclasses.dataclass(frozen=True)
class AgreementData:
    """The examples of one largest length.

    Attributes:
        name: such as `agreement/length_50`.
        splits: for `train`, `dev` and `test` the texts.
        source: a phrase for people: where the examples came from.
    """

    name: str
    splits: Mapping[str, "Texts"]
    source: str = "made by its grammar"

    @property
    def sizes(self) -> dict[str, int]:
        """Examples of each split."""
        return {split: len(texts.forms) for split, texts in self.splits.items()}

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over all arrays."""
        digest = hashlib.sha256()
        for split, texts in self.splits.items():
            digest.update(f"{split} {texts.symbols.shape}\n".encode())
            for array in texts:
                digest.update(array.astype("<i4").tobytes())
        return digest.hexdigest()


def opening(kind: int, form: int) -> int:
    """Returns the symbol that opens a clause."""
    return kind * NUM_FORMS + form


def closing(kind: int) -> int:
    """Returns the symbol that closes it."""
    return NUM_OPENING + kind


def symbol_names() -> list[str]:
    """Returns how people write each symbol: `a3` opens a clause of kind a in form 3, `)a` closes it."""
    words = [f"{kind}{form}" for kind in _KINDS for form in range(NUM_FORMS)]
    return [*words, *(f"){kind}" for kind in _KINDS), *(f"w{i}" for i in range(NUM_FILLERS))]


def example(length: int, rng: np.random.Generator) -> tuple[list[int], int, int]:
    """Draws one text.

    Args:
        length: its words, the last of which closes the clause that is asked for.
        rng: where it is drawn from.

    Returns:
        The symbols, the form asked for, and the position of the word that shows it, uniform before the last.
    """
    at = int(rng.integers(length - 1))
    symbols, open_kinds = _text(at, [], must_close=False, rng=rng)
    kind = int(rng.choice([kind for kind in range(NUM_KINDS) if kind not in open_kinds]))
    form = int(rng.integers(NUM_FORMS))
    inside, _ = _text(length - at - 2, [*open_kinds, kind], must_close=True, rng=rng)
    return [*symbols, opening(kind, form), *inside, closing(kind)], form, at


def _text(
    length: int, held: list[int], *, must_close: bool, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Text of so many words, and the kinds that it leaves open; those that are held stay open throughout."""
    symbols, own = [], []
    for left in range(length, 0, -1):
        if must_close and len(own) == left:
            symbols.append(closing(own.pop()))
            continue
        free = [kind for kind in range(NUM_KINDS) if kind not in held and kind not in own]
        # One kind stays free for the clause that is asked for, and what is opened has to be closed in time.
        may_open = len(free) > 1 and not (must_close and left <= len(own) + 1)
        is_filler = rng.random() < _FILLER_RATE
        if not is_filler and may_open and (not own or rng.random() < _OPENING_RATE):
            own.append(int(rng.choice(free)))
            symbols.append(opening(own[-1], int(rng.integers(NUM_FORMS))))
        elif not is_filler and own:
            symbols.append(closing(own.pop()))
        else:
            symbols.append(NUM_OPENING + NUM_KINDS + int(rng.integers(NUM_FILLERS)))
    return symbols, own


def generate(length: int, sizes: Mapping[str, int] = DEFAULT_SIZES, seed: int = 0) -> AgreementData:
    """Draws all examples: the length of each is uniform from 5 to the largest one.

    A split's examples do not depend on how many others there are.

    Raises:
        UserError: the length is none that the task has.
    """
    if not SHORTEST <= length <= LONGEST:
        raise UserError(f"agreement has lengths from {SHORTEST} to {LONGEST}, not {length}")
    splits = {}
    for stream, (split, size) in enumerate(sizes.items()):
        rng = np.random.default_rng([seed, stream])
        drawn = [example(int(rng.integers(SHORTEST, length + 1)), rng) for _ in range(size)]
        symbols = np.zeros((size, length), np.int32)
        for row, (text, _, _) in zip(symbols, drawn, strict=True):
            row[: len(text)] = text
        lengths, forms, places = (
            np.array(column, np.int32)
            for column in zip(*((len(text), form, at) for text, form, at in drawn), strict=True)
        )
        splits[split] = Texts(symbols, lengths, forms, places)
    return AgreementData(f"agreement/length_{length}", splits)


def answer(symbols: Int[np.ndarray, " time"]) -> tuple[int, int]:
    """Returns the form that the last word asks for and where it stands: the last opening of its kind.

    Raises:
        UserError: the last word closes nothing that was opened.
    """
    kind = int(symbols[-1]) - NUM_OPENING
    places = [t for t, symbol in enumerate(symbols[:-1]) if symbol // NUM_FORMS == kind]
    if not 0 <= kind < NUM_KINDS or not places:
        raise UserError("the last word of a text closes a clause that was opened before, such as `a3 w0 )a`")
    return int(symbols[places[-1]]) % NUM_FORMS, places[-1]
