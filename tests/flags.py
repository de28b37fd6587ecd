"""Read the flags of a command line without running it."""

import functools

import pytest

from benchmarks.choice import choice
from dynskip_jax.cli import main as cli
from dynskip_jax.config.experiment import find_experiment
from dynskip_jax.config.flags import call


def flags_of(name, words):
    """Return the resolved settings of a training command, or the arguments of any other command."""
    is_training = name not in (*cli.TOOLS, "benchmarks.choice")
    if is_training and (not words or words[0].startswith("-")):
        return cli.read_training(find_experiment(name), words)[0]
    found = {}

    def read(function, prog, arguments):
        call(functools.wraps(function)(lambda **values: found.update(values)), prog, arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "call", read)
        if name == "benchmarks.choice":
            read(choice, name, words)
        else:
            cli.main([name, *words])
    return found
