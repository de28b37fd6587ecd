"""The one way in: `main` runs the command line of any experiment, and says in one line what went wrong."""

import contextlib
import errno
import io
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from dynskip_jax.errors import Stopped, UserError
from dynskip_jax.experiments.command_line import (
    config_table,
    program,
    read_flags,
    read_training,
    resolve_training,
    unknown,
)
from dynskip_jax.experiments.own_pieces import import_module, is_own_piece
from dynskip_jax.lazy import LazyModule
from dynskip_jax.training.model_names import MODEL_NAMES

if TYPE_CHECKING:
    from dynskip_jax.experiments.experiment import Experiment

consoles = LazyModule("dynskip_jax.experiments.console")
messages = LazyModule("dynskip_jax.data.messages")
train = LazyModule("dynskip_jax.experiments.train")

# What to do where nothing more, or nothing here, can be written.
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, then the same command goes on"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "name a place that you may read and write"),
}
_SMALLER = "batches, networks and numbers of seeds that are smaller need less, as --help has them"
_PLATFORMS = 'leave it out, or install JAX for it (pip install -e ".[cuda]", for GPUs of NVIDIA)'


def main(experiment: "type[Experiment]", arguments: Sequence[str] | None = None) -> None:
    """Run a command line of an experiment; JAX is imported once there is something to run.

    Args:
        experiment: the class of the experiment.
        arguments: the command line without its first word; by default this process's own.

    Raises:
        UserError: the user can put it right.
        Stopped: training was interrupted.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    name = arguments.pop(0) if arguments and not arguments[0].startswith("-") else "train"
    if name in experiment.commands:
        command = experiment.commands[name]
        flags = read_flags(f"{program(experiment.name)} {name}", command.about, command.flags, arguments)
        log_to_standard_output()
        if getattr(flags, "code", None) is not None:
            import_module(flags.code, "--code")
        command.run(experiment, flags)
        return
    if name != "train":
        known = ", ".join(["train", *experiment.commands])
        raise UserError(f"there is no command {name!r}: choose {known}, or --help")
    given, how = read_training(experiment, arguments)
    resolved = resolve_training(experiment, given)
    if how["print_config"]:
        for name in resolved.settings.run.models(experiment.default_model):
            if name.partition(":")[0] not in MODEL_NAMES and not is_own_piece(name, MODEL_NAMES):
                raise unknown(name, [*MODEL_NAMES])
        consoles.say(config_table(experiment, resolved))
        return
    log_to_standard_output(how["log_file"])
    try:
        train.train(experiment, resolved)
    finally:
        log_to_standard_output()  # closes the file


def log_to_standard_output(log_file: str | None = None) -> None:
    """Print what the library logs, and write it to a file, too, where one is given.

    Raises:
        UserError: the file cannot be written.
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
            handler = logging.FileHandler(os.path.expanduser(log_file), encoding="utf-8")
        except OSError as error:
            raise UserError(f"--log-file {log_file} cannot be written ({error.strerror})") from None
        handler.addFilter(_as_one_line)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)


def _as_one_line(record: logging.LogRecord) -> bool:
    """Escape the control characters of a record, which may hold names from users' files."""
    record.msg, record.args = messages.printable(record.getMessage()), ()
    return True


class _StandardOutput(logging.Handler):
    """Prints to what standard output is at that time, which may change in notebooks and tests."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line; warnings begin with the word."""
        print(f"{'warning: ' if record.levelno >= logging.WARNING else ''}{record.getMessage()}", flush=True)


def run_main(main: Callable[[], None]) -> None:
    """Runs a command: what the user can put right is one line on standard error and exit status 2.

    Standard streams that were closed lead to the null device, and what the encoding of standard output lacks
    is written as "?".
    """
    _open_standard_streams()
    debug = "--debug" in sys.argv
    if isinstance(sys.stdout, io.TextIOWrapper):  # in a notebook and in tests it may be another thing
        sys.stdout.reconfigure(errors="replace")
    try:
        main()
    except UserError as error:
        if debug:
            traceback.print_exc()
        print(f"error: {messages.printable(error)}", file=sys.stderr)
        _leave(2)
    except Stopped as stopped:
        print(messages.printable(stopped), file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt as interrupted:
        print(messages.printable(interrupted) or "interrupted", file=sys.stderr)
        _leave(130)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); Python would complain once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(1)
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            where = f" ({messages.printable(error.filename)})" if error.filename else ""
            remedy = _REMEDIES.get(error.errno, "name another place")
            print(f"error: {error.strerror}{where}: {remedy}", file=sys.stderr)
            _leave(2)
        if _is_out_of_memory(error):
            print(f"error: {messages.printable(_what_was_asked(error))}: {_SMALLER}", file=sys.stderr)
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
    """Leads those that are closed to the null device, where files opened next would take their places."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest that is free
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            stream = open(number, mode, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether the host (Python, NumPy) or a device (XLA) had too little."""
    jax = sys.modules.get("jax")
    return isinstance(error, MemoryError) or (
        jax is not None
        and isinstance(error, jax.errors.JaxRuntimeError)
        and str(error).startswith("RESOURCE_EXHAUSTED")
    )


def _lacks_its_platform(error: Exception) -> bool:
    """Whether JAX was told where to run (JAX_PLATFORMS) and has no such devices.

    Some of these errors have neither text nor type of their own: JAX is asked for its devices once more.
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
    """Of which there was too little: how many bytes, where the error says it."""
    return str(error).partition("\n")[0].removeprefix("RESOURCE_EXHAUSTED: ").rstrip(".") or "Out of memory"


def _is_one_of_several() -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def _leave(status: int) -> NoReturn:
    """Ends this process; one of several at once, where JAX would first wait for the others for minutes."""
    if _is_one_of_several():
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
