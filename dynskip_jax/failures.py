"""Report a command: its log on standard output, and its errors in one line, with an exit status."""

import contextlib
import errno
import io
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from dynskip_jax.errors import Stopped, UserError

# Remedies for errors of the file system, by errno: no space left, or no permission.
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, then the same command goes on"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "name a place that you may read and write"),
}
_SMALLER = "use smaller batches, networks or numbers of seeds: see --help"
_MOST_CHARACTERS = 900  # of an error
_PLATFORMS = 'leave it out, or install JAX for it (pip install -e ".[cuda]", for GPUs of NVIDIA)'


def log_to_standard_output(log_file: Path | None = None) -> None:
    """Print the library's log messages, and also append them to `log_file` if it is given."""
    logger = logging.getLogger("dynskip_jax")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = False
    logger.setLevel(logging.INFO)
    handlers: list[logging.Handler] = [_StandardOutput()]
    if log_file is not None:
        try:
            handlers.append(logging.FileHandler(log_file, encoding="utf-8"))
        except OSError as error:
            raise UserError(f"--log-file {log_file} cannot be written ({error.strerror})") from None
        handlers[1].setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for handler in handlers:
        handler.addFilter(_as_one_line)
        logger.addHandler(handler)


def _printable(text: object) -> str:
    from dynskip_jax.data.messages import printable  # imports the readers of data

    return printable(text)


def _as_one_line(record: logging.LogRecord) -> bool:
    """Escape control characters in a record, which may contain names from users' files; return True."""
    record.msg, record.args = _printable(record.getMessage()), ()
    return True


class _StandardOutput(logging.Handler):
    """Logging handler that prints to the current `sys.stdout`, which notebooks and tests may replace."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record as one line, with the prefix `warning: ` from that level on."""
        print(f"{'warning: ' if record.levelno >= logging.WARNING else ''}{record.getMessage()}", flush=True)


def run_main(main: Callable[[], None]) -> None:
    """Run a command; print errors that the user can fix as one line on standard error and exit with status 2.

    Closed standard streams are opened on the null device. Characters that the encoding of standard output
    lacks are written as "?".
    """
    _open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # notebooks and tests may replace it by another type
        sys.stdout.reconfigure(errors="replace")
    debug = "--debug" in sys.argv
    try:
        main()
    except UserError as error:
        if debug:
            traceback.print_exc()
        text = _printable(error)
        if len(text) > _MOST_CHARACTERS:  # it quotes a value that is longer than any message
            text = f"{text[:500]} … {text[-300:]}"
        _leave(2, f"error: {text}")
    except Stopped as stopped:
        print(_printable(stopped), file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt as interrupted:
        _leave(130, _printable(interrupted) or "interrupted")
    except BrokenPipeError:
        # The reader of the output has closed the pipe (`| head`). Without this, Python would report the error
        # again at exit.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(1, "the reader of standard output has gone: the command ends")
    except Exception as error:
        if (message := _of_the_machine(error)) is not None:
            _leave(2, f"error: {message}")
        if debug or not _is_one_of_several():
            raise
        traceback.print_exc()
        _leave(1)


def _open_standard_streams() -> None:
    """Open closed standard streams on the null device, so that no other file gets their descriptors."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest free descriptor
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            stream = open(number, mode, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _of_the_machine(error: Exception) -> str | None:
    """Return a message for errors of the file system, of memory and of missing devices, or None."""
    if isinstance(error, OSError) and error.strerror:
        where = f" ({_printable(error.filename)})" if error.filename else ""
        return f"{error.strerror}{where}: {_REMEDIES.get(error.errno, 'name another place')}"
    jax = sys.modules.get("jax")
    is_of_a_device = jax is not None and isinstance(error, jax.errors.JaxRuntimeError)
    if isinstance(error, MemoryError) or (is_of_a_device and str(error).startswith("RESOURCE_EXHAUSTED")):
        first = str(error).partition("\n")[0].removeprefix("RESOURCE_EXHAUSTED: ").rstrip(".")
        return f"{_printable(first) or 'Out of memory'}: {_SMALLER}"
    if jax is not None and jax.config.jax_platforms and isinstance(error, AssertionError | RuntimeError):
        try:
            jax.devices()  # some errors of missing devices have neither a message nor a type of their own
        except (AssertionError, RuntimeError):
            return f"JAX finds no device for JAX_PLATFORMS={jax.config.jax_platforms}: {_PLATFORMS}"
    return None


def _is_one_of_several() -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def _leave(status: int, message: str | None = None) -> NoReturn:
    """Print a message on standard error, and end this process with an exit status.

    One of several processes ends at once, because JAX would otherwise wait minutes for the other processes.
    """
    if message is not None:
        print(message, file=sys.stderr)
    if _is_one_of_several():
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
