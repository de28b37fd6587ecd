"""Evaluate a trained model in every mode, select the best value of a sweep, and draw plots."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dynskip_jax.analysis import plots
from dynskip_jax.errors import UserError
from dynskip_jax.results import by_epoch, curves_of, summary
from dynskip_jax.trained import Trained
from dynskip_jax.training.loop import FitResult
from dynskip_jax.training.progress import Progress


class Evaluated(NamedTuple):
    """Metrics of each value of a sweep, and index of the best value on dev."""

    by_value: list[dict[str, Any]]
    selected: int


def evaluate_model(trained: Trained, data_name: str, result: FitResult) -> Evaluated:
    """Evaluate the parameters of the best epoch on dev and test, and draw plots into the run folder.

    Models whose choices matter have further metrics, with the suffixes `_greedy`, `_sampled` and `_averaged`.
    """
    spec, learner, experiment = trained.together, trained.learner, trained.experiment
    modes = {"": (spec.evaluation_mode, 1)}
    if spec.choices_matter():
        averaged = ("sample", experiment.samples)
        modes |= {"_greedy": ("greedy", 1), "_sampled": ("sample", 1), "_averaged": averaged}
    done = {(split, *mode): {} for mode in modes.values() for split in ("dev", "test")}
    # Each evaluation is a step of the progress bar. The extra metrics and the plots are one step each.
    with Progress(len(done) + 2, f"{spec.name}: evaluating and drawing") as progress:
        for split, mode, samples in done:
            how = dict(mode=mode, samples=samples, batch_size=experiment.final_rows, advance=progress.advance)
            found = learner.evaluate(trained.all_params, split, trained.keys, **how)
            done[split, mode, samples] = found
        metrics = {
            f"{name}{suffix}": value
            for suffix, mode in modes.items()
            for split in ("dev", "test")
            for name, value in done[split, *mode].items()
        }
        metrics |= experiment.hook("metrics")(trained)
        progress.advance()
        metrics, count = _of_trained(metrics, trained, result), len(spec.values)
        # A value with a NaN, from a model that has failed, is not selected unless all values have one.
        means, selected = metrics[learner.monitor].reshape(count, -1).mean(axis=1), 0
        if not np.isnan(means).all():
            selected = int(np.nanargmax(means) if learner.higher_is_better else np.nanargmin(means))
        parts = {name: np.split(array, count) for name, array in metrics.items()}
        by_value = [{name: summary(part[i]) for name, part in parts.items()} for i in range(count)]
        _draw_training(trained, data_name, selected)
        experiment.hook("draw")(dataclasses.replace(trained, member=selected * len(spec.seeds)))
        progress.advance()
    return Evaluated(by_value, selected)


def _draw_training(trained: Trained, data_name: str, selected: int) -> None:
    """Draw the logged metrics of dev and train, and the agents' policies of the selected sweep value."""
    spec, folder = trained.together, trained.run.plots
    curves = curves_of(spec.name, by_epoch(trained.run.records()), spec.values)
    title = f"{trained.experiment.name} on {data_name}: {{}}".format
    metrics = [trained.learner.monitor, of_train(trained.learner.monitor)]
    plots.learning_curves(curves, "epoch", metrics, folder / "learning_curve.png", title(spec.name))
    label, own = list(curves.items())[selected]
    for name in sorted({name for r in own for name in r if name.startswith("dev_agent_share_")}):
        layer = name.removeprefix("dev_agent_share_")
        path, heading = folder / f"policy_{layer}.png", title(f"{label}, the policy of layer {layer}")
        note = f"dev, {spec.evaluation_mode}, mean over seeds"
        plots.policy_over_training([r for r in own if name in r], name, path, heading, note)


def of_train(metric: str) -> str:
    """Return the name of the train metric that is drawn next to a dev metric."""
    return metric.replace("dev_", "train_", 1)


def _of_trained(
    metrics: Mapping[str, np.ndarray], trained: Trained, result: FitResult
) -> dict[str, np.ndarray]:
    """Return the metrics, with NaN for each model that has failed.

    A model has failed if it has no best epoch, or if its dev metric or dev loss is not finite. Otherwise a
    model with NaN parameters could show a plausible accuracy, because it always predicts the same class.
    """
    arrays = {name: np.asarray(values, float) for name, values in metrics.items()}
    failed = np.asarray(result.best_epoch) == 0
    for name in (trained.learner.monitor, "dev_nll"):
        if name in arrays:
            failed = failed | ~np.isfinite(arrays[name])
    if failed.all():
        numbers = ", ".join(map(str, trained.together.seeds))
        raise UserError(
            f"the dev loss or metric of seed {numbers} is not a finite number "
            f"({int(np.sum(result.skipped)):,} training steps were skipped because loss or gradient were not "
            "finite), so there is no result: lower --learning-rate or set --clip"
        )
    return {
        name: np.where(failed.reshape(-1, *(1,) * (array.ndim - 1)), np.nan, array)
        for name, array in arrays.items()
    }
