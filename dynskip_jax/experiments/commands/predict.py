"""The command `predict`: write the prediction of a finished model for each line of a text."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dynskip_jax.errors import UserError
from dynskip_jax.experiments.command_line import Subcommand
from dynskip_jax.experiments.commands.flags import ModelFlags
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import path_setting

if TYPE_CHECKING:
    from dynskip_jax.experiments.experiment import Experiment

consoles = LazyModule("dynskip_jax.experiments.console")
files = LazyModule("dynskip_jax.data.files")
loading = LazyModule("dynskip_jax.experiments.loaded")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictFlags(ModelFlags):
    """Flags of `predict`."""

    input: str | None = path_setting(None, "File with one text per line; by default standard input.")


def predict(experiment: type[Experiment], flags: PredictFlags) -> None:
    """Write the prediction for each line of text as soon as the line is read; an empty line for no words.

    Args:
        experiment: The experiment of the run.
        flags: Flags of the command.
    """
    trained = loading.load_run(flags.run_dir, flags.model, flags.of_seed, experiment.name)
    for line in input_lines(flags.input):
        words = trained.experiment.split(line)
        consoles.write(f"{trained.experiment.read(trained, line).prediction if words else ''}\n")
        sys.stdout.flush()


PREDICT = Subcommand("Read one text per line, and write a prediction for each.", PredictFlags, predict)


def input_lines(path: str | None) -> Iterator[str]:
    """Yield the lines of a file or of standard input as they arrive, cut where training cuts them.

    Args:
        path: Path of the file; None for standard input.
    """
    where = "standard input" if path is None else f"--input {path}"
    try:
        with contextlib.ExitStack() as opened:
            source: Any = getattr(sys.stdin, "buffer", sys.stdin)
            if path is not None:
                source = opened.enter_context(open(path, "rb"))
            if source is None:
                raise UserError("standard input is closed: give --input FILE")
            yield from source if isinstance(source, io.TextIOBase) else files.stream_lines(source, where)
    except UserError:
        raise
    except (OSError, ValueError) as error:  # ValueError: for example, the path contains a NUL
        raise UserError(f"{where} cannot be read ({getattr(error, 'strerror', None) or error})") from None
