"""Reads back what a finished run leaves: its settings, and the parameters it selected."""

import json
from pathlib import Path
from typing import Any

import jax

from dynskip_jax.errors import UserError
from dynskip_jax.training.checkpoint import Checkpoints

PyTree = Any


def run_folders(run_dir: str | Path) -> dict[str, Path]:
    """Returns the folder of each model in a run folder, which may hold one model or compare several.

    Raises:
        UserError: there is no finished run.
    """
    run_dir = Path(run_dir)
    config = read_config(run_dir)
    models = config.get("models", [config.get("model")])
    several = "models" in config
    folders = {model: run_dir / model.replace(":", "-") if several else run_dir for model in models}
    finished = {model: folder for model, folder in folders.items() if (folder / "result.json").exists()}
    if not finished:
        raise UserError(
            f"the run in {run_dir} has not finished: run its command again, with --run-dir {run_dir}"
        )
    return finished


def read_config(run_dir: str | Path) -> dict[str, Any]:
    """Returns the settings of a run, as `config.json` has them.

    Raises:
        UserError: the folder holds no run.
    """
    path = Path(run_dir) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UserError(
            f"{run_dir} is not a run folder (it has no config.json): name one with --run-dir"
        ) from None
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: restore it, or name another run folder") from error
    return config


def selected_params(run_dir: str | Path, like: PyTree, num_models: int) -> PyTree:
    """Returns the parameters of the best epoch of each model that was trained together.

    Args:
        run_dir: folder of one model (see `run_folders`).
        like: arrays or shapes of one model's parameters.
        num_models: how many models were trained together.

    Returns:
        (num_models, ...).

    Raises:
        UserError: nothing was saved there, or parameters of another structure.
    """
    folder = Path(run_dir) / "checkpoints"
    if not folder.is_dir():
        raise UserError(f"{run_dir} has no checkpoints to read parameters from: name another run folder")
    stacked = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num_models, *leaf.shape), leaf.dtype), like)
    with Checkpoints(folder) as checkpoints:
        restored = checkpoints.restore_latest({"best": stacked}, partial=True)
    if restored is None:
        raise UserError(f"{run_dir} has no checkpoints to read parameters from: name another run folder")
    return restored.state["best"]
