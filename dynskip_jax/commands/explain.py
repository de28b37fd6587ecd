"""The command `explain`: show to which earlier word an agent connects each word of a text."""

import hashlib
from collections.abc import Mapping, Sequence

from dynskip_jax.analysis.arcs import draw_arcs, table_of_choices
from dynskip_jax.analysis.reading import Reading
from dynskip_jax.data.vocabularies import UNK
from dynskip_jax.errors import UserError
from dynskip_jax.runs.finished import FinishedRun
from dynskip_jax.runs.load import Trained
from dynskip_jax.storage.folder import file_name
from dynskip_jax.terminal.console import print_table, say


def explain(run: FinishedRun, text: str | None = None) -> None:
    """Show to which earlier word the agent connects each word of a text, and what it predicts.

    Args:
        text: Words as the data writes them, separated by spaces; by default a sample.
    """
    models = run.models("explain")
    first = next(iter(models.values()))
    text = _text_to_read(first, text)
    readings = {name: trained.read(text) for name, trained in models.items()}
    unknown = dict.fromkeys(readings[first.name].unknown)  # all models of a run have one vocabulary
    if unknown:
        say(f"not known, and read as {UNK}: {', '.join(unknown)}")

    choosing = [
        name for name, found in readings.items() if any(found.skips) or any(found.backward or ())
    ]
    for name in choosing or readings:
        for direction, reading in readings[name].directions().items():
            # Probabilities are listed from the first word, a backward layer from the last.
            order = -1 if direction == "backward" else 1
            likely = {other: found.probabilities[::order] for other, found in readings.items()}
            heading = ", ".join(filter(None, (name, direction)))
            if direction:
                say(f"{heading}:")
            print_table("", *table_of_choices(reading, likely))
            if name in choosing:
                picture = _picture(name, first.seed, text, direction)
                _draw(run, picture, heading, reading, likely)

    for name, found in readings.items():
        say(f"{name}: {found.prediction}")


def _text_to_read(trained: Trained, text: str | None) -> str:
    """Return the text; by default the experiment's sample."""
    if text is None:
        text = trained.experiment.sample_text
    if text is None or not trained.split(text):
        raise UserError("there is nothing to read: give --text some words, separated by spaces")
    return text


def _draw(
    run: FinishedRun,
    picture: str,
    heading: str,
    reading: Reading,
    likely: Mapping[str, Sequence[float]],
) -> None:
    """Draw where each word goes back to, into the run folder."""
    note = "" if all(reading.skips) else "words without an arc are not read"
    with run.warned():
        path = run.run_dir / "plots" / picture
        draw_arcs(reading, likely, path, f"{heading}: where each word goes back to", note)
        say(f"picture: {path}")


def _picture(model: str, seed: int, text: str, direction: str) -> str:
    """Return a file name that is unique to the model, seed, text (in any script) and direction."""
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]
    which = f"-{direction}" if direction else ""
    return file_name(f"explain-{model}-seed-{seed}{which}-{text[:60]}-{digest}.png")
