"""Run an experiment: train and evaluate each model in its run folder, write results, print the table."""

import contextlib
import datetime
import importlib.metadata
import json
import logging
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dynskip_jax.analysis import plots
from dynskip_jax.devices.parallel import Parallel
from dynskip_jax.errors import Stopped, UserError
from dynskip_jax.experiments.build import Training, make_trainings
from dynskip_jax.experiments.evaluation import evaluate_model, of_train
from dynskip_jax.experiments.experiment import Data, Experiment, StoredVocabulary
from dynskip_jax.experiments.model_spec import ModelSpec, check_specs
from dynskip_jax.experiments.provenance import (
    check_start,
    describe_dataset,
    how_to_open,
    run_config,
    warn_of_changes,
)
from dynskip_jax.results import by_epoch, curves_of, edges_of_sweep, print_results
from dynskip_jax.training.checkpoint import Checkpoints
from dynskip_jax.training.event_files import EventFiles, check_tensorboard, member_name
from dynskip_jax.training.files import sha256_of
from dynskip_jax.training.folder import RunDir, file_name, new_folder
from dynskip_jax.training.loop import fit
from dynskip_jax.training.results import finished_row, rows_of

logger = logging.getLogger(__name__)

VOCABULARY = "vocabulary.json"
_PACKAGES = ("dynskip_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def run(
    experiment: Experiment,
    specs: Sequence[ModelSpec],
    data: Data,
    run_dir: str | Path | None,
    *,
    parallel: Parallel | None = None,
) -> list[dict[str, Any]]:
    """Run or resume an experiment; models that are finished already are not trained again.

    Several models have a run folder each, inside the experiment's. With several processes, all of them train
    the models that the first one selects. Only the first one runs the final evaluation, draws and prints.

    Args:
        experiment: Experiment to run.
        specs: Specifications of the models.
        data: Training data.
        run_dir: Run folder; by default a new one below `runs/<name>/`.
        parallel: Devices to train on, and how; by default one device. Results are the same up to rounding, so
            a run may be resumed on other devices.

    Returns:
        The row of each model in `result.json`; an empty list in all processes except the first.

    Raises:
        Stopped: If training was interrupted; the message contains the flag that resumes it.
        UserError: If the run folder cannot be used, or all seeds of a model have failed.
    """
    parallel = parallel or Parallel()
    check_specs(specs, experiment.settings)
    if experiment.settings.run.tensorboard:
        check_tensorboard()
    vocabulary = experiment.vocabulary(data)
    trainings = make_trainings(experiment, specs, data, vocabulary)
    # Settings and models are checked before any folder is created.
    if not parallel.processes.first:
        _follow(trainings, parallel)
        return []
    several = len(specs) > 1
    if run_dir is None:
        label = "compare" if several else specs[0].name
        run_dir = new_folder(experiment.name, label, datetime.datetime.now())
    run_dir = Path(run_dir)
    how = how_to_open(experiment, data)
    top = None
    if several:
        names = [spec.name for spec in specs]
        top = RunDir.open(run_dir, run_config(experiment, names, data), **how)
        warn_of_changes(top, how["about"])
    logger.info("run folder: %s", run_dir)
    for training in trainings:
        for line in experiment.warnings(training.spec, training.learner):
            logger.warning("%s: %s", training.spec.name, line)
    results, curves = [], {}
    for training in trainings:
        spec = training.spec
        folder = run_dir / file_name(spec.name) if several else run_dir
        here = RunDir.open(folder, run_config(experiment, spec.name, data), **how, within=top)
        check_start(here, how["about"])
        row = _finished_row(here, training)
        if vocabulary is not None and not _holds_vocabulary(here, row):
            here.keep(VOCABULARY, vocabulary_file(vocabulary))
        try:
            results.append(row or _run_model(experiment, data, training, here, parallel, how["about"]))
        except (Stopped, KeyboardInterrupt) as stopped:
            what = str(stopped) or "interrupted"
            raise type(stopped)(f"{what}; the same command with --run-dir {run_dir} goes on") from None
        curves |= curves_of(spec.name, by_epoch(here.records()), spec.values)
    if top is not None and not top.is_read_only:
        for metric in experiment.curves:
            path, title = top.plots / f"{metric}.png", f"{data.name}: {metric.replace('_', ' ')}"
            plots.learning_curves(curves, "epoch", [metric, of_train(metric)], path, title)
        top.go_on()  # a finished model may be new to this comparison
        top.write_result(_result(experiment, data, results))
    parallel.processes.agree(None)  # there are no more models
    print_results(experiment, specs, data, results)
    return results


def _follow(trainings: Sequence[Training], parallel: Parallel) -> None:
    """Train in a process other than the first: the models that the first process selects, in its order."""
    by_name = {training.spec.name: training for training in trainings}
    while (name := parallel.processes.agree(None)) is not None:
        fit(by_name[name].learner, by_name[name].settings, None, parallel=parallel)
        number = parallel.processes.index
        print(f"process {number} waits for process 0, which evaluates {name} and draws", file=sys.stderr)


def _finished_row(run_dir: RunDir, training: Training) -> dict[str, Any] | None:
    """Return the row of a model that was trained for enough epochs; None if it still has to be trained."""
    result = run_dir.result()
    try:
        row = None if result is None else finished_row(result)
    except UserError as error:
        raise UserError(f"{run_dir.path}: {error}") from None
    if row is None or row.get("epochs_asked", 0) < training.settings.epochs:
        return None
    logger.info("%s: finished already, in %s", training.spec.name, run_dir.path)
    return row


def _holds_vocabulary(run_dir: RunDir, row: Mapping[str, Any] | None) -> bool:
    """Return whether a finished model's vocabulary file is there, unchanged since its version wrote it."""
    path = run_dir.path / VOCABULARY
    return row is not None and path.exists() and row.get("vocabulary_sha256") == sha256_of(path)


def _run_model(
    experiment: Experiment,
    data: Data,
    training: Training,
    run_dir: RunDir,
    parallel: Parallel,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Train, evaluate and draw a model, write its result, and return its row.

    `about` describes how the run is started; see `how_to_open`.
    """
    run_dir.check_writable()
    spec, learner, settings = training
    parameters = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(learner.abstract_params()))
    swept = f", {len(spec.values)} values of the sweep" if len(spec.values) > 1 else ""
    logger.info(
        "%s: %s parameters, seeds %s%s", spec.name, f"{parameters:,}", ", ".join(map(str, spec.seeds)), swept
    )
    warn_of_changes(run_dir, about)
    parallel.processes.agree(spec.name)
    with _event_files(experiment, run_dir, len(spec.all_seeds)):
        result = fit(learner, settings, run_dir, parallel=parallel)
    trained_at = time.monotonic()
    evaluated = evaluate_model(experiment, data, training, result, run_dir, parallel)
    for line in edges_of_sweep(type(experiment.settings), spec.values, evaluated.selected):
        logger.warning("%s: %s", spec.name, line)
    best_epochs = np.split(np.asarray(result.best_epoch), len(spec.values))
    row = {
        "model": spec.name,
        **spec.variant,
        "parameters": parameters,
        "seeds": spec.seeds,
        "metrics": evaluated.by_value[evaluated.selected],
        "epochs": result.epochs,
        "epochs_asked": settings.epochs,
        "best_epoch": best_epochs[evaluated.selected],
        "wall_seconds": round(result.seconds + time.monotonic() - trained_at, 1),
        "backend": jax.default_backend(),
        "devices": [device.device_kind for device in parallel.devices],
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in _PACKAGES},
    }
    if len(spec.values) > 1:
        rows = [
            {"value": value, "metrics": of, "best_epoch": epochs}
            for value, of, epochs in zip(spec.values, evaluated.by_value, best_epochs, strict=True)
        ]
        row |= {"selected": spec.values[evaluated.selected], "sweep": rows}
    row["checkpoint"] = Checkpoints(run_dir.checkpoints).fingerprint()
    if (run_dir.path / VOCABULARY).exists():
        row["vocabulary_sha256"] = sha256_of(run_dir.path / VOCABULARY)
    run_dir.write_result(_result(experiment, data, [row]))
    return rows_of(run_dir.result())[0]


@contextlib.contextmanager
def _event_files(experiment: Experiment, run_dir: RunDir, count: int) -> Iterator[None]:
    """Also write the metrics that the run logs as event files, if the settings request it."""
    if not experiment.settings.run.tensorboard:
        yield
        return
    files = EventFiles(lambda member: run_dir.path / "tensorboard" / member_name(run_dir, member))
    run_dir.on_rewind, run_dir.on_log = partial(files.begin, count=count), files.add
    try:
        yield
    finally:
        files.close()


def _result(experiment: Experiment, data: Data, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of `result.json`, for one model or for several."""
    return {"experiment": experiment.name, "dataset": describe_dataset(experiment, data), "rows": rows}


def vocabulary_file(vocabulary: StoredVocabulary) -> str:
    """Return the content of a run folder's vocabulary file."""
    return json.dumps(vocabulary.to_json(), ensure_ascii=False) + "\n"
