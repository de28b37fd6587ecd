"""The command `explain`: write a page that shows from where the tokens of a file are copied."""

import contextlib
from pathlib import Path

import numpy as np

from dynskip_jax.commands.finished import FinishedRun
from dynskip_jax.console import say
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.code.page import TokenReading, code_page
from dynskip_jax.experiments.code.reading import copied, predictions, read_code_file, tokens_before
from dynskip_jax.training.files import check_new, write_atomically
from dynskip_jax.training.folder import file_name


def explain(run: FinishedRun, file: str, html: Path | None = None) -> None:
    """Write a page with a file's code that shows from where each token is copied.

    Args:
        file: A file of source code; `-` is standard input, as Python.
        html: Where the page is written; by default into the run folder, below `plots`.
    """
    if html is not None:
        check_new(html)
    name, text = read_code_file(file)
    tokens = tokens_before(name, text, len(text))
    if not tokens:
        raise UserError(f"{file} has no code: there is nothing to read")
    trained = run.last("code.explain")
    ids = trained.vocabulary.encode(trained.vocabulary.number(tokens))
    readings: list[TokenReading] = []
    for part in predictions(trained, tokens):
        for t, token in enumerate(ids[len(readings) : len(readings) + len(part.log_probs)].tolist()):
            n = len(readings)
            share, k = copied(part, t, token)
            if not k and part.copying is not None:  # what the agent would have copied
                k = int(part.copying[t].argmax()) + 1
            readings.append(
                TokenReading(
                    probability=float(np.exp(part.log_probs[t, token])),
                    without=float(np.exp(part.log_probs_without[t, token])),
                    copied=share,
                    origin=n - k if 0 < k <= n else None,
                )
            )
    title = f"{name}: {trained.name}, seed {trained.seed}"
    page = code_page(title, name, text, tokens, readings)
    with run.warned() if html is None else contextlib.nullcontext():
        path = html or run.run_dir / "plots" / file_name(f"explain-{name}.html")
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, page)
        say(f"page: {path}")
