"""Import packages of the optional dependency groups, with a helpful error if one is missing."""

import contextlib
from collections.abc import Iterator

from dynskip_jax.errors import UserError


class MissingExtra(ImportError, UserError):
    """A required package is part of an optional dependency group and is not installed."""


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Guard the imports of packages of the group `extra`: the error names the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f'{error.name} is not installed: pip install -e ".[{extra}]" in a checkout', name=error.name
        ) from None
