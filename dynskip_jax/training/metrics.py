"""Collect the metrics of a run in one table, with a row for each seed, epoch and split."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynskip_jax.extras import needs
from dynskip_jax.training.folder import RunDir
from dynskip_jax.training.results import NO_METRICS, rows_of, seeds_asked

if TYPE_CHECKING:
    import pandas

_SPLITS = ("train", "dev", "test")


def metrics_table(run: RunDir) -> "pandas.DataFrame":
    """Return the logged and the final metrics of a run of one model.

    Args:
        run: Run folder of one model.

    Returns:
        A table with the columns `model`, `seed`, `epoch`, `split`, and one for each metric. `epoch` is NaN in
        the rows of the final evaluation. With a sweep, all rows are those of the selected value, or of the
        first one while the run is not finished.

    Raises:
        UserError: pandas is not installed, or a file cannot be read.
    """
    with needs("experiments"):
        import pandas
    config, result = run.config(), run.result()
    final = None if result is None else rows_of(result)[0]
    seeds = seeds_asked(config) if final is None else final["seeds"]
    values = [] if final is None else [of["value"] for of in final.get("sweep", ())]
    # A logged list has the seeds of the sweep's first value, then those of the second, and so on.
    first = len(seeds) * values.index(final["selected"]) if values else 0
    rows: dict[tuple, dict[str, Any]] = {}
    for record in run.records():
        for metric, logged in record.items():
            if metric not in NO_METRICS:
                own = logged[first:] if isinstance(logged, list) else [logged]
                _enter(rows, metric, own, seeds, record.get("epoch"))
    for metric, of in {} if final is None else final["metrics"].items():
        _enter(rows, metric, of["per_seed"], seeds, None)
    table = [dict(zip(("seed", "epoch", "split"), key, strict=True)) | row for key, row in rows.items()]
    frame = pandas.DataFrame(table).astype({"epoch": float})  # None becomes NaN
    frame.insert(0, "model", config.get("model"))
    return frame


def _enter(
    rows: dict[tuple, dict], metric: str, values: Sequence[Any], seeds: Sequence[int], epoch: float | None
) -> None:
    """Add the values of a metric, one for each seed, to `rows`.

    Args:
        rows: Rows by seed, epoch and split; they are changed in place.
        metric: Name with the split, such as `dev_accuracy`. Names without a split belong to train.
        values: One value per seed; more are ignored. Lists with a value for each k are skipped.
        seeds: Seeds of the values.
        epoch: Epoch; None for the final evaluation.
    """
    split, _, name = metric.partition("_")
    if split not in _SPLITS:
        split, name = "train", metric
    for seed, value in zip(seeds, values, strict=False):
        if isinstance(value, list):  # one number for each k
            continue
        rows.setdefault((seed, epoch, split), {})[name] = value
