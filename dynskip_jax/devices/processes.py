"""Several processes as one run: they start together, agree, and none outlives another that is lost.

JAX connects the processes' devices (`jax.distributed`). Beside it process 0 has a plain connection to each of
the others. What one of them decides, it says there to all; and the system closes it when a process dies, in
whatever way: the others then end at once, instead of waiting for a device that is no longer there.
"""

import contextlib
import ctypes
import importlib
import json
import os
import queue
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from dynskip_jax.errors import Stopped, UserError

PyTree = Any

_HEARTBEAT_SECONDS = 5.0
_SILENCE_SECONDS = 60.0  # a process that says nothing for so long is lost
_GRACE_SECONDS = 5.0  # for this process's own message, where another one leaves with an error
_ADDRESS_BYTES = 256


class Alone:
    """One process: nothing to agree on.

    Attributes:
        index: of this process.
        count: number of processes.
        first: whether this process writes files and prints.
    """

    index = 0
    count = 1
    first = True

    def agree(self, value: Any) -> Any:
        """Returns the first process's value, on all of them: call it everywhere, in the same order."""
        return value

    def anyone(self, flag: bool) -> bool:
        """Whether a process has raised its flag; the same answer on all, perhaps one call late."""
        return flag

    def share(self, tree: PyTree) -> PyTree:
        """Returns the first process's arrays, on all of them; shapes and dtypes are the same everywhere."""
        return tree

    def __enter__(self) -> "Alone":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Group:
    """Processes that `connect` has brought together; methods and attributes as those of `Alone`."""

    def __init__(self, index: int, count: int, host: str, stderr: int):
        """Opens the connections between the first process and the others. Called by `connect`.

        Args:
            index: of this process.
            count: number of processes.
            host: where the others reach the first.
            stderr: descriptor for last words.
        """
        self.index, self.count, self.first = index, count, index == 0
        self._stderr = stderr
        self._said: queue.Queue[Any] = queue.Queue()
        self._raised = threading.Event()  # another process's flag
        self._raised_own = False
        self._gone: dict[int, threading.Event] = {}  # who has taken leave
        self._peers = _connect_to_others(count, host) if self.first else _connect_to_first(index)
        self._locks = {peer: threading.Lock() for peer in self._peers}
        for peer, connection in self._peers.items():
            self._gone[peer] = threading.Event()
            connection.settimeout(_SILENCE_SECONDS)
            threading.Thread(target=self._listen, args=(peer, connection), daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def agree(self, value: Any) -> Any:
        """See `Alone`; the value is one that JSON can hold, or has NumPy arrays in it."""
        if self.first:
            text = json.dumps(value, default=lambda array: array.tolist())
            self._send({"say": json.loads(text)})
            return json.loads(text)
        said = self._said.get()
        if isinstance(said, UserError):
            raise said
        return said

    def anyone(self, flag: bool) -> bool:
        """See `Alone`."""
        if flag and not self.first and not self._raised_own:
            self._raised_own = True
            self._send({"raise": True})
        return bool(self.agree(flag or self._raised.is_set()))

    def share(self, tree: PyTree) -> PyTree:
        """See `Alone`."""
        data = jax.tree.map(
            lambda leaf: np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf), tree
        )
        data = multihost_utils.broadcast_one_to_all(data)

        def like(array: Any, leaf: Any) -> jax.Array:
            array = jax.numpy.asarray(np.asarray(array))
            return jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf)) if _is_key(leaf) else array

        return jax.tree.map(like, data, tree)

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        """Takes leave; an error of this process alone goes with it, so that the others do not wait for it."""
        if isinstance(error, jax.errors.JaxRuntimeError):
            # A collective that fails is nearly always a process that died; who, its connection will say.
            time.sleep(2 * _GRACE_SECONDS)
        elif isinstance(error, UserError):
            self._send({"leave": str(error)})
            if self.first:  # without it JAX ends the others, before they have said why
                self._wait_for_leave(_GRACE_SECONDS)
                time.sleep(0.5)
        elif error is None or isinstance(error, Stopped):
            self._send({"leave": None})
            self._wait_for_leave(_SILENCE_SECONDS)

    def _wait_for_leave(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for gone in self._gone.values():
            gone.wait(max(0.0, deadline - time.monotonic()))

    def _send(self, message: dict) -> None:
        line = json.dumps(message).encode() + b"\n"
        for peer, connection in self._peers.items():
            # Who cannot be reached is lost, and its own connection reports that.
            with self._locks[peer], contextlib.suppress(OSError):
                connection.sendall(line)

    def _beat(self) -> None:
        while True:
            time.sleep(_HEARTBEAT_SECONDS)
            self._send({})

    def _listen(self, peer: int, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if "say" in message:
                    self._said.put(message["say"])
                if "raise" in message:
                    self._raised.set()
                if "leave" in message:
                    self._gone[peer].set()
                    if message["leave"] is None:
                        return
                    self._said.put(UserError(message["leave"]))
                    time.sleep(_GRACE_SECONDS)
                    self._end(f"process {peer} has stopped: {message['leave']}")
        self._end(f"process {peer} was lost; start all processes again with the same command to go on")

    def _end(self, reason: str) -> NoReturn:
        _last_words(self._stderr, reason)


def connect(
    coordinator: str | None = None, process_id: int | None = None, process_count: int | None = None
) -> Alone | Group:
    """Joins the processes of one run; before anything else asks JAX for its devices.

    Args:
        coordinator: HOST:PORT at which the others find process 0.
        process_id: of this process, 0 to process_count - 1.
        process_count: number of processes. With all three None this is the only one; on a TPU pod JAX knows
            its hosts, and there is one for each.

    Raises:
        UserError: some are given and others not, or they make no sense, or the others are not found.
    """
    given = (coordinator, process_id, process_count)
    if given == (None, None, None):
        if _tpu_hosts() < 2:
            return Alone()
    else:
        _check(coordinator, process_id, process_count)
        if process_count == 1:
            return Alone()
    stderr = _divert_native_output()
    where = "each other" if coordinator is None else f"each other at {coordinator}"
    _speak_on_abort(stderr, f"another process was lost, or did not find {where}; start all of them again")
    try:
        jax.distributed.initialize(coordinator, process_count, process_id)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"the processes did not find {where} ({reason})") from error
    host = _own_address() if coordinator is None else coordinator.rpartition(":")[0]
    return Group(jax.process_index(), jax.process_count(), host, stderr)


def _check(coordinator: str | None, process_id: int | None, process_count: int | None) -> None:
    if coordinator is None or process_id is None or process_count is None:
        raise UserError("give --coordinator, --process-id and --process-count together, or none of them")
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"--coordinator is {coordinator!r}: give HOST:PORT, as in 10.0.0.1:8476")
    if process_count < 1:
        raise UserError(f"--process-count must be at least 1, got {process_count}")
    if not 0 <= process_id < process_count:
        raise UserError(f"--process-id lies between 0 and {process_count - 1}, got {process_id}")


def _tpu_hosts() -> int:
    """How many hosts JAX finds on a TPU pod, 1 anywhere else; asks the network only inside a TPU VM."""
    try:
        clusters = importlib.import_module("jax._src.clusters.cloud_tpu_cluster")
        for cluster in (clusters.GkeTpuCluster, clusters.GceTpuCluster):
            if cluster.is_env_present():
                return cluster.get_process_count()
    except Exception:  # JAX's own and private: without it this is one host, as anywhere else
        pass
    return 1


# --- Connections ---


def _connect_to_others(count: int, host: str) -> dict[int, socket.socket]:
    token = secrets.token_hex(16)
    with socket.create_server(("", 0), backlog=count) as server:
        server.settimeout(_SILENCE_SECONDS)
        _broadcast_address({"host": host, "port": server.getsockname()[1], "token": token})
        peers: dict[int, socket.socket] = {}
        while len(peers) < count - 1:
            try:
                connection, _ = server.accept()
            except TimeoutError:
                raise UserError(
                    "the other processes do not connect to process 0: is a firewall between?"
                ) from None
            connection.settimeout(_SILENCE_SECONDS)
            # Unbuffered: what follows, perhaps at once, is for the thread that listens.
            hello = connection.makefile("rb", buffering=0).readline(200).split()
            if len(hello) == 2 and secrets.compare_digest(hello[0], token.encode()):
                peers[int(hello[1])] = connection
            else:
                connection.close()  # somebody else's
    return peers


def _connect_to_first(index: int) -> dict[int, socket.socket]:
    address = _broadcast_address(None)
    try:
        connection = socket.create_connection((address["host"], address["port"]), timeout=_SILENCE_SECONDS)
        connection.sendall(f"{address['token']} {index}\n".encode())
    except OSError as error:
        raise UserError(
            f"process {index} cannot connect to process 0 at {address['host']}:{address['port']} ({error})"
        ) from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return {0: connection}


def _broadcast_address(address: dict | None) -> dict:
    """From process 0 to all, by way of their devices: JAX is what they have in common so far."""
    text = json.dumps(address).encode().ljust(_ADDRESS_BYTES)
    received = multihost_utils.broadcast_one_to_all(np.frombuffer(text, np.uint8).astype(np.int32))
    return json.loads(bytes(np.asarray(received).astype(np.uint8)))


def _own_address() -> str:
    """This host's address on the way out; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return probe.getsockname()[0]
        except OSError:
            return socket.gethostname()


# --- Last words ---


def _divert_native_output() -> int:
    """Keeps what JAX's C++ code prints off the terminal; Python prints where it did.

    When a process dies, C++ threads of the others log pages before they abort.

    Returns:
        A descriptor of the standard error that was.
    """
    kept = []
    for number, name in ((1, "stdout"), (2, "stderr")):
        getattr(sys, name).flush()
        kept.append(os.dup(number))
        setattr(sys, name, os.fdopen(kept[-1], "w", buffering=1, encoding="utf-8", closefd=False))
        with tempfile.TemporaryFile() as log:
            os.dup2(log.fileno(), number)
    return kept[1]


def _speak_on_abort(stderr: int, reason: str) -> None:
    """One line and an exit status where C++ would abort: JAX does when it loses the first process."""

    def handler(number: int) -> None:
        log = os.pread(2, 1 << 16, 0)  # what was diverted
        if b"distributed service" not in log:
            os.write(stderr, log)  # something else, which would otherwise go unseen
        _last_words(stderr, reason)

    # Python's own handlers wait for the main thread, which may be waiting for a device for ever.
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
    called = kind(handler)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(called))  # needed as long as the process lives
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, kind]
    libc.signal.restype = ctypes.c_void_p
    libc.signal(int(signal.SIGABRT), called)


def _last_words(stderr: int, reason: str) -> NoReturn:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        os.write(stderr, f"error: {reason}\n".encode())
    os._exit(1)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
