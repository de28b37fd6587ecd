"""One experiment: train each model in its run folder, evaluate, draw, write results, print the table."""

import contextlib
import datetime
import importlib.metadata
import json
import logging
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from dynskip_jax.analysis import plots
from dynskip_jax.devices.parallel import OneDevice, Parallel
from dynskip_jax.errors import Stopped, UserError
from dynskip_jax.experiments.build import make_fit_settings, make_learner, run_config
from dynskip_jax.experiments.experiment import Data, Experiment, StoredVocabulary
from dynskip_jax.experiments.model_spec import ModelSpec, check_specs
from dynskip_jax.experiments.settings import absent_values, fill, path_fields
from dynskip_jax.experiments.stored_settings import upgraded_config
from dynskip_jax.experiments.table import (
    best_value,
    by_epoch,
    curves_of,
    draw_sweep,
    edges_of_sweep,
    print_table,
    summary,
)
from dynskip_jax.runs.checkpoint import SavedCheckpoints
from dynskip_jax.runs.event_files import EventFiles, check_tensorboard, member_name
from dynskip_jax.runs.files import sha256_of
from dynskip_jax.runs.progress import Progress
from dynskip_jax.runs.results import finished_row, rows_of
from dynskip_jax.runs.run_dir import RunDir, file_name, new_folder
from dynskip_jax.tasks import Learner
from dynskip_jax.training.loop import FitResult, FitSettings, fit
from dynskip_jax.training.step import evaluation_keys

logger = logging.getLogger(__name__)

VOCABULARY = "vocabulary.json"
_PACKAGES = ("dynskip_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
_MAY_GROW = ("settings.training.epochs", "models")  # in a run folder that is there
_OVER_ALL_EPOCHS = (
    "--entropy-coef-final is reached in the last epoch, so more epochs would change those that were trained"
)


def run(
    experiment: Experiment,
    specs: Sequence[ModelSpec],
    data: Data,
    run_dir: str | Path | None,
    *,
    parallel: Parallel | None = None,
) -> list[dict[str, Any]]:
    """Run or resume an experiment; what is finished already is not trained again.

    With several models each has a run folder of its own inside the experiment's. Of several processes the
    first one does what is not training; the others train as it says.

    Args:
        experiment: what to run.
        specs: the models.
        data: to train on.
        run_dir: the run folder; by default a new one below `runs/<name>/`.
        parallel: on which devices to train, and how; by default one. Results are the same up to rounding, so
            a run may be resumed on other devices.

    Returns:
        The row of each model in `result.json`; in other processes than the first nothing.

    Raises:
        Stopped: training was interrupted; the message says how to go on.
        UserError: the run folder cannot be used.
    """
    parallel = parallel or OneDevice()
    check_specs(specs, experiment.settings)
    if experiment.settings.run.tensorboard:
        check_tensorboard()
    vocabulary = experiment.vocabulary(data)
    trainings = []
    for spec in specs:
        learner = make_learner(experiment, spec, data, vocabulary)
        trainings.append(_Training(spec, learner, make_fit_settings(experiment, spec, learner)))
    # Errors come before folders.
    if not parallel.processes.first:
        _follow(trainings, parallel)
        return []
    several = len(specs) > 1
    if run_dir is None:
        label = "compare" if several else specs[0].name
        run_dir = new_folder(experiment.name, label, datetime.datetime.now())
    run_dir = Path(run_dir)
    how = _how_to_open(experiment, data)
    top = None
    if several:
        names = [spec.name for spec in specs]
        top = RunDir.open(run_dir, run_config(experiment, names, data), **how)
        _warn_of_changes(top, how["about"])
    logger.info("run folder: %s", run_dir)
    for training in trainings:
        for line in experiment.warnings(training.spec, training.learner):
            logger.warning("%s: %s", training.spec.name, line)
    results, curves = [], {}
    for training in trainings:
        spec = training.spec
        folder = run_dir / file_name(spec.name) if several else run_dir
        here = RunDir.open(folder, run_config(experiment, spec.name, data), **how, within=top)
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
            plots.learning_curves(curves, "epoch", [metric, _of_train(metric)], path, title)
        top.go_on()  # a model that was finished already may be new to it
        top.write_result(_result(experiment, data, results))
    parallel.processes.agree(None)  # that was all
    print_table(experiment, specs, data, results)
    return results


class _Training(NamedTuple):
    """One model, what trains it, and how."""

    spec: ModelSpec
    learner: Learner
    settings: FitSettings


def _follow(trainings: Sequence[_Training], parallel: Parallel) -> None:
    """Train in a process that is not the first: the models that the first one names, in its order."""
    by_name = {training.spec.name: training for training in trainings}
    while (name := parallel.processes.agree(None)) is not None:
        fit(by_name[name].learner, by_name[name].settings, None, parallel=parallel)
        number = parallel.processes.index
        print(f"process {number} waits for process 0, which evaluates {name} and draws", file=sys.stderr)


def _how_to_open(experiment: Experiment, data: Data) -> dict[str, Any]:
    """Return how a run folder is begun, resumed and compared with its configuration."""
    kind = type(experiment.settings)
    has_schedule = experiment.settings.agent.entropy_coef_final is not None
    return dict(
        about=_about(experiment, data),
        defaults={"settings": fill(kind, absent_values(kind)).to_config()},
        upgrade=partial(upgraded_config, kind),
        may_grow=_MAY_GROW,
        fixed={"settings.training.epochs": _OVER_ALL_EPOCHS} if has_schedule else {},
        named_by={"dataset.name": "dataset.fingerprint"},  # a folder of data may be renamed
        ignored=["code", *(f"settings.{group}.{name}" for group, name in path_fields(kind))],
    )


def _finished_row(run_dir: RunDir, training: _Training) -> dict[str, Any] | None:
    """Return the row of a model that has been trained for as many epochs; None where it is to be trained."""
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
    """Return whether a finished model's vocabulary is there, in whichever form its version wrote it."""
    path = run_dir.path / VOCABULARY
    return row is not None and path.exists() and row.get("vocabulary_sha256") == sha256_of(path)


def _warn_of_changes(run_dir: RunDir, about: Mapping[str, Any]) -> None:
    """Warn where a run is started with another commit or JAX than before: results may differ by rounding."""
    entries = run_dir.config().get("about", [])
    if not run_dir.resumed or not entries:
        return
    before = entries[-1]
    for name in ("commit", "jax"):
        if before.get(name) not in (None, about[name]):
            logger.warning(
                "this run was last trained with %s %s, now it is %s: results may not be the same bit for bit",
                *(name, before[name], about[name]),
            )


def _run_model(
    experiment: Experiment,
    data: Data,
    training: _Training,
    run_dir: RunDir,
    parallel: Parallel,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Train, evaluate and draw a model, and write its result; `about` says how the run is started."""
    run_dir.check_writable()
    spec, learner, settings = training
    parameters = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(learner.abstract_params()))
    swept = f", {len(spec.values)} values of the sweep" if len(spec.values) > 1 else ""
    logger.info(
        "%s: %s parameters, seeds %s%s", spec.name, f"{parameters:,}", ", ".join(map(str, spec.seeds)), swept
    )
    _warn_of_changes(run_dir, about)
    parallel.processes.agree(spec.name)
    with _event_files(experiment, run_dir, len(spec.all_seeds)):
        result = fit(learner, settings, run_dir, parallel=parallel)
    trained_at = time.monotonic()
    evaluated = _evaluate(experiment, data, training, result, run_dir, parallel)
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
    row["checkpoint"] = SavedCheckpoints(run_dir.checkpoints).fingerprint()
    if (run_dir.path / VOCABULARY).exists():
        row["vocabulary_sha256"] = sha256_of(run_dir.path / VOCABULARY)
    run_dir.write_result(_result(experiment, data, [row]))
    return rows_of(run_dir.result())[0]


@contextlib.contextmanager
def _event_files(experiment: Experiment, run_dir: RunDir, count: int) -> Iterator[None]:
    """Write what the run logs as event files, too, if that is asked for."""
    if not experiment.settings.run.tensorboard:
        yield
        return
    files = EventFiles(lambda member: run_dir.path / "tensorboard" / member_name(run_dir, member))
    run_dir.on_rewind, run_dir.on_log = partial(files.begin, count=count), files.add
    try:
        yield
    finally:
        files.close()


class _Evaluated(NamedTuple):
    """The metrics of each value of a sweep, and the number of the best value on dev."""

    by_value: list[dict[str, Any]]
    selected: int


def _evaluate(
    experiment: Experiment,
    data: Data,
    training: _Training,
    result: FitResult,
    run_dir: RunDir,
    parallel: Parallel,
) -> _Evaluated:
    """Evaluate the selected parameters in every mode, and draw."""
    spec, learner, settings = training
    params, keys = parallel.spread(result.params), evaluation_keys(settings.seeds)
    modes = evaluations(spec.evaluation_mode, is_stochastic=spec.choices_matter(), samples=experiment.samples)
    # Each evaluation is a step of the bar, and so are the extra metrics and the pictures.
    with Progress(len(set(modes.values())) + 2, f"{spec.name}: evaluating and drawing") as progress:
        how = dict(batch_size=experiment.final_rows, advance=progress.advance)
        metrics = metrics_in_every_mode(
            lambda split, **mode: learner.evaluate(params, split, keys, **mode, **how), modes
        )
        metrics |= experiment.extra_metrics(spec, learner, params, keys)
        progress.advance()
        metrics = _of_trained(metrics, learner, result, settings.seeds)
        count = len(spec.values)
        selected = best_value(metrics[learner.monitor], count, higher_is_better=learner.higher_is_better)
        parts = {name: np.split(np.asarray(array), count) for name, array in metrics.items()}
        by_value = [{name: summary(part[i]) for name, part in parts.items()} for i in range(count)]
        _draw_training(experiment, data, spec, run_dir, selected)
        if count > 1:
            draw_sweep(experiment, data, spec, by_value, run_dir.plots)
        experiment.draw(spec, learner, params, keys, run_dir.plots, selected * len(spec.seeds))
        progress.advance()
    return _Evaluated(by_value, selected)


def evaluations(mode: str, *, is_stochastic: bool, samples: int) -> dict[tuple[str, str], tuple]:
    """Return what is evaluated: from a split and a suffix of metrics to split, mode and samples.

    Args:
        mode: of the metrics without a suffix.
        is_stochastic: whether there are agents that sample, and metrics `_greedy`, `_sampled`, `_averaged`.
        samples: how many predictions are averaged.
    """
    modes = {"": (mode, 1)}
    if is_stochastic:
        modes |= {"_greedy": ("greedy", 1), "_sampled": ("sample", 1), "_averaged": ("sample", samples)}
    return {(split, suffix): (split, *how) for suffix, how in modes.items() for split in ("dev", "test")}


def metrics_in_every_mode(
    evaluate: Callable[..., dict[str, np.ndarray]], modes: Mapping[tuple[str, str], tuple]
) -> dict[str, np.ndarray]:
    """Return the metrics of all `evaluations`.

    Args:
        evaluate: from a split, `mode` and `samples` to metrics; each combination is asked for once.
        modes: what `evaluations` returns.
    """
    done = {at: evaluate(at[0], mode=at[1], samples=at[2]) for at in dict.fromkeys(modes.values())}
    return {f"{name}{suffix}": value for (_, suffix), at in modes.items() for name, value in done[at].items()}


def _draw_training(
    experiment: Experiment, data: Data, spec: ModelSpec, run_dir: RunDir, selected: int
) -> None:
    """Draws what was logged: metrics of train beside dev, and the agents' policies."""
    records = by_epoch(run_dir.records())
    curves = curves_of(spec.name, records, spec.values)
    plots.learning_curves(
        curves,
        "epoch",
        [name for metric in experiment.curves for name in (metric, _of_train(metric))],
        run_dir.plots / "learning_curve.png",
        f"{experiment.name} on {data.name}: {spec.name}",
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
            note=f"dev, {spec.evaluation_mode}, mean over seeds",
        )


def _of_train(metric: str) -> str:
    """What is drawn beside a metric of dev."""
    return metric.replace("dev_", "train_", 1)


def _result(experiment: Experiment, data: Data, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `result.json` holds, of one model or of several."""
    return {"experiment": experiment.name, "dataset": _dataset(experiment, data), "rows": rows}


def vocabulary_file(vocabulary: StoredVocabulary) -> str:
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


def _dataset(experiment: Experiment, data: Data) -> dict[str, Any]:
    return {
        "name": data.name,
        "sizes": dict(data.sizes),
        "fingerprint": experiment.fingerprint(data),
        "source": data.source,
    }


def _about(experiment: Experiment, data: Data) -> dict[str, Any]:
    """Return how a run was begun or resumed: for people, and compared with nothing."""
    settings = experiment.settings
    paths = {
        name: str(Path(path).expanduser().absolute())
        for group, name in path_fields(type(settings))
        if group != "run" and isinstance(path := getattr(getattr(settings, group), name), str)
    }
    return {
        "command": shlex.join([Path(sys.executable).name, *getattr(sys, "orig_argv", sys.argv)[1:]]),
        "commit": _commit(),
        "jax": importlib.metadata.version("jax"),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "source": data.source,
        "data": paths.pop("data", None),
        "paths": paths,
    }


def _commit() -> str | None:
    """Return the commit of this package's checkout, `-dirty` with changed or new source files; else None."""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    others = ["git", "ls-files", "--others", "--exclude-standard", "--", "*.py"]
    how = dict(cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    try:
        commit = subprocess.run(describe, **how).stdout.strip()
        untracked = subprocess.run(others, **how).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or no checkout
        return None
    return f"{commit}-dirty" if untracked and not commit.endswith("-dirty") else commit
