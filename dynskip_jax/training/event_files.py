"""Write the metrics of a run as TensorBoard event files, in one folder per model."""

from collections.abc import Mapping
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

    The folder of a model is `tensorboard/seed-0`, or `tensorboard/value-2-seed-0` after the first value.
    """

    def __init__(self, run: RunDir):
        self._folder, self._seeds = run.path / "tensorboard", seeds_asked(run.config())
        self._writers: dict[int, SummaryWriter] = {}

    def _writer(self, member: int, step: int) -> "SummaryWriter":
        from tensorboardX import SummaryWriter

        if member not in self._writers:
            value, seed = divmod(member, len(self._seeds))
            name = f"{f'value-{value + 1}-' if value else ''}seed-{self._seeds[seed]}"
            # TensorBoard discards the points of an earlier process from purge_step on.
            own = dict(purge_step=step, filename_suffix=f".{step:012d}")  # names sort by step
            self._writers[member] = SummaryWriter(str(self._folder / name), **own)
        return self._writers[member]

    def add(self, record: Mapping[str, Any]) -> None:
        """Write the metrics of a record: lists with one entry per model, which has a list for several k."""
        step = record["step"]
        for metric in (name for name in record if name not in NO_METRICS):
            for member, value in enumerate(record[metric]):
                for k, number in enumerate(value if isinstance(value, list) else [value], 1):
                    tag = f"{metric}/k{k}" if isinstance(value, list) else metric
                    self._writer(member, step).add_scalar(tag, number, step)
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Close the event files."""
        for writer in self._writers.values():
            writer.close()
