"""Train long enough on small data: smaller batches, and more epochs than presets have."""

import dataclasses
import math
from typing import Any

from dynskip_jax.settings import Resolved, fields_of, get

UPDATES = 600  # that presets make at least
# That relaxed choices have at least. In fewer, the weight of the entropy falls before the agent has
# learned where to look, and it takes the previous state for ever.
RELAXED_UPDATES = 400
_BATCHES = 20  # in an epoch, at least
_SMALLEST_BATCH = 8
_IN_EPOCHS = ("epochs", "patience", "decay_after", "average_after", "relaxed_epochs")
_PER_EPOCH = ("decay", "sampled_decay")  # factors of the learning rate


def fit_to_size(resolved: Resolved, size: int) -> Resolved:
    """Return settings with enough updates for data of this size, and notes on what has changed.

    Batches become smaller, down to 8, until an epoch has 20 of them. Then all times in epochs, and
    the decay of the learning rate, are stretched until the preset's epochs make 600 updates.
    Relaxed epochs become more until they make 400. Values from flags stay; fewer `--epochs` than
    that stretch nothing, so that a run may grow by them. `size` is the number of examples or tokens
    of train.
    """
    sources = resolved.sources
    if sources["epochs"] == "default":  # an experiment without presets
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
    stretch = math.ceil(UPDATES / max(1, usual * batches))
    is_stretched = "epochs" in free or training.epochs >= usual * stretch
    if stretch > 1 and is_stretched:
        for name in free.intersection(_IN_EPOCHS):
            value = get(settings, name)
            if isinstance(value, int):
                changed[name] = value * stretch
        for name in free.intersection(_PER_EPOCH):
            changed[name] = get(settings, name) ** (1 / stretch)
        if "inverse_decay" in free:
            changed["inverse_decay"] = training.inverse_decay / stretch
        notes.append(f"train is small: a schedule of {usual * stretch} epochs in place of {usual}")
    elif stretch > 1:
        notes.append(
            f"train is small: --epochs {training.epochs} makes {training.epochs * batches:,} "
            f"updates; without it, {usual * stretch} epochs would make {UPDATES} or more"
        )

    relaxed = changed.get("relaxed_epochs", settings.agent.relaxed_epochs)
    wanted = math.ceil(RELAXED_UPDATES / max(1, batches))
    if 0 < relaxed < wanted and "relaxed_epochs" in free:
        changed["relaxed_epochs"] = wanted
        notes.append(f"train is small: {wanted} relaxed epochs in place of {relaxed}")

    for name, value in changed.items():
        resolved = resolved.changed(f"{sources[name]}, for small data", **{name: value})
    return dataclasses.replace(resolved, notes=(*resolved.notes, *notes))
