"""Evaluate a trained model in every mode, select the best value of a sweep, and draw plots."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dynskip_jax.analysis import plots
from dynskip_jax.devices.parallel import Parallel
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import Dataset, Experiment
from dynskip_jax.learners import Trainable
from dynskip_jax.results import best_value, by_epoch, curves_of, draw_sweep, summary
from dynskip_jax.settings import Settings
from dynskip_jax.spec import ModelSpec
from dynskip_jax.trained import Trained
from dynskip_jax.training.folder import RunDir
from dynskip_jax.training.loop import FitResult
from dynskip_jax.training.progress import Progress
from dynskip_jax.training.step import evaluation_keys


class Evaluated(NamedTuple):
    """Metrics of each value of a sweep, and index of the best value on dev."""

    by_value: list[dict[str, Any]]
    selected: int


def evaluate_model(
    experiment: Experiment,
    settings: Settings,
    data: Dataset,
    model: Trainable,
    result: FitResult,
    run_dir: RunDir,
    parallel: Parallel,
) -> Evaluated:
    """Evaluate the parameters of the best epoch on dev and test, and draw plots into the run folder.

    Models whose choices matter have further metrics, with the suffixes `_greedy`, `_sampled` and `_averaged`.
    """
    spec, learner, _ = model
    params, keys = parallel.spread(result.params), evaluation_keys(spec.all_seeds)
    modes = {"": (spec.evaluation_mode, 1)}
    if spec.choices_matter():
        averaged = ("sample", experiment.samples)
        modes |= {"_greedy": ("greedy", 1), "_sampled": ("sample", 1), "_averaged": averaged}
    done = {(split, *mode): {} for mode in modes.values() for split in ("dev", "test")}
    # Each evaluation is a step of the progress bar. The extra metrics and the plots are one step each.
    with Progress(len(done) + 2, f"{spec.name}: evaluating and drawing") as progress:
        for split, mode, samples in done:
            how = dict(mode=mode, samples=samples, batch_size=experiment.final_rows, advance=progress.advance)
            done[split, mode, samples] = learner.evaluate(params, split, keys, **how)
        metrics = {
            f"{name}{suffix}": value
            for suffix, mode in modes.items()
            for split in ("dev", "test")
            for name, value in done[split, *mode].items()
        }
        trained = Trained(run_dir, experiment, settings, data.vocabulary, spec, learner, params)
        metrics |= experiment.hook("metrics")(trained)
        progress.advance()
        metrics = _of_trained(metrics, model, result)
        count = len(spec.values)
        selected = best_value(metrics[learner.monitor], count, higher_is_better=learner.higher_is_better)
        parts = {name: np.split(np.asarray(array), count) for name, array in metrics.items()}
        by_value = [{name: summary(part[i]) for name, part in parts.items()} for i in range(count)]
        _draw_training(experiment, data, spec, run_dir, selected)
        if count > 1:
            draw_sweep(experiment, data, spec, by_value, run_dir.plots)
        experiment.hook("draw")(dataclasses.replace(trained, member=selected * len(spec.seeds)))
        progress.advance()
    return Evaluated(by_value, selected)


def _draw_training(
    experiment: Experiment, data: Dataset, spec: ModelSpec, run_dir: RunDir, selected: int
) -> None:
    """Draw the logged metrics of dev and train, and the agents' policies of the selected sweep value."""
    curves = curves_of(spec.name, by_epoch(run_dir.records()), spec.values)
    title = f"{experiment.name} on {data.name}: {{}}".format
    metrics = [name for metric in experiment.curves for name in (metric, of_train(metric))]
    plots.learning_curves(curves, "epoch", metrics, run_dir.plots / "learning_curve.png", title(spec.name))
    label, own = list(curves.items())[selected]
    for name in sorted({name for r in own for name in r if name.startswith("dev_agent_share_")}):
        layer = name.removeprefix("dev_agent_share_")
        path, heading = run_dir.plots / f"policy_{layer}.png", title(f"{label}, the policy of layer {layer}")
        note = f"dev, {spec.evaluation_mode}, mean over seeds"
        plots.policy_over_training([r for r in own if name in r], name, path, heading, note)


def of_train(metric: str) -> str:
    """Return the name of the train metric that is drawn next to a dev metric."""
    return metric.replace("dev_", "train_", 1)


def _of_trained(
    metrics: Mapping[str, np.ndarray], model: Trainable, result: FitResult
) -> dict[str, np.ndarray]:
    """Return the metrics, with NaN for each model that has failed.

    A model has failed if it has no best epoch, or if its dev metric or dev loss is not finite. Otherwise a
    model with NaN parameters could show a plausible accuracy, because it always predicts the same class.
    """
    arrays = {name: np.asarray(values, float) for name, values in metrics.items()}
    failed = np.asarray(result.best_epoch) == 0
    for name in (model.learner.monitor, "dev_nll"):
        if name in arrays:
            failed = failed | ~np.isfinite(arrays[name])
    if failed.all():
        numbers = ", ".join(map(str, model.spec.seeds))
        raise UserError(
            f"the dev loss or metric of seed {numbers} is not a finite number "
            f"({int(np.sum(result.skipped)):,} training steps were skipped because loss or gradient were not "
            "finite), so there is no result: lower --learning-rate or set --clip"
        )
    return {
        name: np.where(failed.reshape(-1, *(1,) * (array.ndim - 1)), np.nan, array)
        for name, array in arrays.items()
    }
