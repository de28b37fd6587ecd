"""Collect the metrics of a run in one table, with a row for each seed, epoch and split."""

from typing import TYPE_CHECKING, Any

from dynskip_jax.extras import needs
from dynskip_jax.training.folder import RunDir
from dynskip_jax.training.results import NO_METRICS, rows_of, seeds_asked

if TYPE_CHECKING:
    import pandas


def metrics_table(run: RunDir) -> "pandas.DataFrame":
    """Return the logged and the final metrics of a run of one model.

    Returns:
        A table with the columns `model`, `seed`, `epoch`, `split`, and one for each metric that is a number.
        `epoch` is NaN in the rows of the final evaluation. With a sweep, all rows are those of the selected
        value, or of the first one while the run is not finished.
    """
    with needs("experiments"):
        import pandas
    config, result = run.config(), run.result()
    final = {} if result is None else rows_of(result)[0]
    seeds = final.get("seeds") or seeds_asked(config)
    values = [of["value"] for of in final.get("sweep", ())]
    # A logged list has the seeds of the sweep's first value, then those of the second, and so on.
    first = len(seeds) * values.index(final["selected"]) if values else 0
    logged = [
        (metric, record[metric][first:], record.get("epoch"))
        for record in run.records()
        for metric in record
        if metric not in NO_METRICS
    ]
    logged += [(metric, of["per_seed"], None) for metric, of in final.get("metrics", {}).items()]
    rows: dict[tuple, dict[str, Any]] = {}
    for metric, numbers, epoch in logged:
        split, _, name = metric.partition("_")
        if split not in ("train", "dev", "test"):
            split, name = "train", metric
        for seed, value in zip(seeds, numbers, strict=False):
            if not isinstance(value, list):  # one number for each k
                rows.setdefault((seed, epoch, split), {})[name] = value
    table = [dict(zip(("seed", "epoch", "split"), key, strict=True)) | row for key, row in rows.items()]
    frame = pandas.DataFrame(table).astype({"epoch": float})  # None becomes NaN
    frame.insert(0, "model", config.get("model"))
    return frame
