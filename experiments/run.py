"""One experiment: train each model in its run folder, evaluate, draw, write results, print the table."""

import datetime
import importlib.metadata
import json
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dynskip_jax.analysis import plots
from dynskip_jax.devices.parallel import OneDevice, Parallel
from dynskip_jax.errors import Stopped, UserError
from dynskip_jax.runs.checkpoint import SavedCheckpoints
from dynskip_jax.runs.files import sha256_of
from dynskip_jax.runs.progress import Progress
from dynskip_jax.runs.results import rows_of
from dynskip_jax.runs.run_dir import RunDir, file_name, new_folder
from dynskip_jax.tasks import Learner
from dynskip_jax.training.loop import FitResult, FitSettings, fit
from dynskip_jax.training.step import evaluation_keys
from experiments.experiment import Data, Experiment, Kept, evaluations, metrics_in_every_mode
from experiments.table import (
    best_value,
    by_epoch,
    curves_of,
    draw_sweep,
    edges_of_sweep,
    print_table,
    summary,
)

VOCABULARY = "vocabulary.json"
_PACKAGES = ("dynskip_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
_MAY_GROW = ("settings.training.epochs", "models")  # in a run folder that is there


def run(
    experiment: Experiment,
    models: Sequence[str],
    data: Data,
    run_dir: str | Path | None,
    *,
    parallel: Parallel | None = None,
    announce: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Runs or resumes an experiment; what is finished already is not trained again.

    With several models each has a run folder of its own inside the experiment's.

    Args:
        experiment: what to run.
        models: names as on the command line.
        data: to train on.
        run_dir: the run folder; by default a new one below `runs/<name>/`.
        parallel: on which devices to train, and how; by default one. Results are the same up to rounding, so
            the run folder's configuration does not hold it: a run may be resumed on other devices.
        announce: says what the user should know.

    Of several processes the first does what is not training: the others train as it says.

    Returns:
        The row of each model in `result.json`; in other processes than the first nothing.

    Raises:
        Stopped: training was interrupted; the message says how to go on.
        UserError: the run folder cannot be used.
    """
    parallel = parallel or OneDevice()
    several = len(models) > 1
    experiment.check_models(models)
    vocabulary = experiment.vocabulary(data)
    learners = {model: experiment.learner(model, data, vocabulary) for model in models}
    fits = {model: experiment.fit_settings(model, learners[model]) for model in models}
    # Errors come before folders.
    if not parallel.processes.first:
        while (model := parallel.processes.agree(None)) is not None:
            fit(learners[model], fits[model], None, parallel=parallel, announce=lambda line: None)
            number = parallel.processes.index
            print(f"process {number} waits for process 0, which evaluates {model} and draws", file=sys.stderr)
        return []
    if run_dir is None:
        run_dir = new_folder(experiment.name, "compare" if several else models[0], datetime.datetime.now())
    run_dir = Path(run_dir)
    top = None
    how = dict(
        about=_about(experiment, data),
        defaults={"settings": type(experiment.settings)().kept()},
        may_grow=_MAY_GROW,
    )
    if several:
        config = experiment.config(models[0], data)
        config = {("models" if k == "model" else k): models if k == "model" else v for k, v in config.items()}
        top = RunDir.open(run_dir, config, **how)
    announce(f"run folder: {run_dir}")
    for model in models:
        for line in experiment.warnings(model, learners[model]):
            announce(f"warning: {model}: {line}")
    results, curves = [], {}
    for model in models:
        folder = run_dir / file_name(model) if several else run_dir
        config = experiment.config(model, data)
        here = RunDir.open(folder, config, **how, within=top)
        if vocabulary is not None:
            here.keep(VOCABULARY, vocabulary_file(vocabulary))
        result = here.result()
        finished = None if result is None else rows_of(result)[0]
        if finished is not None and finished.get("epochs_asked", 0) >= fits[model].epochs:
            announce(f"{model}: finished already, in {folder}")
        else:
            try:
                finished = _run_model(
                    experiment, model, data, learners[model], fits[model], here, parallel, announce
                )
            except Stopped as stopped:
                raise Stopped(f"{stopped}; the same command with --run-dir {run_dir} goes on") from None
        results.append(finished)
        curves |= curves_of(model, by_epoch(here.records()), experiment.values(model))
    if top is not None:
        for metric in experiment.curves:
            path, title = top.plots / f"{metric}.png", f"{data.name}: {metric.replace('_', ' ')}"
            plots.learning_curves(curves, "epoch", [metric, _of_train(metric)], path, title)
        top.go_on()  # a model that was finished already may be new to it
        top.write_result(_result(experiment, data, results))
    parallel.processes.agree(None)  # that was all
    print_table(experiment, models, data, results)
    return results


def _run_model(
    experiment: Experiment,
    model: str,
    data: Data,
    learner: Learner,
    settings: FitSettings,
    run_dir: RunDir,
    parallel: Parallel,
    announce: Callable[[str], None],
) -> dict[str, Any]:
    parameters = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(learner.abstract_params()))
    values = experiment.values(model)
    seeds = settings.seeds[: len(settings.seeds) // len(values)]
    swept = f", {len(values)} values of the sweep" if len(values) > 1 else ""
    announce(f"{model}: {parameters:,} parameters, seeds {', '.join(map(str, seeds))}{swept}")
    parallel.processes.agree(model)
    result = fit(learner, settings, run_dir, parallel=parallel, announce=announce)
    params, keys = parallel.spread(result.params), evaluation_keys(settings.seeds)
    trained_at = time.monotonic()
    modes = evaluations(
        experiment.evaluation_mode(model),
        is_stochastic=experiment.choices_matter(model),
        samples=experiment.samples,
    )
    # Each evaluation is a step of the bar, and so are what is counted beside them and the pictures.
    with Progress(len(set(modes.values())) + 2, f"{model}: evaluating and drawing") as progress:
        how = dict(batch_size=experiment.final_rows, advance=progress.advance)
        metrics = metrics_in_every_mode(
            lambda split, **mode: learner.evaluate(params, split, keys, **mode, **how), modes
        )
        metrics |= experiment.more_metrics(model, learner, params, keys)
        progress.advance()
        metrics = _of_trained(metrics, learner, result, settings.seeds)
        dev = metrics[learner.monitor]
        selected = best_value(dev, len(values), higher_is_better=learner.higher_is_better)
        parts = {name: np.split(np.asarray(array), len(values)) for name, array in metrics.items()}
        by_value = [{name: summary(part[i]) for name, part in parts.items()} for i in range(len(values))]
        _draw_training(experiment, data, model, run_dir, selected)
        if len(values) > 1:
            draw_sweep(experiment, data, model, values, by_value, run_dir.plots)
        experiment.draw(model, learner, params, keys, run_dir.plots, selected * len(seeds))
        progress.advance()
    for line in edges_of_sweep(type(experiment.settings), values, selected):
        announce(f"warning: {model}: {line}")
    best_epochs = np.split(np.asarray(result.best_epoch), len(values))
    row = {
        "model": model,
        **experiment.beyond_name(model),
        "parameters": parameters,
        "seeds": seeds,
        "metrics": by_value[selected],
        "epochs": result.epochs,
        "epochs_asked": settings.epochs,
        "best_epoch": best_epochs[selected],
        "wall_seconds": round(result.seconds + time.monotonic() - trained_at, 1),
        "backend": jax.default_backend(),
        "devices": [device.device_kind for device in parallel.devices],
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in _PACKAGES},
    }
    if len(values) > 1:
        rows = [
            {"value": value, "metrics": of, "best_epoch": epochs}
            for value, of, epochs in zip(values, by_value, best_epochs, strict=True)
        ]
        row |= {"selected": values[selected], "sweep": rows}
    row["checkpoint"] = SavedCheckpoints(run_dir.checkpoints).fingerprint()
    if (run_dir.path / VOCABULARY).exists():
        row["vocabulary_sha256"] = sha256_of(run_dir.path / VOCABULARY)
    run_dir.write_result(_result(experiment, data, [row]))
    return rows_of(run_dir.result())[0]


def _draw_training(experiment: Experiment, data: Data, model: str, run_dir: RunDir, selected: int) -> None:
    """Draws what was logged: metrics of train beside dev, and the agents' policies."""
    records = by_epoch(run_dir.records())
    values = experiment.values(model)
    curves = curves_of(model, records, values)
    plots.learning_curves(
        curves,
        "epoch",
        [name for metric in experiment.curves for name in (metric, _of_train(metric))],
        run_dir.plots / "learning_curve.png",
        f"{experiment.name} on {data.name}: {model}",
    )
    label, own = list(curves.items())[selected]
    layers = sorted({name for r in own for name in r if name.startswith("dev_agent_share_")})
    for name in layers:
        layer = name.removeprefix("dev_agent_share_")
        plots.policy_over_training(
            [r for r in own if name in r],
            f"dev_agent_share_{layer}",
            f"dev_agent_entropy_{layer}",
            run_dir.plots / f"policy_{layer}.png",
            f"{experiment.name} on {data.name}: {label}, the policy of layer {layer}",
            note=f"dev, {experiment.evaluation_mode(model)}, mean over seeds",
        )


def _of_train(metric: str) -> str:
    """What is drawn beside a metric of dev."""
    return metric.replace("dev_", "train_", 1)


def _result(experiment: Experiment, data: Data, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `result.json` holds, of one model or of several."""
    return {"experiment": experiment.name, "dataset": _dataset(data), "rows": rows}


def vocabulary_file(vocabulary: Kept) -> str:
    """Returns the content of the file in which a run folder keeps its vocabulary."""
    return json.dumps(vocabulary.to_json(), ensure_ascii=False) + "\n"


def _of_trained(
    metrics: Mapping[str, np.ndarray], learner: Learner, result: FitResult, seeds: Sequence[int]
) -> dict[str, np.ndarray]:
    """Return the metrics, NaN for each model that has failed: its dev metric or its dev loss is not finite.

    A model of NaNs may have a plausible accuracy: that of always the same answer.

    Raises:
        UserError: all models have failed.
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


def _dataset(data: Data) -> dict[str, Any]:
    return {
        "name": data.name,
        "sizes": dict(data.sizes),
        "fingerprint": data.fingerprint,
        "source": data.source,
    }


def _about(experiment: Experiment, data: Data) -> dict[str, Any]:
    """How a run was begun: for people, and compared with nothing."""
    command = shlex.join([Path(sys.executable).name, *getattr(sys, "orig_argv", sys.argv)[1:]])
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(
            describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
        commit = found.stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or no checkout
        commit = None
    folder = experiment.settings.data.data
    return {
        "command": command,
        "commit": commit,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "source": data.source,
        "data": None if folder is None else str(Path(folder).expanduser().absolute()),
    }
