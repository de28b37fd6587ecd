"""Run a plan: train and evaluate each model in its folder, and print the results."""

import contextlib
import datetime
import importlib.metadata
import json
import logging
import math
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dynskip_jax.analysis import plots
from dynskip_jax.config.experiment import Dataset, Experiment
from dynskip_jax.config.settings import Resolved, Settings
from dynskip_jax.config.stored import to_config
from dynskip_jax.errors import Stopped
from dynskip_jax.runs.evaluate import evaluate
from dynskip_jax.runs.learner import VOCABULARY
from dynskip_jax.runs.plan import Plan, PlannedModel, plan, read_data
from dynskip_jax.runs.spec import variant_of
from dynskip_jax.runs.tables import curves_of, print_results
from dynskip_jax.storage.folder import RunDir, check_usable, file_name, new_folder
from dynskip_jax.storage.results import row_of
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.training.devices import choose_devices, join
from dynskip_jax.training.interruptions import interruptions
from dynskip_jax.training.loop import FitResult
from dynskip_jax.training.mesh import Parallel
from dynskip_jax.training.processes import Processes

logger = logging.getLogger(__name__)

_PACKAGES = ("dynskip_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


@contextlib.contextmanager
def joined(settings: Settings) -> Iterator[Processes]:
    """Join the processes of a run, and check its folder.

    Nothing is read before all have joined: the others would wait for one that has failed.
    """
    with join(settings.devices, settings.most_models) as processes:
        if not processes.first:
            logging.getLogger("dynskip_jax").setLevel(logging.ERROR)
        elif settings.run.run_dir is not None:
            check_usable(settings.run.run_dir)
        yield processes


def train(experiment: Experiment, resolved: Resolved, processes: Processes) -> None:
    """Read the data, plan the run, and run it."""
    final, data = read_data(experiment, resolved)
    for line in final.notes:
        logger.warning("%s", line)
    logger.info("preset: %s (%s)", final.settings.run.preset, final.sources["preset"])
    run(plan(experiment, final, data), processes)


def run(plan: Plan, processes: Processes) -> None:
    """Run or resume a plan; models that are finished already are not trained again.

    Several models have a run folder each, inside the experiment's. With several processes, all of
    them train the models that the first one selects. Only the first one runs the final evaluation,
    draws and prints.
    """
    # All models use the devices alike, even if a sweep trains more of one model than of another.
    num_models = math.gcd(*(len(model.spec.all_seeds) for model in plan.models))
    batch_size = plan.models[0].learner.task.batch_size
    parallel = choose_devices(plan.settings.devices, num_models, batch_size, processes)
    _log_beginning(plan, parallel)
    if not processes.first:
        _follow(plan.models, parallel)
        return
    several = len(plan.models) > 1
    names = [model.spec.name for model in plan.models]
    run_dir = plan.settings.run.run_dir
    if run_dir is None:
        label = "compare" if several else names[0]
        run_dir = new_folder(plan.experiment.name, label, datetime.datetime.now())
    open_run = partial(_open, plan, _about(plan.settings, plan.data))
    top = None
    if several:
        top = open_run(run_dir, {"models": names})
        top.go_on()
    logger.info("run folder: %s", run_dir)

    # From here on a signal is only noted: the run stops at the next step that looks for it.
    rows: list[dict[str, Any]] = []
    curves: dict[str, Any] = {}
    try:
        with interruptions() as interrupted:
            for model in plan.models:
                name = model.spec.name
                _stop_if(interrupted, processes, f"before {name}")
                folder = run_dir / file_name(name) if several else run_dir
                here = open_run(folder, {"model": name})
                rows.append(_row(plan, model, here, parallel, interrupted))
                curves |= curves_of(name, here.records(), model.spec.values)
    except (Stopped, KeyboardInterrupt) as stopped:
        what = str(stopped) or "interrupted"
        going_on = f"{what}; the same command with --run-dir {run_dir} goes on"
        raise type(stopped)(going_on) from None
    if top is not None:
        _draw_comparison(plan, top, curves)
        top.write_result(_result(plan, rows))
    processes.agree(None)  # there are no more models
    published = plan.experiment.published_rows(plan.settings, plan.data, names)
    mode = plan.settings.agent.evaluation_mode
    print_results(plan.experiment, plan.data, rows, published, mode)


def _stop_if(interrupted: Callable[[], bool], processes: Processes, where: str) -> None:
    """Stop if a signal has arrived outside of training, which looks for signals itself."""
    if interrupted():
        processes.agree(None)  # the others wait for the name of the next model
        raise Stopped(f"stopped {where}")


def _log_beginning(plan: Plan, parallel: Parallel) -> None:
    """Log what is read, and where it runs."""
    data = plan.data
    sizes = ", ".join(f"{name} {size:,}" for name, size in data.sizes.items())
    logger.info("data: %s, %s (%s)", data.name, data.source, sizes)
    for line in data.lines:
        logger.info("%s", line)
    used = f"{len(parallel.devices)} of {jax.device_count()} {parallel.devices[0].platform}"
    count = parallel.processes.count
    logger.info("%s device(s), %d process(es)", used, count)


def _follow(models: Sequence[PlannedModel], parallel: Parallel) -> None:
    """Train, in a process other than the first, the models that the first process selects."""
    by_name = {model.spec.name: model for model in models}
    while (name := parallel.processes.agree(None)) is not None:
        by_name[name].learner.fit(by_name[name].fit, None, parallel=parallel)
        number = parallel.processes.index
        print(
            f"process {number} waits for process 0, which evaluates {name} and draws",
            file=sys.stderr,
        )


# --- A model ---


def _open(plan: Plan, about: Mapping[str, Any], folder: Path, models: Mapping[str, Any]) -> RunDir:
    """Start or resume the run of one model, or of all of them, in its folder."""
    settings = plan.settings
    config = {
        "experiment": plan.experiment.name,
        "dataset": {"name": plan.data.name, "fingerprint": plan.data.fingerprint},
        "settings": to_config(settings),
        **models,
    }
    may_grow = ["models"]
    # With --entropy-coef-final, which the last epoch reaches, more epochs would change those
    # already trained.
    if settings.agent.entropy_coef_final is None:
        may_grow.append(f"settings.training.{settings.training.length}")
    return RunDir.open(folder, config, about=about, may_grow=may_grow)


def _about(settings: Settings, data: Dataset) -> dict[str, Any]:
    """Return the command, the versions, the date and the paths of a run's start."""
    paths = {name: path for name, path in vars(settings.data).items() if isinstance(path, Path)}
    typed = getattr(sys, "orig_argv", sys.argv)
    return {
        "command": shlex.join([Path(sys.executable).name, *typed[1:]]),
        "commit": _commit(),
        "jax": importlib.metadata.version("jax"),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "source": data.source,
        "paths": {name: str(path.resolve()) for name, path in paths.items()},
    }


def _commit() -> str | None:
    """Return the commit of this checkout, with `-dirty` for changed Python files, or None."""
    how = dict(cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    try:
        commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], **how).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain", "--", "*.py"], **how).stdout
    except (OSError, subprocess.CalledProcessError):  # no git, or no checkout
        return None
    return f"{commit}-dirty" if changed else commit


def _row(
    plan: Plan,
    model: PlannedModel,
    run_dir: RunDir,
    parallel: Parallel,
    interrupted: Callable[[], bool],
) -> dict[str, Any]:
    """Return the row of a model, which is trained and evaluated unless it is finished."""
    row = _finished_row(run_dir, model)
    vocabulary = plan.data.vocabulary
    if vocabulary is not None:
        text = json.dumps(vocabulary.to_json(), ensure_ascii=False)
        run_dir.keep(VOCABULARY, f"{text}\n")
    return row or _run_model(plan, model, run_dir, parallel, interrupted)


def _finished_row(run_dir: RunDir, model: PlannedModel) -> dict[str, Any] | None:
    """Return the row of a finished model; None if something is still to be done."""
    row = row_of(run_dir)
    if row is None or row.get("epochs_asked", 0) < model.fit.epochs:
        return None
    logger.info("%s: finished already, in %s", model.spec.name, run_dir.path)
    return row


def _run_model(
    plan: Plan,
    model: PlannedModel,
    run_dir: RunDir,
    parallel: Parallel,
    interrupted: Callable[[], bool],
) -> dict[str, Any]:
    """Train, evaluate and draw a model, write its result, and return its row."""
    name = model.spec.name
    _log_model(model)
    parallel.processes.agree(name)
    fitted = model.learner.fit(
        model.fit,
        run_dir,
        parallel=parallel,
        should_stop=lambda step: interrupted(),
    )
    trained_at = time.monotonic()
    trained = plan.trained(model, run_dir, parallel.spread(fitted.params))
    where = f"in the evaluation of {name}, whose training is saved"
    check = partial(_stop_if, interrupted, parallel.processes, where)

    # `metrics` has an entry for each value of a sweep.
    metrics, selected = evaluate(trained, plan.data, fitted, check)
    seconds = fitted.seconds + time.monotonic() - trained_at
    row = _new_row(plan.settings, model, fitted, metrics, selected) | {
        "wall_seconds": round(seconds, 1),
        "backend": jax.default_backend(),
        "devices": [device.device_kind for device in parallel.devices],
        "versions": {"python": platform.python_version()} | _versions(),
    }
    run_dir.write_result(_result(plan, [row]))
    return row_of(run_dir)


def _new_row(
    settings: Settings,
    model: PlannedModel,
    fitted: FitResult,
    metrics: Sequence[Mapping[str, Any]],
    selected: int,
) -> dict[str, Any]:
    """Return what a row says of a model and its scores."""
    spec = model.spec
    best_epochs = np.split(np.asarray(fitted.best_epoch), len(metrics))
    row = {
        "model": spec.name,
        **variant_of(spec, settings),
        "parameters": _num_parameters(model.learner),
        "seeds": spec.seeds,
        "metrics": metrics[selected],
        "epochs": fitted.epochs,
        "epochs_asked": model.fit.epochs,
        "best_epoch": best_epochs[selected],
    }
    if len(metrics) > 1:
        row["selected"] = spec.values[selected]
        row["sweep"] = [
            {"value": value, "metrics": of_value, "best_epoch": epochs}
            for value, of_value, epochs in zip(spec.values, metrics, best_epochs, strict=True)
        ]
    return row


def _versions() -> dict[str, str]:
    """Return the versions of the packages that numbers may depend on."""
    return {package: importlib.metadata.version(package) for package in _PACKAGES}


def _log_model(model: PlannedModel) -> None:
    """Log the size of a model and of its training."""
    spec = model.spec
    seeds = ", ".join(map(str, spec.seeds))
    count = len(spec.values)
    swept = f", {count} values of the sweep" if count > 1 else ""
    logger.info(
        "%s: %s parameters, seeds %s%s, %s %s in all",
        spec.name,
        f"{_num_parameters(model.learner):,}",
        seeds,
        swept,
        f"{model.fit.epochs * model.learner.num_batches:,}",
        model.learner.counts,
    )


def _num_parameters(learner: Learner) -> int:
    """Return the number of one model's parameters."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(learner.abstract_params()))


# --- Results ---


def _draw_comparison(plan: Plan, top: RunDir, curves: Mapping[str, Any]) -> None:
    """Draw the learning curves of all models."""
    metric = plan.models[0].learner.monitor
    metrics = [metric, metric.replace("dev_", "train_", 1)]
    title = f"{plan.data.name}: {metric.replace('_', ' ')}"
    axis = plan.models[0].learner.axis
    plots.learning_curves(curves, axis, metrics, top.plots / f"{metric}.png", title)


def _result(plan: Plan, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of `result.json`."""
    data = plan.data
    return {
        "experiment": plan.experiment.name,
        "dataset": {
            "name": data.name,
            "fingerprint": data.fingerprint,
            "source": data.source,
            "sizes": dict(data.sizes),
        },
        "rows": rows,
    }
