"""Define the flags that commands over a finished run share."""

import dataclasses

from dynskip_jax.settings import path_setting, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodeFlags:
    """Which code of your own is imported."""

    code: str | None = setting(None, "Import this module first: the one with your own skip or transition.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFlags(CodeFlags):
    """Which trained model is used."""

    run_dir: str = path_setting(help="A finished run folder, of one model or of several compared.")
    of_seed: int | None = setting(
        None, "Seed of the model, if several were trained together; by default the first.", at_least=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFlags(RunFlags):
    """Which trained model of several is used."""

    model: str | None = setting(None, "Name of the model, if the run compares several; by default the last.")
