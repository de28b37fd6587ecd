"""Import packages of the optional dependency groups, with a helpful error if one is missing."""

import contextlib
from collections.abc import Iterator

from dynskip_jax.errors import UserError


class MissingExtra(ImportError, UserError):
    """A required package is part of an optional dependency group and is not installed."""


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Guard the imports of packages that the optional group `extra` installs.

    Args:
        extra: Name of a group in `project.optional-dependencies` of pyproject.toml.

    Raises:
        MissingExtra: If a package is not installed; the message names it and the command that installs the
            group.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f'{error.name} is not installed: pip install -e ".[{extra}]" in a checkout', name=error.name
        ) from None
