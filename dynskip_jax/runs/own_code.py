"""Import a module of the user's that the command line names."""

import importlib
import sys

from dynskip_jax.config.flags import short
from dynskip_jax.errors import UserError


def import_module(name: str, flag: str) -> None:
    """Import a module that the command line names, from the current folder or the environment."""
    if "" not in sys.path:
        sys.path.insert(0, "")  # the current folder, as in `python -m`
    try:
        importlib.import_module(name)
    except Exception as error:  # whatever the module raises
        raise UserError(f"{flag} {short(name)} cannot be imported: {error!r}") from error
