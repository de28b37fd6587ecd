"""Train long enough on small data: smaller batches, and more epochs than presets have."""

import dataclasses
import math
from typing import Any

from dynskip_jax.config.settings import Resolved, fields_of, get

UPDATES = 600  # that presets make at least, unless their experiment says otherwise
# That relaxed choices have at least. In fewer, the weight of the entropy falls before the agent has
# learned where to look, and it takes the previous state for ever.
RELAXED_UPDATES = 400
_BATCHES = 20  # in an epoch, at least
_SMALLEST_BATCH = 8
_IN_EPOCHS = ("epochs", "patience", "decay_after", "average_after", "relaxed_epochs")


def fit_to_size(resolved: Resolved, size: int, updates: int = UPDATES) -> Resolved:
    """Return settings with enough updates for data of this size, and notes on what has changed.

    Batches become smaller, down to 8, until an epoch has 20 of them. Then all times in epochs, and
    the decay of the learning rate, are stretched until the preset's epochs make `updates`.
    Relaxed epochs become more until they make 400. Values from flags stay. With `--epochs` between
    the preset's and that many, the schedule is stretched to these epochs: the last one has the
    learning rate of the preset's last. Fewer stretch nothing, and a run with more may grow by
    them. `size` is the number of examples or tokens of train.
    """
    sources = resolved.sources
    if sources.get("epochs", "default") == "default":  # an experiment without presets
        return resolved
    settings = resolved.settings
    training = settings.training
    free = {name for name in fields_of(type(settings)) if sources[name] != "flag"}
    changed: dict[str, Any] = {}
    notes = []

    per_row = getattr(training, "num_steps", 1)
    batch = max(1, min(training.batch_size, size // per_row))
    if "batch_size" in free and size // (batch * per_row) < _BATCHES:
        batch = max(min(batch, _SMALLEST_BATCH), size // (per_row * _BATCHES))
    if batch != training.batch_size:
        changed["batch_size"] = batch
        notes.append(f"train is small: batches of {batch} in place of {training.batch_size}")

    usual = resolved.preset_epochs
    batches = size // (batch * per_row)
    stretch = math.ceil(updates / max(1, usual * batches))
    enough = usual * stretch
    fitting = enough
    if "epochs" not in free:
        fitting = min(enough, training.epochs)
    if stretch > 1 and fitting > usual:
        for name in free.intersection(_IN_EPOCHS):
            value = get(settings, name)
            if isinstance(value, int):
                changed[name] = round(value * fitting / usual)
        decaying = usual / fitting
        # Rounded beginnings change how many epochs decay.
        if "decay_after" in changed and training.decay_after < usual:
            decaying = (usual - training.decay_after) / (fitting - changed["decay_after"])
        if "decay" in free:
            changed["decay"] = training.decay**decaying
        if "sampled_decay" in free:
            changed["sampled_decay"] = training.sampled_decay ** (usual / fitting)
        if "inverse_decay" in free:
            changed["inverse_decay"] = training.inverse_decay * usual / fitting
        notes.append(f"train is small: a schedule of {fitting} epochs in place of {usual}")
    if stretch > 1 and fitting < enough:
        notes.append(
            f"train is small: with --epochs {training.epochs} there are only "
            f"{training.epochs * batches:,} updates in all; without it, {enough} epochs would make "
            f"{updates:,} or more"
        )

    relaxed = changed.get("relaxed_epochs", settings.agent.relaxed_epochs)
    wanted = math.ceil(RELAXED_UPDATES / max(1, batches))
    if 0 < relaxed < wanted and "relaxed_epochs" in free:
        changed["relaxed_epochs"] = wanted
        notes.append(f"train is small: {wanted} relaxed epochs in place of {relaxed}")

    for name, value in changed.items():
        resolved = resolved.changed(f"{sources[name]}, for small data", **{name: value})
    return dataclasses.replace(resolved, notes=(*resolved.notes, *notes))
