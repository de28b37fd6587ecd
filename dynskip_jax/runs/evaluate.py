"""Evaluate the parameters of the best epoch on dev and test, and draw pictures of them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dynskip_jax.analysis import plots
from dynskip_jax.config.experiment import Dataset, imported
from dynskip_jax.errors import UserError
from dynskip_jax.runs.load import Trained
from dynskip_jax.runs.tables import curves_of, summary
from dynskip_jax.training.loop import FitResult
from dynskip_jax.training.progress import Progress


def evaluate(
    trained: Trained, data: Dataset, result: FitResult, check: Callable[[], None]
) -> tuple[list[dict[str, Any]], int]:
    """Evaluate the models of a run, and draw pictures into its folder.

    Return the metrics of each value of a sweep, and the index of the best one on dev. Test is read
    for that value only. `check` is called after each step, and raises an error to stop.
    """
    count = len(trained.spec.values)
    modes = trained.learner.modes(trained.spec, trained.experiment.samples)
    # Each evaluation is a step of the progress bar, as are the further metrics and the pictures.
    steps = 2 * len({*modes.values()}) + 2
    with Progress(steps, f"{trained.name}: evaluating and drawing") as progress:

        def advance(n: float = 1) -> None:
            progress.advance(n)
            check()

        dev = _scores(trained, "dev", modes, advance)
        failed = _failed(dev, trained, result)
        by_value = _by_value(dev, failed, count)
        selected = _best_value(by_value, trained)

        # Test is read for the selected value only.
        tested = trained
        if count > 1:
            tested = trained.of_value(selected, data)
            failed = np.split(failed, count)[selected]
        found = _scores(tested, "test", modes, advance)
        experiment = trained.experiment
        if experiment.measure is not None:
            found |= imported(experiment.measure)(tested)
        advance()
        (of_test,) = _by_value(found, failed, 1)
        by_value[selected] |= of_test

        # The agents' choices are drawn of the first seed, with the selected value.
        _draw_training(trained, data.name)
        check()
        shown = dataclasses.replace(trained, member=selected * len(trained.spec.seeds))
        if experiment.draw is not None:
            imported(experiment.draw)(shown)
        progress.advance()
    return by_value, selected


def _scores(
    models: Trained,
    split: str,
    modes: Mapping[str, tuple[str, int]],
    advance: Callable[[float], None],
) -> dict[str, np.ndarray]:
    """Return the metrics of a split in each mode; equal modes are evaluated once."""
    scores = {}
    for mode, samples in dict.fromkeys(modes.values()):
        found = models.learner.evaluate(
            models.all_params,
            split,
            models.keys,
            mode=mode,
            samples=samples,
            batch_size=models.experiment.final_rows,
            advance=advance,
        )
        for suffix, other in modes.items():
            if other == (mode, samples):
                scores |= {f"{name}{suffix}": value for name, value in found.items()}
    return scores


def _best_value(by_value: list[dict[str, Any]], trained: Trained) -> int:
    """Return the index of the value of a sweep that is best on dev.

    A value with a NaN, from a model that has failed, is only selected if all values have one.
    """
    means = np.array([of_value[trained.learner.monitor]["mean"] for of_value in by_value])
    if np.isnan(means).all():
        return 0
    best = np.nanargmax if trained.learner.higher_is_better else np.nanargmin
    return int(best(means))


def _by_value(
    metrics: Mapping[str, np.ndarray], failed: np.ndarray, count: int
) -> list[dict[str, dict[str, Any]]]:
    """Return the summaries of metrics for each value of a sweep, NaN for failed models."""
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, values in metrics.items():
        values = np.array(values, float)
        values[failed] = np.nan
        for row, part in zip(rows, np.split(values, count), strict=True):
            row[name] = summary(part)
    return rows


def _draw_training(trained: Trained, data_name: str) -> None:
    """Draw logged metrics."""
    spec = trained.spec
    folder = trained.run.plots
    curves = curves_of(spec.name, trained.run.records(), spec.values)
    title = f"{trained.experiment.name} on {data_name}"
    metric = trained.learner.monitor
    metrics = [metric, metric.replace("dev_", "train_", 1)]
    path = folder / "learning_curve.png"
    plots.learning_curves(curves, trained.learner.axis, metrics, path, f"{title}: {spec.name}")


def _failed(metrics: Mapping[str, np.ndarray], trained: Trained, result: FitResult) -> np.ndarray:
    """Return which models have failed; if all have, raise a `UserError`.

    A model has failed if it has no best epoch, or if its dev metric or dev loss is not finite.
    Otherwise a model with NaN parameters could show a plausible accuracy, because it always
    predicts the same class.
    """
    failed = np.asarray(result.best_epoch) == 0
    for name in (trained.learner.monitor, "dev_nll"):
        if name in metrics:
            failed = failed | ~np.isfinite(np.asarray(metrics[name], float))
    if failed.all():
        numbers = ", ".join(map(str, trained.spec.seeds))
        raise UserError(
            f"the dev loss or metric of seed {numbers} is not a finite number "
            f"({int(np.sum(result.skipped)):,} training steps were skipped because loss or "
            "gradient were not finite), so there is no result: lower --learning-rate or set --clip"
        )
    return failed
