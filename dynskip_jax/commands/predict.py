"""The command `predict`: write a finished model's prediction for each text."""

import io
import sys
from collections.abc import Iterator
from typing import Any, Literal

from dynskip_jax.config.experiment import imported
from dynskip_jax.data.files import stream_lines
from dynskip_jax.errors import UserError
from dynskip_jax.runs.finished import FinishedRun
from dynskip_jax.terminal.console import say, write

Format = Literal["text", "words", "columns"]


def predict(run: FinishedRun, format: Format = "text") -> None:
    """Read one text per line, and write a prediction for each; taggers write a tag for each word.

    It reads standard input: `predict --run-dir DIR < FILE`. Tags of entities and chunks are written
    in BIO2.

    Args:
        format: Taggers: text (a sentence per line), words (the same, separated by spaces) or
            columns (a word per line, an empty line after each sentence).
    """
    trained = run.last("predict")
    predicted = imported(trained.experiment.write)(trained, input_lines(), format)
    count = 0
    for text, is_empty in predicted:
        if not count and not is_empty:  # now, so that an error in the input is the only message
            say(f"predictions by {trained.name}, seed {trained.seed}", sys.stderr)
        count += not is_empty
        # Each prediction leaves at once, so that another program can wait for it.
        write(text)
        sys.stdout.flush()
    if not count:
        raise UserError("standard input has no text: write one text per line")


def input_lines() -> Iterator[str]:
    """Yield the lines of standard input as they arrive, cut where training cuts them."""
    source: Any = getattr(sys.stdin, "buffer", sys.stdin)
    if isinstance(source, io.TextIOBase):  # tests and notebooks replace standard input by text
        yield from source
    else:
        yield from stream_lines(source, "standard input")
