"""Write the metrics of runs as TensorBoard event files, in one folder per model."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynskip_jax.errors import UserError
from dynskip_jax.training.folder import RunDir
from dynskip_jax.training.results import NO_METRICS, seeds_asked

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter


def check_tensorboard() -> None:
    """Raise a `UserError` if tensorboardX is not installed."""
    try:
        import tensorboardX  # noqa: F401
    except ImportError:
        raise UserError(
            'event files need tensorboardX: pip install -e ".[tensorboard]", or leave out --tensorboard'
        ) from None


class EventFiles:
    """TensorBoard event files of the models (seeds, values of a sweep) that are trained together in a run.

    `folder` maps the index of a model to the folder of its event files.
    """

    def __init__(self, folder: Callable[[int], Path]):
        self._folder = folder
        self._writers: dict[int, SummaryWriter] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Write the metrics of a record: lists with one entry per model, which has a list for several k."""
        from tensorboardX import SummaryWriter

        step = record["step"]
        for metric in (name for name in record if name not in NO_METRICS):
            for member, value in enumerate(record[metric]):
                if member not in self._writers:
                    # TensorBoard discards the points of an earlier process from purge_step on.
                    own = dict(purge_step=step, filename_suffix=f".{step}")
                    self._writers[member] = SummaryWriter(str(self._folder(member)), **own)
                for k, number in enumerate(value if isinstance(value, list) else [value], 1):
                    tag = f"{metric}/k{k}" if isinstance(value, list) else metric
                    self._writers[member].add_scalar(tag, number, step)
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Close the event files."""
        for writer in self._writers.values():
            writer.close()


def member_name(run: RunDir, member: int) -> str:
    """Return the name of the model with an index in a run, such as `value-2-seed-0`, or `seed-0`.

    Models of the first value of a sweep, or without a sweep, are named by the seed only.
    """
    seeds = seeds_asked(run.config())
    value, seed = divmod(member, len(seeds))
    return f"value-{value + 1}-seed-{seeds[seed]}" if value else f"seed-{seeds[seed]}"
