"""Exceptions whose messages are written for the person who typed the command."""


def described(value: object) -> str:
    """A value as messages name it: dtype and shape of an array, the type of anything else."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} {value.shape}"
    return f"a {type(value).__name__}"


class UserError(ValueError):
    """Something the user can put right; the message is one line naming the thing and the remedy.

    Command-line programs print it without a traceback and exit with status 2; a program that uses the
    library sees a `ValueError`.
    """


class Stopped(Exception):
    """Training was asked to stop, and has saved where it is."""
