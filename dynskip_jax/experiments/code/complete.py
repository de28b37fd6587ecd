"""The command `complete`: list the likeliest next tokens at a place of a file of source code."""

import json as javascript
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dynskip_jax.commands.finished import FinishedRun
from dynskip_jax.config import Count
from dynskip_jax.console import print_table, say
from dynskip_jax.data.vocabularies import NUMBERED_NAMES, CodeToken
from dynskip_jax.experiments.code.reading import (
    Lines,
    Predictions,
    copied,
    predictions,
    read_code_file,
    tokens_before,
)
from dynskip_jax.trained import Trained

_PLACE = re.compile(r"(.+?)(?::(\d{1,9}))?(?::(\d{1,9}))?", re.DOTALL)
_NEW_NAME = "<new name>"


def complete(run: FinishedRun, place: str, count: Count = 10, json: bool = False) -> None:
    """List the likeliest tokens at a place of a file, and from where each is copied.

    The model reads what is before the place. Lines and columns count from 1. Without a column the place is
    the end of the line, and without a line the end of the file. With `-` in place of a file it reads standard
    input, as Python.

    Args:
        place: FILE:LINE:COLUMN, FILE:LINE or FILE.
        count: Number of tokens.
        json: Print JSON, for editors.
    """
    file, line, column = _PLACE.fullmatch(place).groups()
    name, text = read_code_file(file)
    lines = Lines(text)
    offset = lines.offset(file, line and int(line), column and int(column))
    tokens = tokens_before(name, text, offset)
    trained = run.last("code.complete")
    *_, last = predictions(trained, tokens)
    found = likeliest(trained, tokens, last, lines, count)
    if json:
        at = dict(zip(("line", "column"), lines.place(offset), strict=True))
        say(javascript.dumps({"file": file, **at, "tokens": found}, ensure_ascii=False))
        return
    rows = [
        [
            each["token"],
            f"{each['probability']:.3f}",
            f"{each['copied']:.0%}" if each["from"] else "",
            "{line}:{column}".format(**each["from"]) if each["from"] else "",
        ]
        for each in found
    ]
    print_table("", ["token", "probability", "copied", "from"], rows)


def likeliest(
    trained: Trained, tokens: Sequence[CodeToken], found: Predictions, lines: Lines, count: int
) -> list[dict[str, Any]]:
    """Return the most probable tokens after `tokens`; `found` has their predictions.

    Each has its real name, its probability, the fraction of it that is copied, and the place from which most
    is copied.
    """
    vocabulary = trained.vocabulary
    numbered = zip(vocabulary.number(tokens), tokens, strict=True)
    real = {text: token.text for text, token in numbered if text.startswith("<name-")}
    probs = np.exp(found.log_probs[-1])
    # Numbers that no name of the file has are one entry: a name that is new.
    unused = [i for i in range(1, NUMBERED_NAMES + 1) if vocabulary.tokens[i] not in real]
    probs[unused[:1]] = probs[unused].sum()
    probs[unused[1:]] = -1
    entries = []
    for i in np.argsort(-probs)[: min(count, (probs >= 0).sum())].tolist():
        share, k = copied(found, -1, i)
        text, origin = vocabulary.tokens[i], None
        if 0 < k <= len(tokens) and share >= 0.01 * probs[i]:
            line, column = lines.place(tokens[len(tokens) - k].start)
            origin = {"line": line, "column": column}
        entries.append(
            {
                "token": _NEW_NAME if i in unused else real.get(text, text),
                "probability": round(float(probs[i]), 6),
                "copied": round(share / max(float(probs[i]), 1e-30), 6) if k else 0.0,
                "from": origin,
            }
        )
    return entries
