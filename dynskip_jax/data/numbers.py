"""Read numbers of users' files: ASCII digits only, without the underscores that `float` accepts."""

import re

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def read_number(text: str) -> float | None:
    """Return a decimal number, which may be infinite if it is too large; None for anything else."""
    return float(text) if _NUMBER.fullmatch(text) else None
