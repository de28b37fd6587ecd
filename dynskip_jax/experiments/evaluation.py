"""Evaluate a trained model in every mode, select the best value of a sweep, and draw plots."""

from collections.abc import Callable, Mapping, Sequence
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
from dynskip_jax.tasks import Learner
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
    """Evaluate the parameters of the best epoch in every mode, and draw plots into the run folder.

    Raises:
        UserError: If all models have failed.
    """
    spec, learner, _ = model
    params, keys = parallel.spread(result.params), evaluation_keys(spec.all_seeds)
    modes = evaluations(spec.evaluation_mode, is_stochastic=spec.choices_matter(), samples=experiment.samples)
    # Each evaluation is a step of the progress bar. The extra metrics and the plots are one step each.
    with Progress(len(set(modes.values())) + 2, f"{spec.name}: evaluating and drawing") as progress:
        how = dict(batch_size=experiment.final_rows, advance=progress.advance)
        metrics = metrics_in_every_mode(
            lambda split, **mode: learner.evaluate(params, split, keys, **mode, **how), modes
        )
        metrics |= experiment.hook("metrics")(spec, settings, learner, params, keys)
        progress.advance()
        metrics = _of_trained(metrics, learner, result, spec.all_seeds)
        count = len(spec.values)
        selected = best_value(metrics[learner.monitor], count, higher_is_better=learner.higher_is_better)
        parts = {name: np.split(np.asarray(array), count) for name, array in metrics.items()}
        by_value = [{name: summary(part[i]) for name, part in parts.items()} for i in range(count)]
        draw_training(experiment, data, spec, run_dir, selected)
        if count > 1:
            draw_sweep(experiment, data, spec, by_value, run_dir.plots)
        member = selected * len(spec.seeds)
        experiment.hook("draw")(spec, settings, learner, params, keys, run_dir.plots, member)
        progress.advance()
    return Evaluated(by_value, selected)


def evaluations(mode: str, *, is_stochastic: bool, samples: int) -> dict[tuple[str, str], tuple]:
    """Return a mapping from (split, suffix of metric names) to the (split, mode, samples) to evaluate.

    Args:
        mode: Mode of the metrics without a suffix.
        is_stochastic: Whether agents sample. If so, there are also metrics with the suffixes `_greedy`,
            `_sampled` and `_averaged`.
        samples: Number of predictions that are averaged for `_averaged`.
    """
    modes = {"": (mode, 1)}
    if is_stochastic:
        modes |= {"_greedy": ("greedy", 1), "_sampled": ("sample", 1), "_averaged": ("sample", samples)}
    return {(split, suffix): (split, *how) for suffix, how in modes.items() for split in ("dev", "test")}


def metrics_in_every_mode(
    evaluate: Callable[..., dict[str, np.ndarray]], modes: Mapping[tuple[str, str], tuple]
) -> dict[str, np.ndarray]:
    """Return the metrics of all `evaluations`, with their suffixes.

    Args:
        evaluate: Function of a split, `mode` and `samples` that returns metrics. It is called once for each
            distinct combination.
        modes: Result of `evaluations`.
    """
    done = {at: evaluate(at[0], mode=at[1], samples=at[2]) for at in dict.fromkeys(modes.values())}
    return {f"{name}{suffix}": value for (_, suffix), at in modes.items() for name, value in done[at].items()}


def draw_training(
    experiment: Experiment, data: Dataset, spec: ModelSpec, run_dir: RunDir, selected: int
) -> None:
    """Draw the logged metrics of dev and train, and the agents' policies of the selected sweep value."""
    records = by_epoch(run_dir.records())
    curves = curves_of(spec.name, records, spec.values)
    plots.learning_curves(
        curves,
        "epoch",
        [name for metric in experiment.curves for name in (metric, of_train(metric))],
        run_dir.plots / "learning_curve.png",
        f"{experiment.name} on {data.name}: {spec.name}",
    )
    label, own = list(curves.items())[selected]
    layers = sorted({name for r in own for name in r if name.startswith("dev_agent_share_")})
    for name in layers:
        layer = name.removeprefix("dev_agent_share_")
        plots.policy_over_training(
            [r for r in own if name in r],
            name,
            run_dir.plots / f"policy_{layer}.png",
            f"{experiment.name} on {data.name}: {label}, the policy of layer {layer}",
            note=f"dev, {spec.evaluation_mode}, mean over seeds",
        )


def of_train(metric: str) -> str:
    """Return the name of the train metric that is drawn next to a dev metric."""
    return metric.replace("dev_", "train_", 1)


def _of_trained(
    metrics: Mapping[str, np.ndarray], learner: Learner, result: FitResult, seeds: Sequence[int]
) -> dict[str, np.ndarray]:
    """Return the metrics, with NaN for each model that has failed.

    A model has failed if it has no best epoch, or if its dev metric or dev loss is not finite. Otherwise a
    model with NaN parameters could show a plausible accuracy, because it always predicts the same class.

    Raises:
        UserError: If all models have failed.
    """
    arrays = {name: np.asarray(values, float) for name, values in metrics.items()}
    failed = np.asarray(result.best_epoch) == 0
    for name in (learner.monitor, "dev_nll"):
        if name in arrays:
            failed = failed | ~np.isfinite(arrays[name])
    if failed.all():
        numbers = ", ".join(map(str, dict.fromkeys(seeds)))
        raise UserError(
            f"the dev loss or metric of seed {numbers} is not a finite number "
            f"({int(np.sum(result.skipped)):,} training steps were skipped because loss or gradient were not "
            "finite), so there is no result: lower --learning-rate or set --clip"
        )
    return {
        name: np.where(failed.reshape(-1, *(1,) * (array.ndim - 1)), np.nan, array)
        for name, array in arrays.items()
    }
