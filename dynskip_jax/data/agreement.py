"""Generate the agreement task: predict how the clause was opened that the last word closes.

An opening word has a kind and a form; a closing word has only a kind, and closes the open one of
this kind. A clause contains filler words and complete other clauses. No kind is opened again while
it is open. The answer is the form of the word that opened the last clause; the right skip at the
last step leads to the state right after that word.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from dynskip_jax.data.batches import generated
from dynskip_jax.data.dataset import Dataset
from dynskip_jax.data.vocabularies import Vocabulary
from dynskip_jax.errors import UserError
from dynskip_jax.terminal.messages import shown

NUM_KINDS = 8
NUM_FORMS = 10
NUM_FILLERS = 10
NUM_OPENING = NUM_KINDS * NUM_FORMS
NUM_SYMBOLS = NUM_OPENING + NUM_KINDS + NUM_FILLERS
SHORTEST = 5
LONGEST = 500
DEFAULT_SIZES: Mapping[str, int] = {"dev": 5_000, "test": 5_000}
_FILLER_RATE = 0.4
_OPENING_RATE = 0.5  # among words that are not fillers, where both opening and closing are possible
_KINDS = "abcdefgh"


def symbol_names() -> list[str]:
    """Return each symbol's name: `a3` opens a clause of kind a in form 3, `)a` closes it."""
    words = [f"{kind}{form}" for kind in _KINDS for form in range(NUM_FORMS)]
    return [*words, *(f"){kind}" for kind in _KINDS), *(f"w{i}" for i in range(NUM_FILLERS))]


def example(length: int, rng: np.random.Generator) -> tuple[list[int], int, int]:
    """Draw a text of at least 2 words; return it, the answer, and where its clause opens."""
    at = int(rng.integers(length - 1))
    symbols, open_kinds = _text(at, [], must_close=False, rng=rng)
    # The answer's clause is of a kind that is not open, so that its end belongs to one opening.
    kind = int(rng.choice([kind for kind in range(NUM_KINDS) if kind not in open_kinds]))
    form = int(rng.integers(NUM_FORMS))
    inside, _ = _text(length - at - 2, [*open_kinds, kind], must_close=True, rng=rng)
    return [*symbols, kind * NUM_FORMS + form, *inside, NUM_OPENING + kind], form, at


def _text(
    length: int, held: list[int], *, must_close: bool, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Draw a part of a text, and the kinds that it leaves open; those of `held` stay open."""
    symbols = []
    own = []
    # `own` is a stack: clauses are closed in the reverse order of their opening.
    for left in range(length, 0, -1):
        # As many words are left as clauses are open.
        if must_close and len(own) == left:
            symbols.append(NUM_OPENING + own.pop())
            continue
        free = [kind for kind in range(NUM_KINDS) if kind not in held and kind not in own]
        # One kind stays free for the clause of the answer. With `must_close`, a clause is opened
        # only if enough words are left to close all open ones.
        may_open = len(free) > 1 and not (must_close and left <= len(own) + 1)
        is_filler = rng.random() < _FILLER_RATE
        if not is_filler and may_open and (not own or rng.random() < _OPENING_RATE):
            own.append(int(rng.choice(free)))
            symbols.append(own[-1] * NUM_FORMS + int(rng.integers(NUM_FORMS)))
        elif not is_filler and own:
            symbols.append(NUM_OPENING + own.pop())
        else:
            symbols.append(NUM_OPENING + NUM_KINDS + int(rng.integers(NUM_FILLERS)))
    return symbols, own


def load_agreement(length: int, train_examples: int) -> Dataset:
    """Draw texts, padded with 0, their answers, and their lengths, uniform from 5 to `length`."""
    if not SHORTEST <= length <= LONGEST:
        raise UserError(f"agreement has lengths from {SHORTEST} to {LONGEST}, not {shown(length)}")
    splits = {}
    for stream, (split, size) in enumerate({"train": train_examples, **DEFAULT_SIZES}.items()):
        rng = np.random.default_rng([0, stream])
        drawn = [example(int(rng.integers(SHORTEST, length + 1)), rng) for _ in range(size)]
        symbols = np.zeros((size, length), np.int32)
        for row, (text, _, _) in zip(symbols, drawn, strict=True):
            row[: len(text)] = text
        lengths = np.array([len(text) for text, _, _ in drawn], np.int32)
        splits[split] = symbols, np.array([form for _, form, _ in drawn], np.int32), lengths
    return generated(f"agreement/length_{length}", splits, Vocabulary(tuple(symbol_names())))


def answer(symbols: Int[np.ndarray, " time"]) -> tuple[int, int]:
    """Return the form and the position of the word that opened the clause of the last word."""
    kind = int(symbols[-1]) - NUM_OPENING
    # The last opening of this kind: a kind is open once at most.
    place = max(t for t, symbol in enumerate(symbols[:-1]) if symbol // NUM_FORMS == kind)
    return int(symbols[place]) % NUM_FORMS, place
