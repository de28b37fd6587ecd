"""What commands over a finished run share: flags that choose it, and writing into it."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

from dynskip_jax.runs.load import Trained, load_models, load_run
from dynskip_jax.runs.pieces import import_module
from dynskip_jax.storage.results import progress_of, runs_of_models
from dynskip_jax.terminal.console import say
from dynskip_jax.training.devices import keep_compiled_programs


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """Which run is read."""

    run_dir: Path
    """A finished run folder, of one model or of several compared."""
    model: str | None = None
    """Name of the model, if the run compares several; by default all, or the last where one is
    read.
    """
    of_seed: int | None = None
    """Seed of the models, if several were trained together; by default the first."""
    code: str | None = None
    """Import this module first: the one with your own skip, transition or task."""

    def models(self, command: str) -> dict[str, Trained]:
        """Return the chosen models by name; the run's experiment must have the command."""
        self._prepare()
        models = load_models(self.run_dir, self.model, self.of_seed, command)
        self._say_what_is_left_out()
        return models

    def last(self, command: str) -> Trained:
        """Return the chosen model; the run's experiment must have the command."""
        self._prepare()
        model = load_run(self.run_dir, self.model, self.of_seed, command)
        self._say_what_is_left_out()
        return model

    def _say_what_is_left_out(self) -> None:
        for name, other in runs_of_models(self.run_dir).items():
            if self.model is None and not other.is_finished:
                say(f"{name}: {progress_of(other)}, left out", sys.stderr)

    def _prepare(self) -> None:
        """Import the module that --code names, and find programs that were compiled before."""
        if self.code is not None:
            import_module(self.code, "--code")
        keep_compiled_programs()

    @contextlib.contextmanager
    def warned(self) -> Iterator[None]:
        """Print a warning if a file cannot be written into the run folder, and go on."""
        try:
            yield
        except OSError as error:  # such as a read-only folder or a full disk
            say(f"warning: nothing can be written into {self.run_dir} ({error.strerror or error})")
