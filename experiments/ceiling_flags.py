"""The command `ceiling`: its flags; nothing of JAX is imported."""

import dataclasses
from typing import Literal

from dynskip_jax.settings import path_setting, setting
from experiments.command_line import Subcommand
from experiments.text import TextFlags


@dataclasses.dataclass(frozen=True)
class CeilingFlags(TextFlags):
    """Flags of `ceiling`."""

    model: str | None = setting(None, "Which of several models; by default the last.")
    data: str | None = path_setting(None, "Folder of the data that the run was trained on.")
    beside: tuple[str, ...] | None = path_setting(
        None,
        "Run folders of the same model with other seeds, separated by commas: their choices are compared as "
        "those of seeds trained together are.",
    )
    split: Literal["train", "dev", "test"] = setting("dev", "Which split is read.")
    steps: int = setting(60_000, "Choices that are examined, the first ones of the split.", at_least=1)
    layer: int | None = setting(
        None, "Whose choices, counted from 1 as in agent_entropy_1; by default the last.", at_least=1
    )
    rows: int = setting(
        100,
        "Sequences read side by side; of a language model into so many streams the text is cut.",
        at_least=1,
    )
    window: int = setting(
        1,
        "Language models: the text is read in windows of so many words, and a choice judged by its window's "
        "loss.",
        at_least=1,
    )
    beam: int = setting(
        0,
        "Searches for the best choices of whole windows, or sequences, keeping so many paths; 0: does not.",
        at_least=0,
    )
    probe_features: int = setting(50, "Hidden units of the probes.", at_least=1)


CEILING = Subcommand(
    "Says how much there is to win by choosing: what each choice costs, and what a probe learns of that.",
    CeilingFlags,
    "experiments.ceiling:ceiling",
)
