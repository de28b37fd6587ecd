"""The one way in: `main` runs the command line of any experiment, and says in one line what went wrong."""

import contextlib
import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from dynskip_jax.errors import Stopped, UserError
from experiments.command_line import Command, config_table, read_flags, read_training
from experiments.settings import resolve

# What to do where nothing more, or nothing here, can be written.
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EROFS), "make room, then the same command goes on"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "name a place that you may read and write"),
}
_SMALLER = "batches, networks and numbers of seeds that are smaller need less, as --help has them"
_PLATFORMS = "leave it out, or install JAX for it (pip install 'dynskip_jax[cuda]', for GPUs of NVIDIA)"


def main(
    command: Command, arguments: Sequence[str] | None = None, announce: Callable[[str], None] = print
) -> None:
    """Runs a command line; JAX is imported once it is known that there is something to run.

    Args:
        command: of which experiment.
        arguments: the command line without its first word; by default this process's own.
        announce: says what the user should know.

    Raises:
        UserError: the user can put it right.
        Stopped: training was interrupted.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    name = arguments.pop(0) if arguments and not arguments[0].startswith("-") else "train"
    if name in command.subcommands:
        sub = command.subcommands[name]
        prog = f"python -m experiments.{command.name} {name}"
        flags = read_flags(prog, sub.about, sub.flags, arguments)
        imported(sub.run)(command, flags)
        return
    if name != "train":
        known = ", ".join(["train", *command.subcommands])
        raise UserError(f"there is no command {name!r}: choose {known}, or --help")
    given, print_config = read_training(command, arguments)
    resolved = resolve(command.settings, command.presets, command.default_preset(given), given)
    if print_config:
        print(config_table(command, resolved))
        return
    imported("experiments.train:train")(command, resolved, announce)


def imported(path: str) -> Any:
    """Returns what `module:name` names."""
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)


def run_main(main: Callable[[], None]) -> None:
    """Runs a command: what the user can put right is one line on standard error and exit status 2.

    Standard streams that were closed lead to the null device, and what the encoding of standard output lacks
    is written as "?".
    """
    _open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # in a notebook and in tests it may be another thing
        sys.stdout.reconfigure(errors="replace")
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        _leave(2)
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        _leave(130)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); Python would complain once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(1)
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            where = f" ({error.filename})" if error.filename else ""
            remedy = _REMEDIES.get(error.errno, "name another place")
            print(f"error: {error.strerror}{where}: {remedy}", file=sys.stderr)
            _leave(2)
        if _is_out_of_memory(error):
            print(f"error: {_what_was_asked(error)}: {_SMALLER}", file=sys.stderr)
            _leave(2)
        if _lacks_its_platform(error):
            names = sys.modules["jax"].config.jax_platforms
            print(f"error: JAX finds no device for JAX_PLATFORMS={names}: {_PLATFORMS}", file=sys.stderr)
            _leave(2)
        if not _is_one_of_several():
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
