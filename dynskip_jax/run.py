"""Run an experiment: choose devices, load the data, train and evaluate each model, print
results.
"""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import logging
import math
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dynskip_jax.analysis import plots
from dynskip_jax.data.word_vectors import vector_width
from dynskip_jax.devices.compilation_cache import keep_compiled_programs
from dynskip_jax.devices.host_memory import keep_freed_memory
from dynskip_jax.devices.parallel import Parallel, make_parallel
from dynskip_jax.devices.processes import Processes, connect
from dynskip_jax.errors import Stopped, UserError
from dynskip_jax.experiment import Dataset, Experiment
from dynskip_jax.learners import VOCABULARY, ModelToFit, make_fit_settings, make_learner
from dynskip_jax.results import curves_of, print_results, summary
from dynskip_jax.settings import Devices, Resolved, Settings, replace
from dynskip_jax.small_data import fit_to_size
from dynskip_jax.spec import ModelSpec, check_sweep, make_spec, variant_of
from dynskip_jax.stored import to_config
from dynskip_jax.tasks import Learner
from dynskip_jax.trained import Trained
from dynskip_jax.training.checkpoint import Checkpoints
from dynskip_jax.training.files import without_dots
from dynskip_jax.training.folder import RunDir, file_name, new_folder
from dynskip_jax.training.loop import FitResult, fit
from dynskip_jax.training.progress import Progress
from dynskip_jax.training.results import check_checkpoint, finished_runs, row_of

logger = logging.getLogger(__name__)

_PACKAGES = ("dynskip_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
_TURNS = 4  # approximate number of virtual devices that take turns on a core of a CPU


def train(experiment: Experiment, resolved: Resolved) -> None:
    """Train the models that settings name, in their run folders."""
    settings = resolved.settings
    vectors = getattr(settings.data, "embeddings", None)
    if vectors is not None and resolved.sources["embedding_features"] != "flag":
        settings = replace(settings, embedding_features=vector_width(vectors))
    if isinstance(settings.agent.control_of, Path):
        settings = replace(
            settings, control_of=learnt_rates(settings.agent.control_of, experiment.name)
        )
    # Unknown names raise an error before anything starts.
    names = settings.run.models(experiment.model)
    specs = [make_spec(name, settings, may_import=True) for name in names]
    check_sweep(specs, settings)
    with join(settings.devices, max(len(spec.all_seeds) for spec in specs)) as processes:
        if not processes.first:
            logging.getLogger("dynskip_jax").setLevel(logging.ERROR)
        data = experiment.task_class.load(settings)
        settings, lines = fit_to_size(resolved, settings, data.sizes.get("train", 0))
        for line in lines:
            logger.warning("%s", line)
        specs = [
            make_spec(name, settings, may_import=True) for name in names
        ]  # with the stretched epochs
        parallel = choose_devices(settings, specs, processes)
        sizes = ", ".join(f"{name} {size:,}" for name, size in data.sizes.items())
        logger.info("data: %s, %s (%s)", data.name, data.source, sizes)
        for line in data.lines:
            logger.info("%s", line)
        used = f"{len(parallel.devices)} of {jax.device_count()} {parallel.devices[0].platform} device(s)"
        preset = settings.run.preset, resolved.sources["preset"]
        logger.info("preset: %s (%s); %s, %d process(es)", *preset, used, processes.count)
        run(experiment, settings, specs, data, parallel)


def learnt_rates(run_dir: Path, experiment: str) -> tuple[float, ...]:
    """Return how often a finished run's agents chose each k on dev: a mean over seeds and layers,
    (K,).
    """
    found = {}
    for model, run_of_model in finished_runs(run_dir, experiment).items():
        metrics = row_of(run_of_model)["metrics"]
        shares = [
            of["mean"] for name, of in metrics.items() if re.fullmatch(r"dev_agent_share_\d+", name)
        ]
        if shares:
            found[model] = np.mean(shares, axis=0)
    if len(found) != 1:
        having = f"agents in {', '.join(found)}" if found else "no agent"
        raise UserError(
            f"--control-of takes a run of one model with an agent; {run_dir} has {having}"
        )
    return tuple(round(float(rate), 6) for rate in next(iter(found.values())))


def run(
    experiment: Experiment,
    settings: Settings,
    specs: Sequence[ModelSpec],
    data: Dataset,
    parallel: Parallel,
) -> None:
    """Run or resume an experiment; models that are finished already are not trained again.

    Several models have a run folder each, inside the experiment's. With several processes, all of
    them train the models that the first one selects. Only the first one runs the final evaluation,
    draws and prints.
    """
    several, vocabulary, run_dir = len(specs) > 1, data.vocabulary, settings.run.run_dir
    models = []
    for spec in specs:
        learner = make_learner(experiment, settings, spec, data, vocabulary)
        models.append(ModelToFit(spec, learner, make_fit_settings(settings, spec, learner)))
    # Settings and models are checked before any folder is created.
    if not parallel.processes.first:
        _follow(models, parallel)
        return
    if run_dir is None:
        label = "compare" if several else specs[0].name
        run_dir = new_folder(experiment.name, label, datetime.datetime.now())
    about, may_grow = _about(settings, data), ["models"]
    # With --entropy-coef-final, which the last epoch reaches, more epochs would change those
    # already trained.
    if settings.agent.entropy_coef_final is None:
        may_grow += ["settings.training.epochs", "settings.training.patience"]
    dataset = {"name": data.name, "fingerprint": data.fingerprint}
    config = {"experiment": experiment.name, "dataset": dataset, "settings": to_config(settings)}
    open_run, top = partial(RunDir.open, about=about, may_grow=may_grow), None
    if several:
        top = open_run(run_dir, config | {"models": [spec.name for spec in specs]})
    logger.info("run folder: %s", run_dir)
    for spec, learner, _ in models:
        for line in learner.task.warnings(spec, settings.training.epochs):
            logger.warning("%s: %s", spec.name, line)
    results, curves = [], {}
    for model in models:
        name = model.spec.name
        folder = run_dir / file_name(name) if several else run_dir
        here = open_run(folder, config | {"model": name}, within=top)
        row = _finished_row(here, model, settings.run.test)
        if row is None:
            _warn_of_changes(here, about)
        try:
            with here.watched():
                if vocabulary is not None:
                    here.keep(
                        VOCABULARY, json.dumps(vocabulary.to_json(), ensure_ascii=False) + "\n"
                    )
                row = row or _run_model(experiment, settings, data, model, here, parallel)
            results.append(row)
        except (Stopped, KeyboardInterrupt) as stopped:
            what = str(stopped) or "interrupted"
            raise type(stopped)(
                f"{what}; the same command with --run-dir {run_dir} goes on"
            ) from None
        curves |= curves_of(name, here.records(), model.spec.values)
    if top is not None:
        metric = models[0].learner.monitor
        path, title = top.plots / f"{metric}.png", f"{data.name}: {metric.replace('_', ' ')}"
        plots.learning_curves(
            curves, "epoch", [metric, metric.replace("dev_", "train_", 1)], path, title
        )
        top.go_on()  # a finished model may be new to this comparison
        top.write_result(_result(experiment, data, results))
    parallel.processes.agree(None)  # there are no more models
    print_results(experiment, settings, data, results)


def _follow(models: Sequence[ModelToFit], parallel: Parallel) -> None:
    """Train, in a process other than the first, the models that the first process selects."""
    by_name = {model.spec.name: model for model in models}
    while (name := parallel.processes.agree(None)) is not None:
        fit(by_name[name].learner, by_name[name].fit, None, parallel=parallel)
        number = parallel.processes.index
        print(
            f"process {number} waits for process 0, which evaluates {name} and draws",
            file=sys.stderr,
        )


def _finished_row(run_dir: RunDir, model: ModelToFit, test: str) -> dict[str, Any] | None:
    """Return the row of a model that was trained for enough epochs; None if something is still to
    be done.
    """
    row = row_of(run_dir)
    if row is None or row.get("epochs_asked", 0) < model.fit.epochs:
        return None
    if (
        row["epochs"] < model.fit.epochs and row["patience"] != model.fit.patience
    ):  # stopped early, with less
        return None
    tested = [
        any(name.startswith("test_") for name in of["metrics"]) for of in row.get("sweep", ())
    ]
    if test == "all" and not all(tested):
        return None
    check_checkpoint(run_dir, Checkpoints(run_dir.checkpoints).fingerprint())
    logger.info("%s: finished already, in %s", model.spec.name, run_dir.path)
    return row


def _run_model(
    experiment: Experiment,
    settings: Settings,
    data: Dataset,
    model: ModelToFit,
    run_dir: RunDir,
    parallel: Parallel,
) -> dict[str, Any]:
    """Train, evaluate and draw a model, write its result, and return its row."""
    spec, learner, how = model
    count = len(spec.values)
    parameters = sum(
        int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(learner.abstract_params())
    )
    seeds, swept = (
        ", ".join(map(str, spec.seeds)),
        f", {count} values of the sweep" if count > 1 else "",
    )
    updates = f"{how.epochs * learner.num_batches:,} updates in all"
    logger.info(
        "%s: %s parameters, seeds %s%s, %s", spec.name, f"{parameters:,}", seeds, swept, updates
    )
    parallel.processes.agree(spec.name)
    fitted = fit(learner, how, run_dir, parallel=parallel)
    trained_at, params = time.monotonic(), parallel.spread(fitted.params)
    trained = Trained(run_dir, experiment, settings, data.vocabulary, spec, learner, params)
    metrics, selected = _evaluate(trained, data, fitted, settings.run.test)
    _warn_of_constant(learner, spec.name, metrics[selected])
    best_epochs = np.split(np.asarray(fitted.best_epoch), count)
    row = {
        "model": spec.name,
        **variant_of(spec, settings),
        "parameters": parameters,
        "seeds": spec.seeds,
        "metrics": metrics[selected],
        "epochs": fitted.epochs,
        "epochs_asked": how.epochs,
        "patience": how.patience,
        "best_epoch": best_epochs[selected],
        "wall_seconds": round(fitted.seconds + time.monotonic() - trained_at, 1),
        "backend": jax.default_backend(),
        "devices": [device.device_kind for device in parallel.devices],
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in _PACKAGES},
        "checkpoint": run_dir.checkpoint,
    }
    if count > 1:
        each = zip(spec.values, metrics, best_epochs, strict=True)
        rows = [{"value": value, "metrics": of, "best_epoch": epochs} for value, of, epochs in each]
        row |= {"selected": spec.values[selected], "sweep": rows}
    if VOCABULARY in run_dir.kept:
        row["vocabulary_sha256"] = run_dir.kept[VOCABULARY]
    run_dir.write_result(_result(experiment, data, [row]))
    return row_of(run_dir)


def _warn_of_constant(learner: Learner, name: str, metrics: Mapping[str, Any]) -> None:
    """Warn if a model is no better than one that always gives the same answer."""
    constant, score = (
        learner.task.constant_score("test"),
        metrics[f"test_{learner.task.score}"]["mean"],
    )
    if constant is not None and score <= constant:
        logger.warning(
            "%s: test %s %.2f %% is not above the %.2f %% of always the same answer: nothing was learned",
            *(name, learner.task.score, 100 * score, 100 * constant),
        )


def _result(
    experiment: Experiment, data: Dataset, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    dataset = {name: getattr(data, name) for name in ("name", "fingerprint", "source")}
    return {
        "experiment": experiment.name,
        "dataset": {**dataset, "sizes": dict(data.sizes)},
        "rows": rows,
    }


# --- Evaluation ---


def _evaluate(
    trained: Trained, data: Dataset, result: FitResult, test: str
) -> tuple[list[dict[str, Any]], int]:
    """Evaluate the parameters of the best epoch on dev and test, and draw plots into the run
    folder.

    Return the metrics of each value of a sweep, and the index of the best one on dev. Test is read
    for that value only, or for all with `test`. Models whose choices matter, controls too, have
    further metrics, with the suffixes `_greedy`, `_sampled` and `_averaged`.
    """
    spec, experiment, count = trained.spec, trained.experiment, len(trained.spec.values)
    modes = {"": (spec.evaluation_mode, 1)}
    if spec.choices_matter():
        averaged = ("sample", experiment.samples)
        modes |= {"_greedy": ("greedy", 1), "_sampled": ("sample", 1), "_averaged": averaged}
    different = dict.fromkeys(modes.values())

    # Each evaluation is a step of the progress bar. The extra metrics and the plots are one step
    # each.
    with Progress(2 * len(different) + 2, f"{spec.name}: evaluating and drawing") as progress:

        def scores_of(models: Trained, split: str) -> dict[str, np.ndarray]:
            scores = {}
            for mode, samples in different:
                how = dict(batch_size=experiment.final_rows, advance=progress.advance)
                how |= dict(mode=mode, samples=samples)
                found = models.learner.evaluate(models.all_params, split, models.keys, **how)
                for suffix in (
                    suffix for suffix, other in modes.items() if other == (mode, samples)
                ):
                    scores |= {f"{name}{suffix}": value for name, value in found.items()}
            return scores

        dev = scores_of(trained, "dev")
        failed = _failed(dev, trained, result)
        by_value = _by_value(dev, failed, count)
        # A value with a NaN, from a model that has failed, is not selected unless all values have
        # one.
        means, selected = np.array([of[trained.learner.monitor]["mean"] for of in by_value]), 0
        if not np.isnan(means).all():
            best = np.nanargmax if trained.learner.higher_is_better else np.nanargmin
            selected = int(best(means))

        tested, rows = trained, by_value
        if test == "selected" and count > 1:
            tested, rows = _of_value(trained, data, selected), [by_value[selected]]
            failed = np.split(failed, count)[selected]
        found = scores_of(tested, "test") | tested.learner.task.final_metrics(tested)
        progress.advance()
        for row, more in zip(rows, _by_value(found, failed, len(rows)), strict=True):
            row |= more
        _draw_training(trained, data.name, selected)
        trained.learner.task.draw(dataclasses.replace(trained, member=selected * len(spec.seeds)))
        progress.advance()
    return by_value, selected


def _of_value(trained: Trained, data: Dataset, number: int) -> Trained:
    """Return the models of one value of a sweep, as if they had been trained without the others."""
    count = len(trained.spec.seeds)
    spec = trained.spec.of_value(number)
    learner = make_learner(trained.experiment, trained.settings, spec, data, trained.vocabulary)
    own = slice(number * count, (number + 1) * count)
    params = jax.tree.map(lambda leaf: leaf[own], trained.all_params)
    return dataclasses.replace(trained, spec=spec, learner=learner, all_params=params)


def _by_value(
    metrics: Mapping[str, np.ndarray], failed: np.ndarray, count: int
) -> list[dict[str, dict[str, Any]]]:
    """Return the summaries of all metrics for each value of a sweep, with NaN for models that have
    failed.
    """
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, values in metrics.items():
        values = np.array(values, float)
        values[failed] = np.nan
        for row, part in zip(rows, np.split(values, count), strict=True):
            row[name] = summary(part)
    return rows


def _draw_training(trained: Trained, data_name: str, selected: int) -> None:
    """Draw the logged metrics of dev and train, and the agents' policies of the selected sweep
    value.
    """
    spec, folder = trained.spec, trained.run.plots
    curves = curves_of(spec.name, trained.run.records(), spec.values)
    title = f"{trained.experiment.name} on {data_name}: {{}}".format
    metric = trained.learner.monitor
    metrics = [metric, metric.replace("dev_", "train_", 1)]
    plots.learning_curves(curves, "epoch", metrics, folder / "learning_curve.png", title(spec.name))
    label, own = list(curves.items())[selected]
    for name in sorted({name for r in own for name in r if name.startswith("dev_agent_share_")}):
        layer = name.removeprefix("dev_agent_share_")
        path, heading = (
            folder / f"policy_{layer}.png",
            title(f"{label}, the policy of layer {layer}"),
        )
        note = f"dev, {spec.evaluation_mode}, mean over seeds"
        plots.policy_over_training([r for r in own if name in r], name, path, heading, note)


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
            f"({int(np.sum(result.skipped)):,} training steps were skipped because loss or gradient were not "
            "finite), so there is no result: lower --learning-rate or set --clip"
        )
    return failed


# --- Run folders ---


def _about(settings: Settings, data: Dataset) -> dict[str, Any]:
    """Return the command, the versions, the date and the paths of a run's start, which are never
    compared.
    """
    paths = {name: path for name, path in vars(settings.data).items() if isinstance(path, Path)}
    return {
        "command": shlex.join(
            [Path(sys.executable).name, *getattr(sys, "orig_argv", sys.argv)[1:]]
        ),
        "commit": _commit(),
        "jax": importlib.metadata.version("jax"),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "source": data.source,
        "paths": {name: str(without_dots(path.absolute())) for name, path in paths.items()},
    }


def _warn_of_changes(run_dir: RunDir, about: Mapping[str, Any]) -> None:
    """Log a warning if a run is resumed with another commit or JAX version, which may change
    rounding.
    """
    last = (run_dir.config()["about"] or [{}])[-1]
    for name in ("commit", "jax"):
        if last.get(name) not in (None, about[name]):
            logger.warning(
                "this run was last trained with %s %s, now it is %s: results may not be the same bit for bit",
                *(name, last[name], about[name]),
            )


def _commit() -> str | None:
    """Return the commit of this checkout, with `-dirty` for changed or new Python files; None
    without git.
    """
    how = dict(cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    try:
        commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], **how).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain", "--", "*.py"], **how).stdout
    except (OSError, subprocess.CalledProcessError):  # no git, or no checkout
        return None
    return f"{commit}-dirty" if changed else commit


# --- Devices ---


def join(flags: Devices, num_models: int = 1) -> Processes:
    """Connect the processes that the flags name; call this before JAX initializes its devices.

    A single process also caches its compiled programs on disk. Several processes do not: the first
    one could find a program in its cache that the others compile, and on GPUs they compile
    together.
    """
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", flags.process or "")
    if flags.process is not None and found is None:
        raise UserError(
            "--process takes two numbers, such as 0/4: of this process, and of all of them"
        )
    number, count = map(int, found.groups()) if found else (None, None)
    given = (flags.coordinator, number, count)
    if given != (None, None, None) and flags.parallel == "pmap":
        raise UserError("--parallel pmap drives one process: leave it out, or --coordinator")
    keep_freed_memory()
    processes = connect(*given, heartbeat_seconds=flags.heartbeat_seconds)
    if processes.count == 1:
        keep_compiled_programs()
        _make_cpu_devices(max(_num_cores(), num_models))
    return processes


def choose_devices(
    settings: Settings, specs: Sequence[ModelSpec], processes: Processes
) -> Parallel:
    """Return the devices to train on; on a CPU, by default, the cores share the seeds."""
    # All models use the devices alike, even if a sweep trains more of one model than of another.
    num_models = math.gcd(*(len(spec.all_seeds) for spec in specs))
    devices = settings.devices.devices
    if devices is None and processes.count == 1 and jax.default_backend() == "cpu":
        # Each device gets few seeds, because products of several seeds at once are slow on a CPU.
        # If there are more devices than cores, they take turns. A few turns also even out different
        # durations.
        fitting = [n for n in range(1, jax.device_count() + 1) if num_models % n == 0]
        devices = min(fitting, key=lambda n: abs(n - _TURNS * _num_cores()))
    how = dict(num_seeds=num_models, batch_size=settings.training.batch_size, processes=processes)
    return make_parallel(devices, settings.devices.parallel, **how)


def _num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _make_cpu_devices(count: int) -> None:
    """Make JAX split the CPU into virtual devices, so that each can train some of the seeds.

    The cores are used badly if they share one small matrix product. A number of devices that the
    user sets (`XLA_FLAGS`, `JAX_NUM_CPU_DEVICES`) stays unchanged.
    """
    is_set = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not is_set and jax.config.jax_num_cpu_devices == -1:
        with contextlib.suppress(RuntimeError):  # JAX is in use already, in a notebook
            jax.config.update("jax_num_cpu_devices", count)
