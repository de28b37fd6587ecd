"""The command `complete`: list the likeliest tokens at a place of a file of source code."""

import json as javascript
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np
from tyro.conf import Positional, arg

from dynskip_jax.config import Count
from dynskip_jax.console import print_table, say
from dynskip_jax.data.messages import shortened
from dynskip_jax.data.source_code import ends_inside
from dynskip_jax.data.vocabularies import NUMBERED_NAMES, CodeToken, CodeVocabulary
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.code.reading import place as place_of
from dynskip_jax.experiments.code.reading import predictions, read_code_file, tokens_before
from dynskip_jax.finished import FinishedRun

# What is listed instead at a place inside what the model does not read.
_COMPLETED = {
    "string": "listed are tokens that may stand in place of the whole string",
    "comment": "listed are tokens that may follow the code before the comment",
}
_PLACE = re.compile(r"(.+?)(?::(\d{1,9}))?(?::(\d{1,9}))?", re.DOTALL)


Place = Annotated[str, arg(metavar="FILE:LINE:COLUMN")]


def complete(
    run: FinishedRun, place: Positional[Place], count: Count = 10, json: bool = False
) -> None:
    """List the likeliest tokens at a place of a file, and from where each is copied.

    The model reads what is before the place. Lines and columns count from 1. Without a column the
    place is the end of the line, and without a line the end of the file. With `-` in place of a
    file it reads standard input, as Python.

    Args:
        place: FILE:LINE:COLUMN, FILE:LINE or FILE.
        count: Number of tokens.
        json: Print JSON, for editors.
    """
    file, line, column = _PLACE.fullmatch(place).groups()
    name, text = read_code_file(file)
    offset = _offset(file, text, line, column)
    tokens = tokens_before(name, text, offset)
    if (inside := ends_inside(name, text[:offset])) is not None:
        # On standard error, because standard output may be JSON.
        say(f"the place is inside a {inside}: {_COMPLETED[inside]}", sys.stderr)
    trained = run.last("code.complete")
    vocabulary = trained.vocabulary
    *_, last = predictions(trained, tokens)

    found = [
        _entry(shown, last.copied(-1, i), probability, text, tokens)
        for i, shown, probability in _likeliest(vocabulary, tokens, last.probs[-1], count)
    ]
    if json:
        say(javascript.dumps(found, ensure_ascii=False))
        return
    rows = []
    for entry in found:
        row = [entry["token"], f"{entry['probability']:.3f}"]
        if "line" in entry:
            row += [f"{entry['copied']:.0%}", f"{entry['line']}:{entry['column']}"]
        rows.append(row)
    before = text[:offset].rpartition("\n")[2].strip()
    title = f"after: {shortened(before, 40)}" if before else "at the beginning of a line"
    print_table(title, ["token", "probability", "copied", "from"], rows)


def _likeliest(
    vocabulary: CodeVocabulary, tokens: Sequence[CodeToken], probs: np.ndarray, count: int
) -> Iterator[tuple[int, str, float]]:
    """Yield the ids of the likeliest next tokens, their texts and their probabilities."""
    numbered = zip(vocabulary.number(tokens), tokens, strict=True)
    real = {number: token.text for number, token in numbered if number.startswith("<name-")}
    # Numbers that no name of the file has are one entry: a name that is new. The first of them has
    # their sum; the others, below 0, are not listed.
    unused = [i for i in range(1, NUMBERED_NAMES + 1) if vocabulary.tokens[i] not in real]
    probs = probs.copy()
    probs[unused[:1]] = probs[unused].sum()
    probs[unused[1:]] = -1
    for i in np.argsort(-probs)[: min(count, (probs >= 0).sum())].tolist():
        shown = real.get(vocabulary.tokens[i], vocabulary.tokens[i])
        if i in unused:
            shown = "<new name>"
        yield i, shown, float(probs[i])


def _entry(
    shown: str,
    copied: tuple[float, int],
    probability: float,
    text: str,
    tokens: Sequence[CodeToken],
) -> dict[str, Any]:
    """Return what is listed of a token: which share of its probability is copied, and from where.

    `copied` is that of `Predictions`.
    """
    share, k = copied
    entry = {
        "token": shown,
        "probability": probability,
        "copied": share / max(probability, 1e-30),
    }
    if 0 < k <= len(tokens) and entry["copied"] >= 0.01:
        origin = place_of(text, tokens[len(tokens) - k].start)
        entry |= dict(zip(("line", "column"), origin, strict=True))
    return entry


def _offset(file: str, text: str, line: str | None, column: str | None) -> int:
    """Return the index of a place's character."""
    if line is None:
        return len(text)
    lines = text.split("\n")
    if not 1 <= int(line) <= len(lines):
        # The last one is empty if the file ends with a line feed: a place, but no line of its own.
        count = len(lines) - (not lines[-1])
        raise UserError(f"{file} has {count:,} lines: there is no line {line}")
    before = lines[: int(line) - 1]
    here = lines[int(line) - 1]
    if column is not None and not 1 <= int(column) <= len(here) + 1:
        raise UserError(
            f"line {line} of {file} has {len(here):,} characters: there is no column {column}"
        )
    return sum(len(each) + 1 for each in before) + (
        len(here) if column is None else int(column) - 1
    )
