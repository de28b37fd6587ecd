"""Stop training at Ctrl-C and at signals that end a process."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator

# SIGHUP and SIGUSR1 do not exist on Windows.
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
_STOPPING = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
# In which all SIGINT are one Ctrl-C: `timeout` sends one to the process and one to its group.
_SAME_SECONDS = 1.0


@contextlib.contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Catch Ctrl-C and termination, and yield a function that returns whether one has arrived.

    The signals are SIGINT (Ctrl-C), SIGTERM, SIGHUP, and SIGUSR1, which clusters send before they
    end a job. A second Ctrl-C, a second or more after the first, raises `KeyboardInterrupt` at
    once. A signal that is ignored, as SIGHUP under `nohup`, stays ignored. Outside the main thread
    no signal is caught.
    """
    received: list[int] = []
    pressed: list[float] = []  # times of Ctrl-C

    def handler(number, frame):
        received.append(number)
        if number == signal.SIGINT:
            pressed.append(time.monotonic())
            if pressed[-1] - pressed[0] >= _SAME_SECONDS:
                raise KeyboardInterrupt(
                    "interrupted at once: steps after the last checkpoint are lost"
                )

    caught = [number for number in _STOPPING if signal.getsignal(number) != signal.SIG_IGN]
    try:
        previous = {number: signal.signal(number, handler) for number in caught}
    except ValueError:  # signals can only be handled in the main thread
        previous = {}
    try:
        yield lambda: bool(received)
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
