"""What finished models make of a text: the commands `predict` and `explain`."""

import contextlib
import hashlib
import re
import sys
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dynskip_jax.analysis.arcs import Reading, arcs_text, draw_arcs
from dynskip_jax.analysis.page import page_html
from dynskip_jax.data.vocabulary import UNK
from dynskip_jax.errors import UserError
from dynskip_jax.runs.files import check_new, write_atomically
from dynskip_jax.runs.results import progress_of, runs_of_models
from dynskip_jax.runs.run_dir import file_name
from experiments.command_line import Command
from experiments.experiment import TextReading
from experiments.text import ExplainFlags, PredictFlags
from experiments.trained import load, load_all


def predict(command: Command, flags: PredictFlags) -> None:
    """Writes a line for each line of text, as soon as it is read."""
    trained = load(flags.run_dir, flags.model, flags.of_seed, command.name)
    for line in input_lines(flags.input):
        words = trained.experiment.split(line)
        print(trained.experiment.read(trained, line).says if words else "", flush=True)


def explain(command: Command, flags: ExplainFlags) -> None:
    """Prints and draws where each model of a run reaches from each word of a text."""
    if flags.html is not None:
        check_new(Path(flags.html))
    models = load_all(flags.run_dir, flags.of_seed, command.name)
    for name, run in runs_of_models(flags.run_dir).items():
        if name not in models:
            print(f"{name}: {progress_of(run)}, left out")
    first = next(iter(models.values()))
    text = first.experiment.sample_text if flags.text is None else flags.text
    if text is not None and flags.as_typed:
        text = first.experiment.typed(first.vocabulary, text)
        print(f"read as the data writes it: {text}")
    if text is None or not first.experiment.split(text):
        raise UserError("there is nothing to read: give --text some words, separated by spaces")
    readings = {name: trained.experiment.read(trained, text) for name, trained in models.items()}
    probabilities = {name: reading.probabilities for name, reading in readings.items()}
    console = Console(highlight=False)
    unknown = {name: tuple(dict.fromkeys(found.unknown)) for name, found in readings.items()}
    for words, names in _alike(unknown).items():
        if words:
            who = f"{names[0]} does" if len(names) == 1 else f"{', '.join(names)} do"
            typed = "" if flags.as_typed else " (--as-typed reads a text as people type it)"
            console.print(f"{who} not know {', '.join(words)}: read as {UNK}{typed}", markup=False)
    panels, warned = {}, {}
    for name, trained in models.items():
        found = readings[name]
        note = "" if all(found.skips) else "words without an arc are not read"
        for direction, reading in _directions(found, probabilities, trained.is_attention).items():
            panels[", ".join(filter(None, (name, direction)))] = reading
            if direction:
                print(f"{name}, {direction}:")
            if trained.shows_choices or not any(other.shows_choices for other in models.values()):
                print(arcs_text(reading, console.width))
            if trained.shows_choices:
                path = Path(flags.run_dir) / "plots" / _picture(name, trained.seed, text, direction)
                path.parent.mkdir(parents=True, exist_ok=True)
                which = f"{direction}, " if direction else ""
                title = f"{name}: {which}which earlier word each word is connected to"
                if trained.is_attention:
                    title = f"{name}: {which}how much attention each word pays to earlier ones"
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    pages = draw_arcs(reading, path, title, note)
                warned |= {str(warning.message): None for warning in caught}
                for page in pages:
                    print(f"picture: {page}")
    for line in warned:  # the same of every picture
        print(f"warning: {line}")
    for name, found in readings.items():
        print(f"{name}: {found.says}")
    if flags.html is not None:
        says = {name: found.says for name, found in readings.items()}
        panels = {name: reading for name, reading in panels.items() if any(reading.skips)} or panels
        title = f"{first.experiment.name}, seed {first.seed}"
        write_atomically(Path(flags.html), page_html(title, panels, says))
        print(f"page: {flags.html}")


def _alike(given: Mapping[str, Hashable]) -> dict[Any, list[str]]:
    """The names of each value."""
    names: dict[Any, list[str]] = {}
    for name, value in given.items():
        names.setdefault(value, []).append(name)
    return names


def _directions(
    found: TextReading, probabilities: Mapping[str, Sequence[float]], is_attention: bool
) -> dict[str, Reading]:
    """What is drawn of each direction; read from the end, a text is written from its end."""
    forward = Reading(found.words, found.skips, probabilities, found.weights(), is_attention)
    if found.backward is None:
        return {"": forward}
    turned = {name: given[::-1] for name, given in probabilities.items()}
    weights = found.backward_weights()
    weights = None if weights is None else weights[::-1]
    backward = Reading(found.words[::-1], found.backward[::-1], turned, weights, is_attention)
    return {"forward": forward, "backward": backward}


def input_lines(path: str | None) -> Iterator[str]:
    """Yields the lines of a file, or of standard input, as they come, without a mark of their order of bytes.

    Raises:
        UserError: it cannot be read, or a line is not UTF-8.
    """
    where = "standard input" if path is None else f"--input {path}"
    try:
        with contextlib.ExitStack() as opened:
            source: Any = getattr(sys.stdin, "buffer", sys.stdin)
            if path is not None:
                source = opened.enter_context(open(path, "rb"))
            if source is None:
                raise UserError("standard input is closed: give --input FILE")
            for number, line in enumerate(source, 1):
                text = _decoded(line, where, number) if isinstance(line, bytes) else line
                yield text.removeprefix("\ufeff") if number == 1 else text
    except (OSError, ValueError) as error:  # among them a path with a NUL
        if isinstance(error, UserError):
            raise
        raise UserError(f"{where} cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _decoded(line: bytes, where: str, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}, line {number}: not UTF-8 text (byte {error.start}): convert it") from None


def _picture(model: str, seed: int, text: str, direction: str) -> str:
    """A file name of its own for each model, seed and text, in any script."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:60]
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]
    which = f"-{direction}" if direction else ""
    return f"explain-{file_name(model)}-seed-{seed}{which}-{slug}-{digest}.png"
