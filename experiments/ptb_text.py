"""What trained language models make of a text: the commands `explain` and `generate` of `experiments.ptb`."""

import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jaxtyping import Float, Int
from rich.console import Console

from dynskip_jax import functional as F
from dynskip_jax.analysis.arcs import Reading, arcs_text, draw_arcs
from dynskip_jax.analysis.reading import generate, read_tokens
from dynskip_jax.data import Vocabulary
from dynskip_jax.data.text import join_tokens
from dynskip_jax.data.vocabulary import EOS, UNK
from dynskip_jax.errors import UserError
from dynskip_jax.runs.run_dir import file_name
from experiments.ptb_runs import Trained, load

NEXT_WORDS = 5  # the most probable words after a text that are shown


@dataclasses.dataclass(frozen=True)
class TextFlags:
    """What both commands take."""

    run_dir: str
    """A finished run folder, of one model or of several compared."""
    seed: int | None = None
    """Which of the models trained together; by default the first."""


@dataclasses.dataclass(frozen=True)
class ExplainFlags(TextFlags):
    """Flags of `explain`."""

    text: str = "the company said it will buy a N N stake in the bank"
    """Words separated by spaces, as the corpus writes them."""


@dataclasses.dataclass(frozen=True)
class GenerateFlags(TextFlags):
    """Flags of `generate`."""

    text: str = ""
    """The beginning, to be continued."""
    words: int = 60
    """How many words to write."""
    temperature: float = 0.8
    """Below 1 the likely words become likelier."""
    model: str | None = None
    """Of several models compared, the one that writes; by default the last."""
    key: int = 0
    """The seed of the words: another one writes another text."""


def encode(vocabulary: Vocabulary, text: str) -> tuple[Int[np.ndarray, " time"], list[str]]:
    """Returns the ids of a line's words, led by `<eos>`, and the words, `<unk>` where they are not known.

    Raises:
        UserError: a word is not known, and the vocabulary has no `<unk>`.
    """
    tokens = vocabulary.encode([EOS, *text.split()])
    return tokens, vocabulary.decode(tokens)


def explain(arguments: Sequence[str]) -> None:
    """Shows which earlier word the agent connects each word of a text to, and how probable each word was."""
    flags = tyro.cli(
        ExplainFlags, args=arguments, prog="python -m experiments.ptb explain", description=explain.__doc__
    )
    if not flags.text.split():
        raise UserError("--text has no words: give some, separated by spaces")
    models = load(flags.run_dir, flags.seed)
    readings = {name: _read(trained, flags.text) for name, trained in models.items()}
    console = Console(highlight=False)
    for name, trained in models.items():
        words, skips = readings[name].words, readings[name].skips
        unknown = [word for word, kept in zip(flags.text.split(), words[1:], strict=True) if word != kept]
        if unknown:
            console.print(f"{name} does not know {', '.join(unknown)}: read as {UNK}", markup=False)
        probabilities = {other: _of_words(readings[other]) for other in readings}
        reading = Reading(words, skips if trained.has_agent else [0] * len(words), probabilities)
        if trained.has_agent or not any(other.has_agent for other in models.values()):
            print(arcs_text(reading, console.width))
        if trained.has_agent:
            slug = re.sub(r"[^A-Za-z0-9]+", "-", flags.text).strip("-")[:60]
            path = Path(flags.run_dir) / "plots" / f"explain-{file_name(name)}-{slug}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            draw_arcs(reading, path, f"{name}: which earlier word each word is connected to")
            print(f"picture: {path}")
    for name, trained in models.items():
        after = np.asarray(readings[name].log_probs[-1])
        best = np.argsort(-after)[:NEXT_WORDS]
        listed = ", ".join(f"{trained.vocabulary.tokens[i]} {np.exp(after[i]):.3f}" for i in best)
        print(f"next word by {name}: {listed}")


class _TextReading(NamedTuple):
    words: list[str]
    tokens: Int[np.ndarray, " time"]
    log_probs: Float[np.ndarray, "time vocabulary"]
    skips: list[int]


def _read(trained: Trained, text: str) -> _TextReading:
    tokens, words = encode(trained.vocabulary, text)
    reading = read_tokens(
        trained.model,
        jnp.asarray(tokens),
        jax.random.key(0),
        policy=F.Policy("greedy", mask=trained.policy_mask),
    )
    return _TextReading(words, tokens, np.asarray(reading.log_probs), np.asarray(reading.skips).tolist())


def _of_words(reading: _TextReading) -> list[float]:
    """The probability of each word after those before it; none for the `<eos>` that leads."""
    before = np.take_along_axis(reading.log_probs[:-1], reading.tokens[1:, None], axis=1)[:, 0]
    return [math.nan, *np.exp(before).tolist()]


def write(arguments: Sequence[str]) -> None:
    """Writes text with a trained model."""
    flags = tyro.cli(
        GenerateFlags, args=arguments, prog="python -m experiments.ptb generate", description=write.__doc__
    )
    if flags.words < 1:
        raise UserError(f"--words must be at least 1, got {flags.words}")
    if not flags.temperature > 0:
        raise UserError(f"--temperature must be positive, got {flags.temperature}")
    models = load(flags.run_dir, flags.seed)
    name = flags.model or list(models)[-1]
    if name not in models:
        raise UserError(f"{flags.run_dir} has {', '.join(models)}: there is no --model {name}")
    trained = models[name]
    tokens, words = encode(trained.vocabulary, flags.text)
    written, _ = generate(
        trained.model,
        jnp.asarray(tokens),
        flags.words,
        jax.random.key(flags.key),
        temperature=flags.temperature,
        policy=F.Policy("sample", mask=trained.policy_mask),
    )
    print(join_tokens([*words[1:], *trained.vocabulary.decode(np.asarray(written))]))
