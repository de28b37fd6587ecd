"""One experiment: train each model in its run folder, evaluate, draw, write results, print the table."""

import dataclasses
import datetime
import importlib.metadata
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from dynskip_jax.analysis import plots
from dynskip_jax.devices.parallel import OneDevice, Parallel
from dynskip_jax.errors import UserError
from dynskip_jax.runs.run_dir import RunDir, default_path, file_name
from dynskip_jax.training.loop import FitResult, FitSettings, Stopped, fit
from dynskip_jax.training.step import Task

# How a swept setting is called in tables and plots.
_SIGNS = {"mix": "λ", "max_skip": "K"}
_PACKAGES = ("dynskip_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


@runtime_checkable
class Experiment(Protocol):
    """What one command runs, for one model or several.

    Attributes:
        name: as in `python -m experiments.<name>`.
        dataset: `name`, `sizes`, `fingerprint` and `source` of the data.
        models: names as on the command line.
        columns: metrics of the printed table, with their headings and formats.
        curves: metrics drawn as learning curves.
        note: a line under the table, or an empty string.
    """

    name: str
    dataset: dict[str, Any]
    models: tuple[str, ...]
    columns: dict[str, tuple[str, str]]
    curves: tuple[str, ...]
    note: str

    def config(self, model: str) -> dict[str, Any]:
        """Returns every setting of a model, as resolved."""

    def files(self, model: str) -> Mapping[str, str]:
        """Returns what else its run folder keeps, so that it can be used without the data: name to text."""

    def values(self, model: str) -> Sequence[Mapping[str, Any]]:
        """Returns what a sweep sets, value by value; one empty mapping without a sweep.

        The models of `build` are all seeds with the first value, then all seeds with the second, and so on.
        """

    def build(self, model: str) -> tuple[Task, FitSettings]:
        """Returns what to train, and how."""

    def final_metrics(self, model: str, task: Task, result: FitResult) -> dict[str, np.ndarray]:
        """Returns the metrics of the selected parameters, one value per seed."""

    def draw(self, model: str, task: Task, result: FitResult, folder: Path, member: int) -> None:
        """Draws what the agent of one of the models trained together chose."""

    def published(self) -> Sequence[tuple[str, dict[str, float]]]:
        """Returns the paper's rows: a name, and values for some of `columns`."""


def run(
    experiment: Experiment,
    run_dir: str | Path | None,
    *,
    parallel: Parallel | None = None,
    announce: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Runs or resumes an experiment; what is finished already is not trained again.

    With several models each has a run folder of its own inside the experiment's.

    Args:
        experiment: what to run.
        run_dir: the run folder; by default a new one below `runs/<name>/`.
        parallel: on which devices to train, and how; by default one. Results are the same up to rounding, so
            the run folder's configuration does not hold it: a run may be resumed on other devices.
        announce: says what the user should know.

    Of several processes the first does what is not training: the others train as it says.

    Returns:
        The content of each model's `result.json`; in other processes than the first nothing.

    Raises:
        Stopped: training was interrupted; the message says how to go on.
        UserError: the run folder cannot be used.
    """
    parallel = parallel or OneDevice()
    several = len(experiment.models) > 1
    built = {model: experiment.build(model) for model in experiment.models}  # errors come before folders
    if not parallel.processes.first:
        while (model := parallel.processes.agree(None)) is not None:
            fit(*built[model], None, parallel=parallel, announce=lambda line: None)
        return []
    if run_dir is None:
        label = "compare" if several else experiment.models[0]
        run_dir = default_path(experiment.name, label, datetime.datetime.now())
    run_dir = Path(run_dir)
    top = None
    if several:
        top = RunDir.open(
            run_dir, {"models": experiment.models, **{m: experiment.config(m) for m in experiment.models}}
        )
    announce(f"run folder: {run_dir}")
    folders = [run_dir / file_name(model) if several else run_dir for model in experiment.models]
    results, curves = [], {}
    for model, folder in zip(experiment.models, folders, strict=True):
        here = RunDir.open(folder, experiment.config(model))
        for name, text in experiment.files(model).items():
            here.keep(name, text)
        finished = here.result()
        if finished is not None:
            announce(f"{model}: finished already, in {folder}")
        else:
            try:
                finished = _run_model(experiment, model, *built[model], here, parallel, announce)
            except Stopped as stopped:
                raise Stopped(f"{stopped}; the same command with --run-dir {run_dir} goes on") from None
        results.append(finished)
        curves |= _curves(model, here.records(), experiment.values(model))
    if top is not None:
        for metric in experiment.curves:
            plots.learning_curves(
                curves,
                "examples",
                [metric],
                top.plots / f"{metric}.png",
                f"{experiment.dataset['name']}: {metric}",
            )
        top.write_result({"experiment": experiment.name, "dataset": experiment.dataset, "rows": results})
    parallel.processes.agree(None)  # that was all
    _print_table(experiment, results)
    return results


def _run_model(
    experiment: Experiment,
    model: str,
    task: Task,
    settings: FitSettings,
    run_dir: RunDir,
    parallel: Parallel,
    announce: Callable[[str], None],
) -> dict[str, Any]:
    parameters = _count(jax.eval_shape(task.init, jax.random.key(0)))
    values = experiment.values(model)
    seeds = settings.seeds[: len(settings.seeds) // len(values)]
    swept = f", {len(values)} values of the sweep" if len(values) > 1 else ""
    announce(f"{model}: {parameters:,} parameters, seeds {', '.join(map(str, seeds))}{swept}")
    parallel.processes.agree(model)
    result = fit(task, settings, run_dir, parallel=parallel, announce=announce)
    result = dataclasses.replace(result, params=parallel.spread(result.params))
    metrics = _of_trained(experiment.final_metrics(model, task, result), result, settings.seeds)
    dataset = experiment.dataset["name"]
    selected = _best_value(metrics, task, len(values))
    parts = {name: np.split(np.asarray(array), len(values)) for name, array in metrics.items()}
    by_value = [{name: summary(part[i]) for name, part in parts.items()} for i in range(len(values))]
    plots.learning_curves(
        _curves(model, run_dir.records(), values),
        "examples",
        experiment.curves,
        run_dir.plots / "learning_curve.png",
        f"{experiment.name} on {dataset}: {model}",
    )
    if len(values) > 1:
        _draw_sweep(experiment, model, values, by_value, run_dir.plots)
    experiment.draw(model, task, result, run_dir.plots, selected * len(seeds))
    record = {
        "experiment": experiment.name,
        "dataset": experiment.dataset,
        "model": model,
        **_recurrence(experiment.config(model)),
        "parameters": parameters,
        "seeds": seeds,
        "metrics": by_value[selected],
        "epochs": result.epochs,
        "best_epoch": result.best_epoch,
        "wall_seconds": round(result.seconds, 1),
        "backend": jax.default_backend(),
        "devices": [device.device_kind for device in parallel.devices],
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in _PACKAGES},
    }
    if len(values) > 1:
        rows = [{"value": value, "metrics": of} for value, of in zip(values, by_value, strict=True)]
        record |= {"selected": values[selected], "sweep": rows}
    run_dir.write_result(record)
    return run_dir.result()


def _of_trained(
    metrics: Mapping[str, np.ndarray], result: FitResult, seeds: Sequence[int]
) -> dict[str, np.ndarray]:
    """The metrics, not a number for a model whose dev metric never was one: it has no best epoch.

    Raises:
        UserError: there is no other.
    """
    failed = np.asarray(result.best_epoch) == 0
    if failed.all():
        raise UserError(
            f"the dev metric of seed {', '.join(map(str, dict.fromkeys(seeds)))} was never a number, "
            "so there is no result: lower --learning-rate or set --clip"
        )
    return {name: np.where(failed, np.nan, np.asarray(values, float)) for name, values in metrics.items()}


def _recurrence(config: Mapping[str, Any]) -> dict[str, str]:
    """What of a model its name does not say: another transition than the LSTM, a skip over depth."""
    plain = {"transition": "lstm", "depth_skip": None}
    return {name: config[name] for name, usual in plain.items() if config.get(name, usual) != usual}


def _row_name(result: Mapping[str, Any]) -> str:
    """A model's name in a table, with what its own name does not say."""
    more = [result[name] for name in ("transition", "depth_skip") if name in result]
    return ", ".join([result["model"], *more])


def metrics_in_every_mode(
    evaluate: Callable[..., dict[str, np.ndarray]], mode: str, *, is_stochastic: bool, samples: int
) -> dict[str, np.ndarray]:
    """Returns the metrics of dev and test; of agents that sample also `_greedy`, `_sampled`, `_averaged`.

    Args:
        evaluate: from a split, `mode` and `samples` to metrics; each combination is asked for once.
        mode: of the metrics without a suffix.
        is_stochastic: whether there are agents that sample.
        samples: how many predictions are averaged.
    """
    modes = {"": (mode, 1)}
    if is_stochastic:
        modes |= {"_greedy": ("greedy", 1), "_sampled": ("sample", 1), "_averaged": ("sample", samples)}
    metrics, done = {}, {}
    for suffix, (mode, samples) in modes.items():
        for split in ("dev", "test"):
            at = split, mode, samples
            if at not in done:
                done[at] = evaluate(split, mode=mode, samples=samples)
            metrics |= {f"{name}{suffix}": value for name, value in done[at].items()}
    return metrics


def _best_value(metrics: Mapping[str, np.ndarray], task: Task, num_values: int) -> int:
    """The value of a sweep whose models are best on dev, on average; 0 without a sweep."""
    if num_values == 1:
        return 0
    means = np.asarray(metrics[task.monitor], float).reshape(num_values, -1).mean(axis=1)
    if np.isnan(means).all():
        return 0
    return int(np.nanargmax(means) if task.higher_is_better else np.nanargmin(means))


def _label(model: str, value: Mapping[str, Any]) -> str:
    """Names a row or a curve, as in `dynamic:10, λ=0.5`."""
    return ", ".join([model, *(f"{_SIGNS[name]}={setting}" for name, setting in value.items())])


def _curves(
    model: str, records: Sequence[Mapping[str, Any]], values: Sequence[Mapping[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """The records of each value of a sweep, under its name."""

    def part(number: int, entry: Any) -> Any:
        if not isinstance(entry, list):
            return entry
        size = len(entry) // len(values)
        return entry[number * size : (number + 1) * size]

    return {
        _label(model, value): [{name: part(i, entry) for name, entry in r.items()} for r in records]
        for i, value in enumerate(values)
    }


def _draw_sweep(
    experiment: Experiment,
    model: str,
    values: Sequence[Mapping[str, Any]],
    by_value: Sequence[Mapping[str, Any]],
    folder: Path,
) -> None:
    """Draws the first column of the table over each swept setting; the other setting makes the curves."""
    metric, (heading, _) = next(iter(experiment.columns.items()))
    for axis in values[0]:
        points = sorted({value[axis] for value in values})
        if len(points) < 2:
            continue
        curves: dict[str, list] = {}
        for value, metrics in zip(values, by_value, strict=True):
            label = _label(model, {name: other for name, other in value.items() if name != axis})
            of_point = curves.setdefault(label, [[] for _ in points])
            of_point[points.index(value[axis])] = metrics[metric]["per_seed"]
        plots.metric_over_values(
            curves,
            points,
            folder / f"{metric}_over_{axis}.png",
            f"{experiment.dataset['name']}: {heading} over {_SIGNS[axis]}",
            x_label=_SIGNS[axis],
            y_label=heading,
        )


def summary(values: np.ndarray) -> dict[str, Any]:
    """Mean, standard deviation (n - 1; 0 for one seed) and the values themselves."""
    values = np.asarray(values, np.float64)
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "std": spread, "per_seed": values.tolist()}


def _count(params: Any) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))


def _print_table(experiment: Experiment, results: Sequence[dict[str, Any]]) -> None:
    table = Table(title=f"{experiment.name} on {experiment.dataset['name']}", title_justify="left")
    table.add_column("model", no_wrap=True)
    for heading, _ in experiment.columns.values():
        table.add_column(heading, justify="right")
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    for result in results:
        time = str(datetime.timedelta(seconds=round(result["wall_seconds"])))
        rows = result.get("sweep") or [{"value": {}, "metrics": result["metrics"]}]
        for number, row in enumerate(rows):
            cells = [
                cell(row["metrics"].get(metric), form) for metric, (_, form) in experiment.columns.items()
            ]
            # All values of a sweep have taken this time together.
            shared = (f"{result['parameters']:,}", time) if number == 0 else ("", "")
            table.add_row(_label(_row_name(result), row["value"]), *cells, *shared)
    published = experiment.published()
    if published:
        table.add_section()
    for name, values in published:
        cells = [f"{values[m]:{form}}" if m in values else "" for m, (_, form) in experiment.columns.items()]
        table.add_row(name, *cells, "", "", style="dim")
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)  # a file has no width of its own
    console.print(table)
    if experiment.note:
        console.print(experiment.note, style="dim", highlight=False)


def cell(values: Mapping[str, Any] | None, form: str) -> str:
    """A metric of one row, with its spread over seeds where there are several; empty where there is none."""
    if values is None:
        return ""
    if len(values["per_seed"]) == 1:
        return f"{values['mean']:{form}}"
    return f"{values['mean']:{form}} ± {values['std']:{form}}"
