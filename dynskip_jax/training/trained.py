"""Read finished runs: the run folder of each model, and the selected parameters."""

from pathlib import Path
from typing import Any

import jax

from dynskip_jax.errors import UserError
from dynskip_jax.training.checkpoint import Checkpoints
from dynskip_jax.training.folder import RunDir
from dynskip_jax.training.results import rows_of, runs_of_models

PyTree = Any


def finished_runs(run_dir: str | Path, experiment: str | None = None) -> dict[str, RunDir]:
    """Return the finished runs of a folder of one or several models, by name; there has to be one.

    Runs of another experiment than `experiment` are refused, unless it is None.
    """
    finished = {model: run for model, run in runs_of_models(run_dir).items() if run.result() is not None}
    if not finished:
        raise UserError(
            f"the run in {run_dir} has not finished: run its command again, with --run-dir {run_dir}"
        )
    for run in finished.values():
        found = run.config().get("experiment", experiment)
        if experiment not in (None, found):
            raise UserError(
                f"{run.path} holds a run of {found}, not of {experiment}: python -m experiments.{found}"
            )
    return finished


def selected_params(run: RunDir, like: PyTree, num_models: int) -> PyTree:
    """Return the parameters of the best epoch, for all models that were trained together.

    Checkpoints that are not those of `result.json`, or of which the newest is damaged, are refused: an older
    one may contain other parameters than those that were evaluated.

    Args:
        run: Run of one model; see `finished_runs`.
        like: Parameters of one model, as arrays or `jax.ShapeDtypeStruct`s.
        num_models: Number of models (seeds and values of a sweep) that were trained together.

    Returns:
        The parameters, each leaf (num_models, ...).
    """
    stacked = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num_models, *leaf.shape), leaf.dtype), like)
    restored = Checkpoints(run.checkpoints).restore_latest({"best": stacked}, partial=True)
    if restored is None:
        raise UserError(f"{run.path} has no checkpoints to read parameters from: name another run folder")
    if restored.skipped:
        raise UserError(
            f"{restored.skipped[0]}, and an older one may hold other parameters than "
            "those of result.json: restore it, or delete it to go on with the older one"
        )
    result = run.result()
    expected = None if result is None else rows_of(result)[0].get("checkpoint")
    if expected is not None and expected != restored.fingerprint:
        raise UserError(
            f"{run.checkpoints} lacks the checkpoint of step {expected['step']}, of which result.json tells "
            f"(its newest is of step {restored.step}): restore it, or copy the whole folder again"
        )
    return restored.state["best"]
