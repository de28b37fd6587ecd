"""Write what runs log as TensorBoard event files, a folder for each model that is trained together."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynskip_jax.errors import UserError
from dynskip_jax.runs.results import NO_METRICS, seeds_asked
from dynskip_jax.runs.run_dir import RunDir

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter


def check_tensorboard() -> None:
    """Raise a `UserError` where tensorboardX is not installed."""
    try:
        import tensorboardX  # noqa: F401
    except ImportError:
        raise UserError(
            'event files need tensorboardX: pip install -e ".[tensorboard]", or leave out --tensorboard'
        ) from None


class EventFiles:
    """The event files of the models that train together in a run.

    Args:
        folder: from the number of a model to the folder of its files.
    """

    def __init__(self, folder: Callable[[int], Path]):
        self._folder = folder
        self._writers: dict[int, SummaryWriter] = {}

    def begin(self, records: Iterable[Mapping[str, Any]], count: int) -> None:
        """Write the records of a run anew, in place of the files of an earlier process.

        Args:
            records: what has been logged so far.
            count: how many models train together.
        """
        for member in range(count):
            for path in self._folder(member).glob("events.out.tfevents.*"):
                path.unlink()
        for record in records:
            self.add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        """Write the metrics of a record; the library does so in a thread of its own."""
        from tensorboardX import SummaryWriter

        for metric, values in record.items():
            if metric in NO_METRICS:
                continue
            # A list has an entry for each seed, itself a list where that is of each k; folders written before
            # have a number where there is one seed.
            for member, value in enumerate(values if isinstance(values, list) else [values]):
                if member not in self._writers:
                    # A TensorBoard that is open forgets what an earlier process wrote.
                    self._writers[member] = SummaryWriter(str(self._folder(member)), purge_step=0)
                for k, number in enumerate(value if isinstance(value, list) else [value], 1):
                    tag = f"{metric}/k{k}" if isinstance(value, list) else metric
                    self._writers[member].add_scalar(tag, number, record["step"])
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()


def member_name(run: RunDir, member: int) -> str:
    """Return the name of one of the models that train together: its seed, of a sweep also which value."""
    seeds = seeds_asked(run.config())
    value, seed = divmod(member, len(seeds))
    which = f"value-{value + 1}-" if value else ""
    return f"{which}seed-{seeds[seed]}"
