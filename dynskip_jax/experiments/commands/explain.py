"""The command `explain`: show which earlier word an agent connects each word of a text to."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynskip_jax.errors import UserError
from dynskip_jax.experiments.command_line import Subcommand
from dynskip_jax.experiments.commands.flags import RunFlags
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import path_setting, setting

if TYPE_CHECKING:
    from dynskip_jax.experiments.experiment import Experiment

arcs = LazyModule("dynskip_jax.analysis.arcs")
consoles = LazyModule("dynskip_jax.experiments.console")
files = LazyModule("dynskip_jax.training.files")
loading = LazyModule("dynskip_jax.experiments.loaded")
html_page = LazyModule("dynskip_jax.analysis.page")
run_dir = LazyModule("dynskip_jax.training.folder")
run_results = LazyModule("dynskip_jax.training.results")
vocabularies = LazyModule("dynskip_jax.data.vocabularies")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExplainFlags(RunFlags):
    """Flags of `explain`."""

    text: str | None = setting(
        None, "Words as the data writes them, separated by spaces; by default a sample."
    )
    raw_text: bool = setting(
        False,
        "Tokenize and lowercase the text as the data is.",
    )
    html: str | None = path_setting(None, "Write an HTML page that shows where each word reaches.")


def explain(experiment: type[Experiment], flags: ExplainFlags) -> None:
    """Print and draw the skips of each finished model of a run at each word of a text.

    Pictures are written into the folder `plots` of the run folder.

    Args:
        experiment: The experiment of the run.
        flags: Flags of the command.

    Raises:
        UserError: There is no text to read, or the file for `--html` exists already.
    """
    if flags.html is not None:
        files.check_new(Path(flags.html))
    models = loading.load_all(flags.run_dir, flags.of_seed, experiment.name)
    for name, run in run_results.runs_of_models(flags.run_dir).items():
        if name not in models:
            consoles.say(f"{name}: {run_results.progress_of(run)}, left out")
    first = next(iter(models.values()))
    text = first.experiment.sample_text if flags.text is None else flags.text
    if text is not None and flags.raw_text:
        text = first.experiment.tokenize(first.vocabulary, text)
        consoles.say(f"read as the data writes it: {text}")
    if text is None or not first.experiment.split(text):
        raise UserError("there is nothing to read: give --text some words, separated by spaces")
    readings = {name: trained.experiment.read(trained, text) for name, trained in models.items()}
    probabilities = {name: reading.probabilities for name, reading in readings.items()}
    console = consoles.PlainConsole()
    unknown = {name: tuple(dict.fromkeys(found.unknown)) for name, found in readings.items()}
    for words, names in _alike(unknown).items():
        if words:
            who = f"{names[0]} does" if len(names) == 1 else f"{', '.join(names)} do"
            typed = "" if flags.raw_text else " (--raw-text reads a text as people type it)"
            console.print(f"{who} not know {', '.join(words)}: read as {vocabularies.UNK}{typed}")
    chooses = {name: any(found.skips) or any(found.backward or ()) for name, found in readings.items()}
    panels: dict[str, Any] = {}
    folder = Path(flags.run_dir) / "plots"
    for name, found in readings.items():
        for direction, reading in found.directions().items():
            order = -1 if direction == "backward" else 1
            likely = {other: given[::order] for other, given in probabilities.items()}
            panels[", ".join(filter(None, (name, direction)))] = reading, likely
            if direction:
                consoles.say(f"{name}, {direction}:")
            if chooses[name] or not any(chooses.values()):
                consoles.say(arcs.arcs_text(reading, likely, console.width))
            if not chooses[name]:
                continue
            path = folder / _picture(name, models[name].seed, text, direction)
            title = ", ".join(filter(None, (f"{name}: where each word goes back to", direction)))
            note = "" if all(reading.skips) else "words without an arc are not read"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                for page in arcs.draw_arcs(reading, likely, path, title, note):
                    consoles.say(f"picture: {page}")
            except OSError as error:  # such as a read-only folder or a full disk
                reason = error.strerror or error
                consoles.say(f"warning: no picture can be written into {folder} ({reason})")
    for name, found in readings.items():
        consoles.say(f"{name}: {found.prediction}")
    if flags.html is not None:
        says = {name: found.prediction for name, found in readings.items()}
        panels = {name: panel for name, panel in panels.items() if any(panel[0].skips)} or panels
        title = f"{first.experiment.name}, seed {first.seed}"
        files.write_atomically(Path(flags.html), html_page.page_html(title, panels, says))
        consoles.say(f"page: {flags.html}")


def _alike(given: Mapping[str, Hashable]) -> dict[Any, list[str]]:
    """Group names by their values."""
    names: dict[Any, list[str]] = {}
    for name, value in given.items():
        names.setdefault(value, []).append(name)
    return names


def _picture(model: str, seed: int, text: str, direction: str) -> str:
    """Return a file name that is unique to the model, seed, text (in any script) and direction."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:60]
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]
    which = f"-{direction}" if direction else ""
    return f"explain-{run_dir.file_name(model)}-seed-{seed}{which}-{slug}-{digest}.png"


EXPLAIN = Subcommand(
    "Show to which earlier word the agent connects each word of a text, and the predictions' probabilities.",
    ExplainFlags,
    explain,
)
