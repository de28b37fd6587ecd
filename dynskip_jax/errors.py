"""Exceptions whose messages are written for the user of the command line."""

import contextlib
from collections.abc import Iterator


def described(value: object) -> str:
    """Return a text for error messages: dtype and shape of an array, the type of other values."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} {value.shape}"
    return f"a {type(value).__name__}"


class UserError(ValueError):
    """An error that the user can correct; the message is one line with the cause and the remedy.

    Commands print the message without a traceback and exit with status 2.
    """


class Stopped(Exception):
    """Training was interrupted after it had saved a checkpoint."""


class MissingExtra(ImportError, UserError):
    """A required package is part of an optional dependency group and is not installed."""


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Guard imports of packages of the group `extra`: the error says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f'{error.name} is not installed: pip install -e ".[{extra}]" in a checkout',
            name=error.name,
        ) from None
