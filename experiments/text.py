"""The commands that read text with a finished model: their flags; nothing of JAX is imported."""

import dataclasses

from dynskip_jax.settings import path_setting, setting
from experiments.command_line import Subcommand


@dataclasses.dataclass(frozen=True)
class TextFlags:
    """What all of them take."""

    run_dir: str = path_setting(help="A finished run folder, of one model or of several compared.")
    of_seed: int | None = setting(
        None, "Which of the models trained together, by its seed; by default the first.", at_least=0
    )


@dataclasses.dataclass(frozen=True)
class PredictFlags(TextFlags):
    """Flags of `predict`."""

    model: str | None = setting(None, "Which of several models; by default the last.")
    input: str | None = path_setting(None, "A file with a text on each line; by default standard input.")


@dataclasses.dataclass(frozen=True)
class ExplainFlags(TextFlags):
    """Flags of `explain`."""

    text: str | None = setting(
        None, "Words separated by spaces, as the data writes them; or see --as-typed. By default a sample."
    )
    as_typed: bool = setting(
        False,
        "The text is as people type it: it is split into words, and put into lower case, as the data is.",
    )
    html: str | None = path_setting(
        None, "A page to write beside the pictures: a word shows where it reaches while the mouse is on it."
    )


PREDICT = Subcommand(
    "Reads a text on each line, and writes what a model makes of it.",
    PredictFlags,
    "experiments.reading:predict",
)
EXPLAIN = Subcommand(
    "Shows which earlier word the agent connects each word of a text to, and how probable predictions were.",
    ExplainFlags,
    "experiments.reading:explain",
)
