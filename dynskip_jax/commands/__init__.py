"""The commands besides training: a function of the same name in each module.

Its signature defines the flags, and its docstring is the help.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dynskip_jax.errors import UserError


def check_unused(function: Callable, given: Mapping[str, Any], names: Iterable[str], why: str) -> None:
    """Raise a `UserError` if one of the flags `names` was given, though it has no effect.

    Args:
        function: The command.
        given: Values of its flags.
        names: Flags that have no effect.
        why: End of the message, such as "is for --method cache: leave it out".
    """
    for name in names:
        if given[name] != inspect.signature(function).parameters[name].default:
            raise UserError(f"--{name.replace('_', '-')} {why}")


def folder_of_pictures(run_dir: Path) -> Path:
    """Return the folder `plots` of a run folder, and make it; a link is refused.

    Raises:
        OSError: It cannot be made, such as in a read-only folder.
    """
    folder = run_dir / "plots"
    if folder.is_symlink():
        raise UserError(f"{folder} is a link: remove it, because pictures would be written elsewhere")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
