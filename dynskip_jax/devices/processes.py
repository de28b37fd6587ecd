"""Several processes as one run, on JAX's own engine: they start together, agree, and end together.

`jax.distributed` finds the processes and watches over them; what they say goes over their devices. If one is
lost, what waits for it fails: at once where its connection breaks, else after the heartbeat's timeout.
"""

import contextlib
import json
import sys
import time
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from dynskip_jax.errors import UserError

HEARTBEAT_SECONDS = 60
_CONNECT_SECONDS = 300
_PATIENCE_SECONDS = 7 * 24 * 3600  # one evaluates for hours while the others wait
_GRACE_SECONDS = 5  # for the others to hear why this one stops
_ASK_SECONDS = 1.0  # how often flags are exchanged, about


class Processes:
    """The processes of a run, as `connect` finds them; by default this one alone, with nothing to agree on.

    Every method is called by all of them, in the same order.

    Attributes:
        index: of this process.
        count: number of processes.
        first: whether this process has the run folder and prints.
    """

    def __init__(self, index: int = 0, count: int = 1):
        self.index, self.count, self.first = index, count, index == 0
        self._exchanges = 0
        self._told = False  # that a process stops, and why
        self._raised: tuple[bool, ...] = ()
        self._calls, self._calls_between, self._asked = 0, 1, time.monotonic()

    def collect(self, value: Any) -> list[Any]:
        """Returns every process's value, on all of them.

        Args:
            value: what JSON can hold; of several processes, NumPy arrays in it become lists.

        Raises:
            UserError: another process has stopped; the message says why.
        """
        if self.count == 1:
            return [value]
        said = self._exchange({"value": value}, _PATIENCE_SECONDS)
        for index, message in enumerate(said):
            if "error" in message:
                self._told = True
                raise UserError(f"process {index} has stopped: {message['error']}")
        return [message["value"] for message in said]

    def agree(self, value: Any) -> Any:
        """Returns the first process's value, on all of them; otherwise as `collect`."""
        return self.collect(value)[0]

    def anyone(self, *flags: bool, now: bool = False) -> tuple[bool, ...]:
        """Whether a process has raised each flag; about once a second they tell each other, all in one call.

        Args:
            flags: as many in every call; one that was raised in a call before counts.
            now: tell each other in this call.
        """
        if self.count == 1:
            return flags
        self._raised = tuple(map(any, zip(flags, self._raised or flags, strict=True)))
        self._calls += 1
        if not now and self._calls < self._calls_between:
            return (False,) * len(flags)
        seconds = max(time.monotonic() - self._asked, 1e-3)
        calls = max(1, int(_ASK_SECONDS * self._calls / seconds))
        said = multihost_utils.process_allgather(np.array([calls, *self._raised], np.int32))
        self._raised = ()
        self._calls, self._calls_between, self._asked = 0, int(said[:, 0].min()), time.monotonic()
        return tuple(said[:, 1:].any(axis=0).tolist())

    def _exchange(self, message: dict, seconds: int) -> list[dict]:
        text = json.dumps(message, default=lambda array: array.tolist()).encode()
        self._exchanges += 1
        # Wait here: a collective on CPUs gives up after half an hour.
        barrier = multihost.get_barrier_sync_fn()
        barrier(key=f"dynskip_jax {self._exchanges}", timeout_ms=1000 * seconds)
        lengths = multihost_utils.process_allgather(np.int32(len(text)))
        padded = np.zeros(1 << int(lengths.max()).bit_length(), np.uint8)  # few lengths, few programs
        padded[: len(text)] = np.frombuffer(text, np.uint8)
        rows = multihost_utils.process_allgather(padded)
        return [json.loads(bytes(row[:length])) for row, length in zip(rows, lengths, strict=True)]

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        """Tells the others why this one stops, if they listen; where one is lost, says so in one line."""
        if self.count == 1:
            return
        if isinstance(error, UserError) and not self._told:
            with contextlib.suppress(RuntimeError, ValueError):
                self._exchange({"error": str(error)}, _GRACE_SECONDS)
        # JAX has no exception of its own for a collective that fails.
        elif "Gloo" in str(error) or isinstance(error, jax.errors.JaxRuntimeError):
            raise UserError(
                f"what all processes do together has failed ({_brief(error)}): if one was lost, start all "
                "again with the same command to go on"
            ) from error


def connect(
    coordinator: str | None = None,
    process_id: int | None = None,
    process_count: int | None = None,
    *,
    heartbeat_seconds: int = HEARTBEAT_SECONDS,
) -> Processes:
    """Joins the processes of one run; before anything else asks JAX for its devices.

    Args:
        coordinator: HOST:PORT at which the others find process 0; or "auto": JAX asks the cluster (a TPU pod,
            Slurm, Open MPI, Kubernetes) for all three.
        process_id: of this process, 0 to process_count - 1.
        process_count: number of processes. With all three None this is the only one.
        heartbeat_seconds: a process that has not been heard of for so long is lost.

    Raises:
        UserError: some are given and others not, or they make no sense, or the others are not found.
    """
    given = (coordinator, process_id, process_count)
    if given == (None, None, None):
        return Processes()
    if coordinator != "auto":
        _check(*given)
    elif given[1:] != (None, None):
        raise UserError("--coordinator auto finds --process-id and --process-count: leave them out")
    if heartbeat_seconds < 1:
        raise UserError(f"--heartbeat-seconds must be at least 1, got {heartbeat_seconds}")
    if process_count == 1:
        return Processes()
    # If the others are not found in time, JAX aborts, and does not say where it looked.
    print(f"looking for the other processes: {coordinator}, {_CONNECT_SECONDS} s at most", file=sys.stderr)
    jax.config.update("jax_enable_preemption_service", False)  # SIGTERM is for the training loop
    address = None if coordinator == "auto" else coordinator
    seconds = dict(initialization_timeout=_CONNECT_SECONDS, heartbeat_timeout_seconds=heartbeat_seconds)
    try:
        jax.distributed.initialize(address, process_count, process_id, **seconds)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"--coordinator {coordinator} finds no processes ({_brief(error)})") from error
    return Processes(jax.process_index(), jax.process_count())


def _check(coordinator: str | None, process_id: int | None, process_count: int | None) -> None:
    if coordinator is None or process_id is None or process_count is None:
        raise UserError("give --coordinator, --process-id and --process-count together, or none of them")
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"--coordinator is {coordinator!r}: give HOST:PORT, as in 10.0.0.1:8476, or auto")
    if process_count < 1:
        raise UserError(f"--process-count must be at least 1, got {process_count}")
    if not 0 <= process_id < process_count:
        raise UserError(f"--process-id lies between 0 and {process_count - 1}, got {process_id}")


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
