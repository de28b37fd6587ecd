"""Connect several processes to one run: they start together, exchange values, and stop together."""

import contextlib
import json
import re
import sys
import time
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from dynskip_jax.errors import UserError

_CONNECT_SECONDS = 300
_HEARTBEAT_SECONDS = 60  # a process that is not heard of for so long is lost
_PATIENCE_SECONDS = 7 * 24 * 3600  # one process may evaluate for hours while the others wait
_GRACE_SECONDS = 5  # time for the other processes to receive the error
_ASK_SECONDS = 1.0  # approximate interval between two exchanges of flags


class Processes:
    """The processes of a run, as returned by `connect`; by default only this process.

    All processes must call every method, in the same order. The first one holds the run folder and
    prints.
    """

    def __init__(self, index: int = 0, count: int = 1):
        self.index = index
        self.count = count
        self.first = index == 0
        self._exchanges = 0
        self._told = False  # whether this process has received the error of another one
        self._raised: tuple[bool, ...] = ()
        self._calls = 0
        self._calls_between = 1
        self._asked = time.monotonic()

    def collect(self, value: Any) -> list[Any]:
        """Return the values of all processes, in the order of their indices; they are sent as JSON.

        The error of a process that has stopped is raised on the others.
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
        """Return the value of process 0 on every process; see `collect`."""
        return self.collect(value)[0]

    def anyone(self, *flags: bool, now: bool = False) -> tuple[bool, ...]:
        """Return for each flag whether any process has raised it since the last exchange.

        Flags are exchanged about once a second, and in calls with `now`; other calls return False
        for all.
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
        self._calls = 0
        self._calls_between = int(said[:, 0].min())
        self._asked = time.monotonic()
        return tuple(said[:, 1:].any(axis=0).tolist())

    def _exchange(self, message: dict, seconds: int) -> list[dict]:
        text = json.dumps(message, default=lambda array: array.tolist()).encode()
        self._exchanges += 1
        # Wait at a barrier, because a collective on CPUs times out after half an hour.
        barrier = multihost.get_barrier_sync_fn()
        barrier(key=f"dynskip_jax {self._exchanges}", timeout_ms=1000 * seconds)
        lengths = multihost_utils.process_allgather(np.int32(len(text)))
        # A power of two, because each size needs a compiled program.
        padded = np.zeros(1 << int(lengths.max()).bit_length(), np.uint8)
        padded[: len(text)] = np.frombuffer(text, np.uint8)
        rows = multihost_utils.process_allgather(padded)
        return [json.loads(bytes(row[:length])) for row, length in zip(rows, lengths, strict=True)]

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        """Send this process's error to the others; turn a failed collective into a `UserError`."""
        if self.count == 1:
            return
        if isinstance(error, UserError | OSError) and not self._told:
            with contextlib.suppress(RuntimeError, ValueError):
                self._exchange({"error": str(error)}, _GRACE_SECONDS)
        # JAX has no dedicated exception for a failed collective.
        elif "Gloo" in str(error) or isinstance(error, jax.errors.JaxRuntimeError):
            raise UserError(
                f"what all processes do together has failed ({_brief(error)}): "
                "if one was lost, start all again with the same command to go on"
            ) from error


def connect(coordinator: str | None, process: str | None) -> Processes:
    """Connect to the other processes of the run; call it before anything asks JAX for its devices.

    If one is lost, calls that wait for it fail: at once if its connection breaks, and otherwise
    after a minute. `coordinator` is HOST:PORT of process 0, and `process` this process's
    number and the number of all, as in "0/4". With "auto", JAX gets all three from the cluster (a
    TPU pod, Slurm, Open MPI, Kubernetes). A run of one process gives neither.
    """
    process_id, process_count = _numbers(process)
    if coordinator is None and process is None:
        return Processes()
    if coordinator == "auto":
        if process is not None:
            raise UserError(
                "--coordinator auto finds the number of each process: leave --process out"
            )
    elif coordinator is None or process is None:
        raise UserError("give --coordinator and --process together, or none of them")
    else:
        host, _, port = coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UserError(
                f"--coordinator is {coordinator!r}: give HOST:PORT, as in 10.0.0.1:8476, or auto"
            )
        if not 0 <= process_id < process_count:
            raise UserError(
                f"--process is {process_id}/{process_count}: number processes from 0, as in 0/4"
            )
    if process_count == 1:
        return Processes()
    # JAX aborts if it cannot connect in time, without naming the address: print it first.
    print(
        f"looking for the other processes: {coordinator}, {_CONNECT_SECONDS} s at most",
        file=sys.stderr,
    )
    jax.config.update("jax_enable_preemption_service", False)  # the training loop handles SIGTERM
    address = None if coordinator == "auto" else coordinator
    seconds = dict(
        initialization_timeout=_CONNECT_SECONDS, heartbeat_timeout_seconds=_HEARTBEAT_SECONDS
    )
    try:
        jax.distributed.initialize(address, process_count, process_id, **seconds)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"--coordinator {coordinator} finds no processes ({_brief(error)})"
        ) from error
    return Processes(jax.process_index(), jax.process_count())


def _numbers(process: str | None) -> tuple[int | None, int | None]:
    """Return the two numbers of a text such as "0/4"; None for both without a text."""
    if process is None:
        return None, None
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", process)
    if found is None:
        raise UserError(
            "--process takes two numbers, such as 0/4: of this process, and of all of them"
        )
    number, count = found.groups()
    return int(number), int(count)


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
