"""Report a command: its log on standard output, and its errors in one line, with an exit status."""

import io
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from dynskip_jax.errors import Stopped, UserError
from dynskip_jax.terminal.messages import printable, shortened

_MOST_CHARACTERS = 900  # of an error, which may quote a long value


def log_to_standard_output() -> None:
    """Print the library's log messages."""
    logger = logging.getLogger("dynskip_jax")
    logger.handlers = [_StandardOutput()]
    logger.propagate = False
    logger.setLevel(logging.INFO)


class _StandardOutput(logging.Handler):
    """Print records to the current `sys.stdout`, one line each; users' text is escaped."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, with the prefix `warning: ` from that level on."""
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        print(f"{prefix}{printable(record.getMessage())}", flush=True)


def run_main(main: Callable[[], None]) -> None:
    """Run a command; errors that the user can mend are one line, with exit status 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # notebooks and tests may replace it
        sys.stdout.reconfigure(errors="replace")  # characters that its encoding lacks
    try:
        main()
    except UserError as error:
        _leave(2, f"error: {error}")
    except BrokenPipeError:  # the reader of the output has gone, as in `| head`
        # Python would report it again when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(1, "the reader of standard output has gone: the command ends")
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        _leave(2, f"error: {error.strerror or error}{where}")
    except (Stopped, KeyboardInterrupt) as interruption:
        _leave(130, str(interruption) or "interrupted")


def _leave(status: int, message: str) -> NoReturn:
    """Print a message on standard error, and end this process with an exit status.

    One of several processes ends at once, because JAX would otherwise wait minutes for the others.
    """
    print(shortened(printable(message), _MOST_CHARACTERS), file=sys.stderr, flush=True)
    jax = sys.modules.get("jax")
    if status != 130 and jax is not None and jax.distributed.is_initialized():
        os._exit(status)
    sys.exit(status)
