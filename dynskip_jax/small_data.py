"""Train long enough on small data: smaller batches, and more epochs where presets would make few
updates.
"""

import math

from dynskip_jax.settings import Resolved, Settings, fields_of, get, replace

UPDATES = 600  # that presets make at least
_BATCHES = 20  # in an epoch, at least
_SMALLEST_BATCH = 8
_IN_EPOCHS = ("epochs", "patience", "decay_after", "average_after", "relaxed_epochs")
_PER_EPOCH = ("decay", "sampled_decay")  # factors of the learning rate


def fit_to_size(resolved: Resolved, settings: Settings, size: int) -> tuple[Settings, list[str]]:
    """Return settings with enough updates for data of this size, and lines that say what has
    changed.

    Batches become smaller, down to 8, until an epoch has 20 of them. Then all times in epochs, and
    the decay of the learning rate, are stretched until the preset's epochs make 600 updates. Values
    from flags stay; fewer `--epochs` than that stretch nothing, so that a run may grow by them.
    `size` is the number of examples or tokens of train.
    """
    sources = resolved.sources
    if sources["epochs"] == "default":  # an experiment without presets
        return settings, []
    free = {name for name in fields_of(type(settings)) if sources[name] != "flag"}
    training, changed, lines = settings.training, {}, []
    per_row = getattr(training, "num_steps", 1)
    batch = max(1, min(training.batch_size, size // per_row))
    if "batch_size" in free and size // (batch * per_row) < _BATCHES:
        batch = max(min(batch, _SMALLEST_BATCH), size // (per_row * _BATCHES))
    if batch != training.batch_size:
        changed["batch_size"] = batch
        lines.append(f"train is small: batches of {batch} in place of {training.batch_size}")
    usual = resolved.preset_epochs
    stretch = math.ceil(UPDATES / max(1, usual * (size // (batch * per_row))))
    if stretch > 1 and ("epochs" in free or training.epochs >= usual * stretch):
        for name in free.intersection(_IN_EPOCHS):
            value = get(settings, name)
            changed |= {name: value * stretch} if isinstance(value, int) else {}
        changed |= {
            name: get(settings, name) ** (1 / stretch) for name in free.intersection(_PER_EPOCH)
        }
        if "inverse_decay" in free:
            changed["inverse_decay"] = training.inverse_decay / stretch
        lines.append(f"train is small: a schedule of {usual * stretch} epochs in place of {usual}")
    return replace(settings, **changed), lines
