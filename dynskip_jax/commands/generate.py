"""The command `generate`: write text with a trained language model."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from dynskip_jax.analysis import reading
from dynskip_jax.config import Bounds
from dynskip_jax.console import say, write
from dynskip_jax.data.vocabularies import UNK
from dynskip_jax.trained import load_run


def generate(
    run_dir: Path,
    model: str | None = None,
    text: str = "",
    words: Annotated[int, Bounds(at_least=1, at_most=1_000_000)] = 60,
    temperature: Annotated[float, Bounds(above=0)] = 0.8,
    key: Annotated[int, Bounds(at_least=0, at_most=2**32 - 1)] = 0,
    of_seed: int | None = None,
    code: str | None = None,
) -> None:
    """Write text with a trained language model.

    Args:
        run_dir: A finished run folder, of one model or of several compared.
        model: Name of the model, if the run compares several; by default the last.
        text: Beginning of the text.
        words: Number of words (or characters, or byte pairs) to write.
        temperature: Below 1, likely words become likelier.
        key: Seed of the text.
        of_seed: Seed of the model, if several were trained together; by default the first.
        code: Import this module first: the one with your own skip or transition.
    """
    trained = load_run(run_dir, model, of_seed, "generate")
    vocabulary = trained.vocabulary
    tokens, begun = trained.encode(text)
    given = dict.fromkeys(vocabulary.split(text))
    if unknown := [token for token in given if token not in vocabulary.index]:
        say(f"not known, and read as {UNK}: {', '.join(unknown)}", sys.stderr)
    how = dict(temperature=temperature, policy=dataclasses.replace(trained.policy, mode="sample"))
    written, _ = reading.generate(trained.model, jnp.asarray(tokens), words, jax.random.key(key), **how)
    write(vocabulary.join([*begun[1:], *vocabulary.decode(np.asarray(written))]) + "\n")
