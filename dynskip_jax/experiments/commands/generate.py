"""The command `generate` of `experiments.ptb`: write text with a trained language model."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

import numpy as np

from dynskip_jax.experiments.command_line import Subcommand
from dynskip_jax.experiments.commands.flags import ModelFlags
from dynskip_jax.experiments.settings import MAX_SEED
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import setting

if TYPE_CHECKING:
    from dynskip_jax.experiments.experiment import Experiment

consoles = LazyModule("dynskip_jax.experiments.console")
jax = LazyModule("jax")
jnp = LazyModule("jax.numpy")
loading = LazyModule("dynskip_jax.experiments.loaded")
reading = LazyModule("dynskip_jax.analysis.reading")
vocabularies = LazyModule("dynskip_jax.data.vocabularies")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerateFlags(ModelFlags):
    """Flags of `generate`."""

    text: str = setting("", "Beginning of the text.")
    words: int = setting(60, "Number of words (or characters, or byte pairs) to write.", at_least=1)
    temperature: float = setting(0.8, "Temperature: below 1, likely words become likelier.", above=0)
    key: int = setting(0, "Seed of the text.", at_least=0, at_most=MAX_SEED)


def generate(experiment: type[Experiment], flags: GenerateFlags) -> None:
    """Print `--text` and a sampled continuation.

    Args:
        experiment: The experiment of the run.
        flags: Flags of the command.
    """
    trained = loading.load_run(flags.run_dir, flags.model, flags.of_seed, experiment.name)
    tokens, words = trained.experiment.encode(trained.vocabulary, flags.text)
    vocabulary = trained.vocabulary
    given = dict.fromkeys(vocabulary.split(flags.text))
    if unknown := [token for token in given if token not in vocabulary.index]:
        consoles.say(f"not known, and read as {vocabularies.UNK}: {', '.join(unknown)}", sys.stderr)
    written, _ = reading.generate(
        trained.model,
        jnp.asarray(tokens),
        flags.words,
        jax.random.key(flags.key),
        temperature=flags.temperature,
        policy=dataclasses.replace(trained.policy, mode="sample"),
    )
    text = vocabulary.join([*words[1:], *vocabulary.decode(np.asarray(written))])
    consoles.write(f"{text}\n")


GENERATE = Subcommand(
    "Write text with a trained language model.",
    GenerateFlags,
    generate,
)
