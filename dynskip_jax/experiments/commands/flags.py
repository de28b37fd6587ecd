"""Flags that all commands over a finished run share."""

import dataclasses

from dynskip_jax.settings import path_setting, setting


@dataclasses.dataclass(frozen=True)
class RunFlags:
    """Which trained model is used."""

    run_dir: str = path_setting(help="A finished run folder, of one model or of several compared.")
    of_seed: int | None = setting(
        None, "Which of the models trained together, by its seed; by default the first.", at_least=0
    )


@dataclasses.dataclass(frozen=True)
class ModelFlags(RunFlags):
    """Which trained model of several is used."""

    model: str | None = setting(None, "Which of several models; by default the last.")
