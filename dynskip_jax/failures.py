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
_SMALLER = "batches, networks and numbers of seeds that are smaller need less, as --help has them"
_MOST_CHARACTERS = 900  # of an error
_PLATFORMS = 'leave it out, or install JAX for it (pip install -e ".[cuda]", for GPUs of NVIDIA)'


def log_to_standard_output(log_file: Path | None = None) -> None:
    """Print the library's log messages, and also append them to `log_file` if it is given.

    Raises:
        UserError: If the file cannot be written.
    """
    logger = logging.getLogger("dynskip_jax")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = False
    logger.setLevel(logging.INFO)
    handler = _StandardOutput()
    handler.addFilter(_as_one_line)
    logger.addHandler(handler)
    if log_file is not None:
        try:
            handler = logging.FileHandler(log_file, encoding="utf-8")
        except OSError as error:
            raise UserError(f"--log-file {log_file} cannot be written ({error.strerror})") from None
        handler.addFilter(_as_one_line)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
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
    debug = "--debug" in sys.argv
    if isinstance(sys.stdout, io.TextIOWrapper):  # notebooks and tests may replace it by another type
        sys.stdout.reconfigure(errors="replace")
    try:
        main()
    except UserError as error:
        if debug:
            traceback.print_exc()
        text = _printable(error)
        if len(text) > _MOST_CHARACTERS:  # it quotes a value that is longer than any message
            text = f"{text[:500]} … {text[-300:]}"
        print(f"error: {text}", file=sys.stderr)
        _leave(2)
    except Stopped as stopped:
        print(_printable(stopped), file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt as interrupted:
        print(_printable(interrupted) or "interrupted", file=sys.stderr)
        _leave(130)
    except BrokenPipeError:
        # The reader of the output has closed the pipe (`| head`). Without this, Python would report the error
        # again at exit.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("the reader of standard output has gone: the command ends", file=sys.stderr)
        _leave(1)
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            where = f" ({_printable(error.filename)})" if error.filename else ""
            remedy = _REMEDIES.get(error.errno, "name another place")
            print(f"error: {error.strerror}{where}: {remedy}", file=sys.stderr)
            _leave(2)
        if _is_out_of_memory(error):
            print(f"error: {_printable(_what_was_asked(error))}: {_SMALLER}", file=sys.stderr)
            _leave(2)
        if _lacks_its_platform(error):
            names = sys.modules["jax"].config.jax_platforms
            print(f"error: JAX finds no device for JAX_PLATFORMS={names}: {_PLATFORMS}", file=sys.stderr)
            _leave(2)
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


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that the host (Python, NumPy) or a device (XLA) ran out of memory."""
    jax = sys.modules.get("jax")
    return isinstance(error, MemoryError) or (
        jax is not None
        and isinstance(error, jax.errors.JaxRuntimeError)
        and str(error).startswith("RESOURCE_EXHAUSTED")
    )


def _lacks_its_platform(error: Exception) -> bool:
    """Return whether JAX finds no device of the platforms that `JAX_PLATFORMS` names.

    Some of these errors have neither a message nor a type of their own, so JAX's devices are listed again.
    """
    jax = sys.modules.get("jax")
    if jax is None or not jax.config.jax_platforms or not isinstance(error, AssertionError | RuntimeError):
        return False
    try:
        jax.devices()
    except (AssertionError, RuntimeError):
        return True
    return False


def _what_was_asked(error: Exception) -> str:
    """Return the first line of an out-of-memory error, which may contain the number of bytes."""
    return str(error).partition("\n")[0].removeprefix("RESOURCE_EXHAUSTED: ").rstrip(".") or "Out of memory"


def _is_one_of_several() -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def _leave(status: int) -> NoReturn:
    """End this process with an exit status.

    One of several processes ends at once, because JAX would otherwise wait minutes for the other processes.
    """
    if _is_one_of_several():
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
