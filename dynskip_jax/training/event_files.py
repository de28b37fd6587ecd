"""Write the metrics of a run as TensorBoard event files, in one folder per model."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dynskip_jax.errors import needs
from dynskip_jax.training.folder import RunDir
from dynskip_jax.training.results import NO_METRICS


def check_tensorboard() -> None:
    """Raise an error if tensorboardX is not installed."""
    with needs("tensorboard"):
        import tensorboardX  # noqa: F401


@contextlib.contextmanager
def event_files(run: RunDir, seeds: Sequence[int]) -> Iterator[None]:
    """Also write the metrics that a run logs as event files of each model that is trained in it.

    The folder of a model is `tensorboard/seed-0`, or `tensorboard/value-2-seed-0` for the second value of a
    sweep. A metric has one entry per model, which is a list if it has a number for each k.
    """
    from tensorboardX import SummaryWriter

    writers: dict[int, SummaryWriter] = {}

    def writer(member: int, step: int) -> SummaryWriter:
        if member not in writers:
            value, seed = divmod(member, len(seeds))
            name = f"{f'value-{value + 1}-' if value else ''}seed-{seeds[seed]}"
            # TensorBoard discards the points of an earlier process from purge_step on.
            how = dict(purge_step=step, filename_suffix=f".{step:012d}")  # names sort by step
            writers[member] = SummaryWriter(str(run.path / "tensorboard" / name), **how)
        return writers[member]

    def add(record: Mapping[str, Any]) -> None:
        step = record["step"]
        for metric in (name for name in record if name not in NO_METRICS):
            for member, value in enumerate(record[metric]):
                for k, number in enumerate(value if isinstance(value, list) else [value], 1):
                    tag = f"{metric}/k{k}" if isinstance(value, list) else metric
                    writer(member, step).add_scalar(tag, number, step)
        for each in writers.values():
            each.flush()

    run.on_log = add
    try:
        yield
    finally:
        for each in writers.values():
            each.close()
