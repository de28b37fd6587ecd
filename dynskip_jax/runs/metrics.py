"""The metrics of a run as one tidy table: a row for each seed, epoch and split."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynskip_jax.extras import needs
from dynskip_jax.runs.results import NO_METRICS, rows_of, seeds_asked
from dynskip_jax.runs.run_dir import RunDir

if TYPE_CHECKING:
    import pandas

_SPLITS = ("train", "dev", "test")


def metrics_table(run: RunDir) -> "pandas.DataFrame":
    """Return what a run of one model logged, and its final metrics.

    Args:
        run: the folder of one model.

    Returns:
        Columns `model`, `seed`, `epoch`, `split`, and one for each metric. `epoch` is NaN in the rows of the
        final evaluation. Values of a sweep that was not selected are left out of the final rows.

    Raises:
        UserError: pandas is not installed, or a file cannot be read.
    """
    with needs("experiments"):
        import pandas
    config, result = run.config(), run.result()
    final = None if result is None else rows_of(result)[0]
    seeds = seeds_asked(config) if final is None else final["seeds"]
    rows: dict[tuple, dict[str, Any]] = {}
    for record in run.records():
        for metric, values in record.items():
            if metric not in NO_METRICS:
                _enter(rows, metric, values, seeds, record.get("epoch"))
    for metric, of in {} if final is None else final["metrics"].items():
        _enter(rows, metric, of["per_seed"], seeds, None)
    table = [dict(zip(("seed", "epoch", "split"), key, strict=True)) | row for key, row in rows.items()]
    frame = pandas.DataFrame(table).astype({"epoch": float})  # None becomes NaN
    frame.insert(0, "model", config.get("model"))
    return frame


def _enter(
    rows: dict[tuple, dict], metric: str, values: Any, seeds: Sequence[int], epoch: float | None
) -> None:
    """Enter a metric, such as `dev_accuracy`, of each seed; the final evaluation has no epoch."""
    split, _, name = metric.partition("_")
    if split not in _SPLITS:
        split, name = "train", metric
    for seed, value in zip(seeds, values if isinstance(values, list) else [values], strict=False):
        if isinstance(value, list):  # one number for each k
            continue
        rows.setdefault((seed, epoch, split), {})[name] = value
