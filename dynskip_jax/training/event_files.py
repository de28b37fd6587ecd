"""Write the metrics of runs as TensorBoard event files, in one folder per model."""

from collections.abc import Callable, Iterable, Mapping
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

    def begin(self, records: Iterable[Mapping[str, Any]], count: int) -> None:
        """Delete the event files of an earlier process for `count` models, and write the records so far."""
        for member in range(count):
            for path in self._folder(member).glob("events.out.tfevents.*"):
                path.unlink()
        for record in records:
            self.add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        """Write the metrics of a record: lists with one entry per model, which has a list for several k."""
        from tensorboardX import SummaryWriter

        for metric in (name for name in record if name not in NO_METRICS):
            for member, value in enumerate(record[metric]):
                if member not in self._writers:
                    # purge_step makes a running TensorBoard discard the data of an earlier process.
                    self._writers[member] = SummaryWriter(str(self._folder(member)), purge_step=0)
                for k, number in enumerate(value if isinstance(value, list) else [value], 1):
                    tag = f"{metric}/k{k}" if isinstance(value, list) else metric
                    self._writers[member].add_scalar(tag, number, record["step"])
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
