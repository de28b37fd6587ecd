"""Report a command: its log on standard output, and its errors in one line, with an exit status."""

import contextlib
import errno
import io
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from dynskip_jax.errors import Stopped, UserError

# Remedies for errors of the file system, by errno: no space left, or no permission.
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, then the same command goes on"),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS), "name a place that you may read and write"
    ),
}
_SMALLER = "use smaller batches, networks or numbers of seeds: see --help"
_MOST_CHARACTERS = 900  # of an error
# Bytes of address space (ulimit -v): with fewer, JAX cannot start and the process is aborted; with
# more, it may be aborted later, where memory is asked for in C++.
_LEAST_SPACE = 1_500_000_000
_AMPLE_SPACE = 16_000_000_000

_closed: set[str] = set()  # names of standard streams that were closed when the command began


def log_to_standard_output() -> None:
    """Print the library's log messages."""
    logger = logging.getLogger("dynskip_jax")
    logger.handlers = [_StandardOutput()]
    logger.propagate = False
    logger.setLevel(logging.INFO)


def _printable(text: object) -> str:
    from dynskip_jax.data.messages import printable

    return printable(text)


class _StandardOutput(logging.Handler):
    """Print records to the current `sys.stdout`, one line each; users' text is escaped."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, with the prefix `warning: ` from that level on."""
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        print(f"{prefix}{_printable(record.getMessage())}", flush=True)


def need_standard_output(command: str) -> None:
    """Raise a `UserError` if standard output, for a command's results, was closed."""
    if "stdout" in _closed:
        raise UserError(
            f"standard output is closed, and {command} writes to it: send it to a file or a pipe"
        )


def check_address_space() -> None:
    """Refuse a limit on address space with which JAX cannot start; warn of a low one."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or limit >= _AMPLE_SPACE:
        return
    found = f"this process may use {limit / 1e9:.1f} GB of address space (ulimit -v)"
    if limit < _LEAST_SPACE:
        raise UserError(
            f"{found}, and JAX needs at least {_LEAST_SPACE / 1e9:.1f} GB: raise the limit"
        )
    logging.getLogger("dynskip_jax").warning("%s: if it is aborted, raise the limit", found)


def run_main(main: Callable[[], None]) -> None:
    """Run a command; errors that the user can fix are one line, with exit status 2.

    Closed standard streams are opened on the null device. Characters that the encoding of standard
    output lacks are written as "?".
    """
    _open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # notebooks and tests may replace it
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
        # The reader of the output has closed the pipe (`| head`). Without this, Python would report
        # the error again at exit.
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
    """Open closed standard streams on the null device, whose descriptors no file may get."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest free descriptor
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _closed.add(name)
            mode = "w" if number else "r"
            stream = open(number, mode, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _of_the_machine(error: Exception) -> str | None:
    """Return a message for errors of the file system and of memory, or None."""
    if isinstance(error, OSError) and error.strerror:
        where = f" ({_printable(error.filename)})" if error.filename else ""
        return f"{error.strerror}{where}: {_REMEDIES.get(error.errno, 'name another place')}"
    jax = sys.modules.get("jax")
    is_of_a_device = jax is not None and isinstance(error, jax.errors.JaxRuntimeError)
    if isinstance(error, MemoryError) or (
        is_of_a_device and str(error).startswith("RESOURCE_EXHAUSTED")
    ):
        first = str(error).partition("\n")[0].removeprefix("RESOURCE_EXHAUSTED: ").rstrip(".")
        return f"{_printable(first) or 'Out of memory'}: {_SMALLER}"
    return None


def _is_one_of_several() -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def _leave(status: int, message: str | None = None) -> NoReturn:
    """Print a message on standard error, and end this process with an exit status.

    One of several processes ends at once, because JAX would otherwise wait minutes for the other
    processes.
    """
    if message is not None:
        print(message, file=sys.stderr)
    if _is_one_of_several():
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
