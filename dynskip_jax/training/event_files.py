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
    """TensorBoard event files of the models that are trained together in a run.

    There is one model for each seed, and with a sweep for each value and seed.

    Args:
        folder: Function from the index of a model to the folder of its event files.
    """

    def __init__(self, folder: Callable[[int], Path]):
        self._folder = folder
        self._writers: dict[int, SummaryWriter] = {}

    def begin(self, records: Iterable[Mapping[str, Any]], count: int) -> None:
        """Delete the event files of an earlier process, and write the records logged so far.

        Args:
            records: Records logged so far.
            count: Number of models that are trained together.
        """
        for member in range(count):
            for path in self._folder(member).glob("events.out.tfevents.*"):
                path.unlink()
        for record in records:
            self.add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        """Write the metrics of a record. tensorboardX writes in a background thread."""
        from tensorboardX import SummaryWriter

        for metric, values in record.items():
            if metric in NO_METRICS:
                continue
            # A list has one entry per model. An entry is a list if the metric has a value for each k. Older
            # versions wrote a number if there was one seed.
            for member, value in enumerate(values if isinstance(values, list) else [values]):
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
    """Return the name of one of the models that are trained together, such as `value-2-seed-0`.

    Models of the first value of a sweep, or without a sweep, are named by the seed only.

    Args:
        run: Run folder of the model.
        member: Index among the models that are trained together.
    """
    seeds = seeds_asked(run.config())
    value, seed = divmod(member, len(seeds))
    which = f"value-{value + 1}-" if value else ""
    return f"{which}seed-{seeds[seed]}"
