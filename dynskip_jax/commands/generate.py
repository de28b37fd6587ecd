"""The command `generate`: write text with a trained language model."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np

from dynskip_jax.analysis import reading
from dynskip_jax.config.flags import Count, Positive, Seed
from dynskip_jax.data.vocabularies import UNK
from dynskip_jax.runs.finished import FinishedRun
from dynskip_jax.terminal.console import say, write


def generate(
    run: FinishedRun,
    text: str | None = None,
    words: Count = 60,
    temperature: Positive = 0.8,
    key: Seed = 0,
) -> None:
    """Write text with a trained language model.

    The text has no `<unk>`: it is never sampled, and other words are likelier in its place.

    Args:
        text: Beginning of the text; by default none.
        words: Number of words to write.
        temperature: Below 1, likely words become likelier.
        key: Seed of the text.
    """
    trained = run.last("generate")
    text = text or ""
    vocabulary = trained.vocabulary
    # A text is sampled, and so are the choices behind it.
    policy = dataclasses.replace(trained.policy, mode="sample")
    tokens, begun = trained.encode(text)
    unknown = [
        token for token in dict.fromkeys(vocabulary.split(text)) if token not in vocabulary.index
    ]
    if unknown:
        # On standard error, so that standard output holds the text alone.
        say(f"not known, and read as {UNK}: {', '.join(unknown)}", sys.stderr)
    prompt = jnp.asarray(tokens)
    without = [vocabulary.index[token] for token in (UNK,) if token in vocabulary.index]
    how = dict(temperature=temperature, policy=policy, without=without)
    written = reading.generate(trained.model, prompt, words, jax.random.key(key), **how)
    write(vocabulary.join([*begun[1:], *vocabulary.decode(np.asarray(written))]) + "\n")
