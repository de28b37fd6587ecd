"""Stop training at Ctrl-C and at signals that end a process."""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console

# SIGHUP and SIGUSR1 do not exist on Windows.
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
_STOPPING = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]

_AT_ONCE = "interrupted at once: steps after the last checkpoint are lost"
_STOPPING_SOON = (
    "stopping: the present step, or the compiler, ends first; a second Ctrl-C ends at once"
)
# In which all SIGINT are one Ctrl-C: `timeout` sends one to the process and one to its group.
_SAME_SECONDS = 1.0
_ANSWER_SECONDS = 0.5  # in which a first signal may have its effect, before it is answered
_END_SECONDS = 3.0  # and a second Ctrl-C, before the process is ended


@contextlib.contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Catch Ctrl-C and termination, and yield a function that returns whether one has arrived.

    The signals are SIGINT (Ctrl-C), SIGTERM, SIGHUP, and SIGUSR1, which clusters send before they
    end a job. A second Ctrl-C, a second or more after the first, raises `KeyboardInterrupt` at
    once. A signal that is ignored, as SIGHUP under `nohup`, stays ignored. Outside the main thread
    no signal is caught.
    """
    received = _Received()

    def handler(number, frame):
        received.add(number)
        if received.interrupted_twice():
            raise KeyboardInterrupt(_AT_ONCE)

    caught = [number for number in _STOPPING if signal.getsignal(number) != signal.SIG_IGN]
    try:
        previous = {number: signal.signal(number, handler) for number in caught}
    except ValueError:  # signals can only be handled in the main thread
        previous = {}
    try:
        with _answered() if previous else contextlib.nullcontext():
            yield lambda: bool(received.numbers)
    finally:
        for number, old in previous.items():
            signal.signal(number, old)


class _Received:
    """The signals that have arrived, and when the first and the last Ctrl-C were among them."""

    def __init__(self):
        self.numbers: list[int] = []
        self._times: list[float] = []

    def add(self, number: int) -> None:
        """Note a signal that has arrived now."""
        self.numbers.append(number)
        if number == signal.SIGINT:
            self._times.append(time.monotonic())

    def interrupted_twice(self) -> bool:
        """Return whether Ctrl-C was pressed again, so that no more is to be done."""
        return len(self._times) > 1 and self._times[-1] - self._times[0] >= _SAME_SECONDS


@contextlib.contextmanager
def _answered() -> Iterator[None]:
    """Answer signals from a thread: handlers wait until a compiler returns, which takes minutes."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    done = threading.Event()
    thread = threading.Thread(target=_answer, args=(reader, done), daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(before)
        writer.close()  # ends the thread
        thread.join()
        reader.close()


def _answer(reader: socket.socket, done: threading.Event) -> None:
    """Say that the process stops, and end it at a second Ctrl-C, if its main thread cannot."""
    received = _Received()
    while number := reader.recv(1):
        if number[0] not in _STOPPING:
            continue
        received.add(number[0])
        if received.interrupted_twice() and not done.wait(_END_SECONDS):
            Console(stderr=True).show_cursor()  # which a progress bar hides
            print(_AT_ONCE, file=sys.stderr, flush=True)
            os._exit(130)
        if len(received.numbers) == 1 and not done.wait(_ANSWER_SECONDS):
            print(_STOPPING_SOON, file=sys.stderr, flush=True)
