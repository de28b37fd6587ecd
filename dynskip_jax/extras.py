"""Imports of packages that only an optional group of pyproject.toml installs."""

import contextlib
from collections.abc import Iterator

from dynskip_jax.errors import UserError


class MissingExtra(ImportError, UserError):
    """A package that is needed here is part of an optional group, and not installed."""


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Within it stand imports of what the group `extra` installs.

    Args:
        extra: a name of `project.optional-dependencies` in pyproject.toml.

    Raises:
        MissingExtra: a package is not installed; the message names it and says how to install the group.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f'{error.name} is not installed: pip install -e ".[{extra}]" in a checkout', name=error.name
        ) from None
