"""Connect several processes to one run: they start together, exchange values, and stop together."""

import json
import re
import sys
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from dynskip_jax.errors import UserError

_CONNECT_SECONDS = 300
_HEARTBEAT_SECONDS = 60  # a process that is not heard of for so long is lost
_PATIENCE_SECONDS = 7 * 24 * 3600  # one process may evaluate for hours while the others wait


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

    def agree(self, value: Any) -> Any:
        """Return the value of process 0, which is sent as JSON, on every process."""
        if self.count == 1:
            return value
        self._exchanges += 1
        # Wait at a barrier, because a collective on CPUs times out after half an hour.
        barrier = multihost.get_barrier_sync_fn()
        barrier(key=f"dynskip_jax {self._exchanges}", timeout_ms=1000 * _PATIENCE_SECONDS)
        text = json.dumps(value, default=lambda array: array.tolist()).encode()
        length = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
        # A power of two, because each size needs a compiled program.
        padded = np.zeros(1 << length.bit_length(), np.uint8)
        if self.first:
            padded[:length] = np.frombuffer(text, np.uint8)
        sent = np.asarray(multihost_utils.broadcast_one_to_all(padded), np.uint8)
        return json.loads(bytes(sent[:length]))

    def anyone(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether any process has raised it."""
        if self.count == 1:
            return flags
        return tuple(multihost_utils.process_allgather(np.array(flags)).any(axis=0).tolist())

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        """Turn a failed collective, which has no exception of its own, into a `UserError`."""
        if self.count > 1 and ("Gloo" in str(error) or isinstance(error, JaxRuntimeError)):
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
    if coordinator is None and process is None:
        return Processes()
    is_found = coordinator == "auto" and process is None
    process_id = process_count = None
    if not is_found:
        numbers = re.fullmatch(r"(\d{1,6})/(\d{1,6})", process or "")
        if numbers is None or not re.fullmatch(r".+:\d{1,5}", coordinator or ""):
            raise UserError(
                "give --coordinator HOST:PORT and --process, as in 0/4, or only --coordinator auto"
            )
        process_id, process_count = map(int, numbers.groups())
        if process_id >= process_count:
            raise UserError(f"--process is {process}: number processes from 0, as in 0/4")
    if process_count == 1:
        return Processes()

    # JAX aborts if it cannot connect in time, without naming the address: print it first.
    print(
        f"looking for the other processes: {coordinator}, {_CONNECT_SECONDS} s at most",
        file=sys.stderr,
    )
    jax.config.update("jax_enable_preemption_service", False)  # the training loop handles SIGTERM
    seconds = dict(
        initialization_timeout=_CONNECT_SECONDS, heartbeat_timeout_seconds=_HEARTBEAT_SECONDS
    )
    address = None if is_found else coordinator
    try:
        jax.distributed.initialize(address, process_count, process_id, **seconds)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"--coordinator {coordinator} finds no processes ({_brief(error)})"
        ) from error
    return Processes(jax.process_index(), jax.process_count())


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
