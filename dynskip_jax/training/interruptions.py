"""Stop training at Ctrl-C and at signals that end a process."""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

from rich.console import Console

# SIGHUP and SIGUSR1 do not exist on Windows.
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
_STOPPING = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]

_AT_ONCE = "interrupted at once: steps after the last checkpoint are lost"
_STOPPING_SOON = (
    "stopping: the present step, or the compiler, ends first; a second Ctrl-C ends at once"
)
_ANSWER_SECONDS = 0.5  # in which a first signal may have its effect, before it is answered
_END_SECONDS = 3.0  # and a second Ctrl-C, before the process is ended


@contextlib.contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Catch Ctrl-C and termination, and yield a function that returns whether one has arrived.

    The signals are SIGINT (Ctrl-C), SIGTERM, SIGHUP, and SIGUSR1, which clusters send before they
    end a job. A second Ctrl-C raises `KeyboardInterrupt` at once. A signal that is ignored, as
    SIGHUP under `nohup`, stays ignored. Outside the main thread no signal is caught.
    """
    received: list[int] = []

    def handler(number, frame):
        received.append(number)
        if received.count(signal.SIGINT) > 1:
            raise KeyboardInterrupt(_AT_ONCE)

    caught = [number for number in _STOPPING if signal.getsignal(number) != signal.SIG_IGN]
    try:
        previous = {number: signal.signal(number, handler) for number in caught}
    except ValueError:  # signals can only be handled in the main thread
        previous = {}
    try:
        with _answered() if previous else contextlib.nullcontext():
            yield lambda: bool(received)
    finally:
        for number, old in previous.items():
            signal.signal(number, old)


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
    received: list[int] = []
    while number := reader.recv(1):
        if number[0] not in _STOPPING:
            continue
        received.append(number[0])
        if received.count(signal.SIGINT) > 1 and not done.wait(_END_SECONDS):
            Console(stderr=True).show_cursor()  # which a progress bar hides
            print(_AT_ONCE, file=sys.stderr, flush=True)
            os._exit(130)
        if len(received) == 1 and not done.wait(_ANSWER_SECONDS):
            print(_STOPPING_SOON, file=sys.stderr, flush=True)
