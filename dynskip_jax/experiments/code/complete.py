"""The command `complete`: list the likeliest tokens at a place of a file of source code."""

import json as javascript
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np
from tyro.conf import Positional, arg

from dynskip_jax.config.flags import Count
from dynskip_jax.data.vocabularies import (
    NUMBER,
    NUMBERED_NAMES,
    OTHER,
    STRING,
    CodeToken,
    CodeVocabulary,
)
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.code.reading import (
    CodeBefore,
    code_before,
    names_of_numbers,
    predictions,
    read_code_file,
)
from dynskip_jax.experiments.code.reading import place as place_of
from dynskip_jax.runs.finished import FinishedRun
from dynskip_jax.runs.load import Trained
from dynskip_jax.terminal.console import print_table, say
from dynskip_jax.terminal.messages import shortened

_NEW_NAME = "<new name>"
_PLACEHOLDERS = (_NEW_NAME, STRING, NUMBER, OTHER)
_PLACE = re.compile(r"(.+?)(?::(\d{1,9}))?(?::(\d{1,9}))?", re.DOTALL)

Place = Annotated[str, arg(metavar="FILE:LINE:COLUMN")]


def complete(
    run: FinishedRun, place: Positional[Place], count: Count = 10, json: bool = False
) -> None:
    """List the likeliest tokens at a place of a file, and from where each is copied.

    The model reads what is before the place. Of a name that ends at the place, only continuations
    are listed. Lines and columns count from 1. Without a column the place is the end of the line,
    and without a line the end of the file. With `-` in place of a file it reads standard input, as
    Python.

    Args:
        place: FILE:LINE:COLUMN, FILE:LINE or FILE.
        count: Number of tokens.
        json: Print JSON, for editors.
    """
    file, line, column = _PLACE.fullmatch(place).groups()
    name, text = read_code_file(file)
    offset = _offset(file, text, line, column)
    before = code_before(name, text, offset)
    found = completions(run.last("code.complete"), text, before, count)
    if json:
        say(javascript.dumps(found))  # in ASCII, which every terminal has
        return
    if not found:
        say(f"no token that the model or the file has begins with {before.typed}")
        return
    rows = []
    for entry in found:
        row = [entry["token"], f"{entry['probability']:.3f}"]
        if "line" in entry:
            row += [f"{entry['copied']:.0%}", f"{entry['line']}:{entry['column']}"]
        rows.append(row)
    here = text[:offset].rpartition("\n")[2].strip()
    title = f"after: {shortened(here, 40)}" if here else "at the beginning of a line"
    print_table(title, ["token", "probability", "copied", "from"], rows)


def completions(
    trained: Trained, text: str, before: CodeBefore, count: int = 10
) -> list[dict[str, Any]]:
    """Return the likeliest tokens after what is before a place in a text, as `complete` lists them.

    Placeholders are the last ones.
    """
    vocabulary = trained.vocabulary
    *_, last = predictions(trained, before.tokens)
    probs = last.probs[-1]
    listed = [
        (probability, shown, i)
        for probability, shown, i in _candidates(vocabulary, before.tokens, probs)
        if not before.typed or (shown not in _PLACEHOLDERS and shown.startswith(before.typed))
    ]
    listed = sorted(listed, reverse=True)[:count]
    listed.sort(key=lambda candidate: candidate[1] in _PLACEHOLDERS)
    found = []
    for probability, shown, i in listed:
        share, k = last.copied(-1, i)
        entry = {
            "token": shown,
            "probability": probability,
            "copied": share / max(probability, 1e-30),
        }
        if 0 < k <= len(before.tokens) and entry["copied"] >= 0.01:
            origin = before.tokens[len(before.tokens) - k].start
            entry["line"], entry["column"] = place_of(text, origin)
        found.append(entry)
    return found


def _candidates(
    vocabulary: CodeVocabulary, tokens: Sequence[CodeToken], probs: np.ndarray
) -> Iterator[tuple[float, str, int]]:
    """Yield the probability, the text and the id of each token that may follow `tokens`."""
    names = names_of_numbers(vocabulary, tokens)
    # Numbers that no name of the file has are one entry: a name that is new.
    unused = [i for i in range(1, NUMBERED_NAMES + 1) if vocabulary.tokens[i] not in names]
    if unused:
        yield float(probs[unused].sum()), _NEW_NAME, unused[0]
    for i in set(range(len(vocabulary))) - set(unused):
        known = names.get(vocabulary.tokens[i], {vocabulary.tokens[i]})
        if len(known) == 1:  # of several names of one number none can be told apart
            yield float(probs[i]), *known, i


def _offset(file: str, text: str, line: str | None, column: str | None) -> int:
    """Return the index of a place's character."""
    if line is None:
        return len(text)
    lines = text.split("\n")
    before = lines[: int(line) - 1]
    if not 1 <= int(line) <= len(lines):
        raise UserError(f"{file} has {len(lines):,} lines: there is no line {line}")
    here = lines[int(line) - 1]
    at = len(here) + 1 if column is None else int(column)
    if not 1 <= at <= len(here) + 1:
        raise UserError(
            f"line {line} of {file} has {len(here):,} characters: there is no column {column}"
        )
    return sum(len(each) + 1 for each in before) + at - 1
