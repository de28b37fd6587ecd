"""One experiment: train each model in its run folder, evaluate, draw, write results, print the table."""

import datetime
import importlib.metadata
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from dynskip_jax.analysis import plots
from dynskip_jax.training.loop import FitResult, FitSettings, Stopped, Task, fit
from dynskip_jax.training.parallel import OneDevice, Parallel
from dynskip_jax.training.run_dir import RunDir, default_path

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

    def build(self, model: str) -> tuple[Task, FitSettings]:
        """Returns what to train, and how."""

    def final_metrics(self, model: str, task: Task, result: FitResult) -> dict[str, np.ndarray]:
        """Returns the metrics of the selected parameters, one value per seed."""

    def draw(self, model: str, task: Task, result: FitResult, folder: Path) -> None:
        """Draws what the agent chose."""

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
    folders = [run_dir / model.replace(":", "-") if several else run_dir for model in experiment.models]
    results, curves = [], {}
    for model, folder in zip(experiment.models, folders, strict=True):
        here = RunDir.open(folder, experiment.config(model))
        finished = here.result()
        if finished is not None:
            announce(f"{model}: finished already, in {folder}")
        else:
            try:
                finished = _run_model(experiment, model, *built[model], here, parallel, announce)
            except Stopped as stopped:
                raise Stopped(f"{stopped}; the same command with --run-dir {run_dir} goes on") from None
        results.append(finished)
        curves[model] = here.records()
    if top is not None:
        for metric in experiment.curves:
            plots.learning_curves(
                curves,
                "epoch",
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
    announce(f"{model}: {parameters:,} parameters, seeds {', '.join(map(str, settings.seeds))}")
    parallel.processes.agree(model)
    result = fit(task, settings, run_dir, parallel=parallel, announce=announce)
    metrics = experiment.final_metrics(model, task, result)
    dataset = experiment.dataset["name"]
    plots.learning_curves(
        {model: run_dir.records()},
        "epoch",
        experiment.curves,
        run_dir.plots / "learning_curve.png",
        f"{experiment.name} on {dataset}: {model}",
    )
    experiment.draw(model, task, result, run_dir.plots)
    record = {
        "experiment": experiment.name,
        "dataset": experiment.dataset,
        "model": model,
        "parameters": parameters,
        "seeds": settings.seeds,
        "metrics": {name: summary(values) for name, values in metrics.items()},
        "epochs": result.epochs,
        "best_epoch": result.best_epoch,
        "wall_seconds": round(result.seconds, 1),
        "backend": jax.default_backend(),
        "devices": [device.device_kind for device in parallel.devices],
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in _PACKAGES},
    }
    run_dir.write_result(record)
    return run_dir.result()


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
        cells = []
        for metric, (_, form) in experiment.columns.items():
            value = result["metrics"].get(metric)
            if value is None:
                cells.append("")
            elif len(value["per_seed"]) > 1:
                cells.append(f"{value['mean']:{form}} ± {value['std']:{form}}")
            else:
                cells.append(f"{value['mean']:{form}}")
        time = str(datetime.timedelta(seconds=round(result["wall_seconds"])))
        table.add_row(result["model"], *cells, f"{result['parameters']:,}", time)
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
