"""Writes text with a trained language model: the command `generate` of `experiments.ptb`."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np

from dynskip_jax.analysis.reading import generate as sample_words
from dynskip_jax.data.text import join_tokens
from dynskip_jax.data.vocabulary import UNK
from experiments.command_line import Command
from experiments.ptb import GenerateFlags
from experiments.trained import load


def generate(command: Command, flags: GenerateFlags) -> None:
    """Prints a text that goes on from `--text`."""
    trained = load(flags.run_dir, flags.model, flags.of_seed, command.name)
    tokens, words = trained.experiment.encode(trained.vocabulary, flags.text)
    known = trained.vocabulary.index
    if unknown := [word for word in dict.fromkeys(trained.experiment.split(flags.text)) if word not in known]:
        print(f"not known, and read as {UNK}: {', '.join(unknown)}", file=sys.stderr)
    written, _ = sample_words(
        trained.model,
        jnp.asarray(tokens),
        flags.words,
        jax.random.key(flags.key),
        temperature=flags.temperature,
        policy=dataclasses.replace(trained.policy, mode="sample"),
    )
    print(join_tokens([*words[1:], *trained.vocabulary.decode(np.asarray(written))]))
