"""The command line: `dynskip NAME …` runs an experiment, a command over runs, or a tool."""

import dataclasses
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from dynskip_jax.config.experiment import NAMES, Experiment, find_experiment
from dynskip_jax.config.flags import call, flag, listed, parse, program, short, shown
from dynskip_jax.config.settings import (
    Resolved,
    fields_of,
    get,
    groups_of,
    replace,
    resolve,
)
from dynskip_jax.errors import UserError
from dynskip_jax.terminal.failures import log_to_standard_output, run_main

# Commands that belong to no experiment.
TOOLS = {
    "demo": "Train agents beside plain LSTMs, and show which earlier states they chose.",
    "report": "Show runs, of one model or of several, side by side.",
    "reproduce": "Print the commands behind results tables.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """What is printed."""

    print_config: bool = False
    """Print every setting and where it comes from, without training."""


def start(*name: str) -> None:
    """Run the experiment or tool with a name, by default the first argument of this process."""
    # Pictures are files; a notebook's own backend may be unknown in this process.
    os.environ["MPLBACKEND"] = "agg"
    run_main(lambda: main([*name, *sys.argv[1:]]))


def list_experiments() -> None:
    """Print a line for each command: its name, and the first line of its help."""
    for name in NAMES:
        print(f"{program(name)}  {text_of(find_experiment(name)).splitlines()[0]}")
    for name, about in TOOLS.items():
        print(f"{program(name)}  {about}")
    print("--help after any of these lists its flags, presets and commands")


def main(arguments: Sequence[str]) -> None:
    """Run `NAME [COMMAND] [FLAGS]`; without a name, list them all."""
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        list_experiments()
    elif name in TOOLS:
        run_command(name, program(name), rest)
    elif name in NAMES:
        run_experiment(find_experiment(name), rest)
    else:
        raise UserError(f"there is no command {short(name)}: choose {listed([*NAMES, *TOOLS])}")


def run_experiment(experiment: Experiment, arguments: Sequence[str]) -> None:
    """Run a command line of an experiment: `train` (the default), or a command over a run."""
    words = list(arguments)
    command = "train"
    if words and not words[0].startswith("-"):
        command = words.pop(0)
    commands = {each.rpartition(".")[2]: each for each in experiment.commands}
    if command in commands:
        run_command(commands[command], f"{program(experiment.name)} {command}", words)
        return
    if command != "train":
        known = listed(["train", *commands, "--help"])
        raise UserError(f"there is no command {short(command)}: choose {known}")
    resolved, output = read_training(experiment, words)
    if output.print_config:
        print_settings(experiment, resolved)
        return
    log_to_standard_output()
    run = importlib.import_module("dynskip_jax.runs.train")
    with run.joined(resolved.settings) as processes:
        resolved = importlib.import_module("dynskip_jax.runs.plan").with_files(experiment, resolved)
        run.train(experiment, resolved, processes)


def print_settings(experiment: Experiment, resolved: Resolved) -> None:
    """Print the settings of the run that these would start, and where each comes from.

    If there is no such run, for want of data say, they are those that are asked for.
    """
    say = importlib.import_module("dynskip_jax.terminal.console").say
    plan = importlib.import_module("dynskip_jax.runs.plan")  # imports JAX
    try:
        resolved = plan.with_files(experiment, resolved)
        resolved, _ = plan.read_data(experiment, resolved)
    except UserError as error:
        say(f"warning: some of this may change: {error}", sys.stderr)
    run = resolved.settings.run
    for name, (group, _, _) in fields_of(experiment.settings).items():
        value = get(resolved.settings, name)
        if name == "model" and value is run.compare is None:
            value = experiment.model
        say(f"{group}.{name}".ljust(32) + f" {shown(value):<16} {resolved.sources[name]}")
    for note in resolved.notes:
        say(f"warning: {note}", sys.stderr)


def run_command(name: str, prog: str, arguments: Sequence[str]) -> None:
    """Run a command; that of `NAME.command` is in a module beside an experiment."""
    log_to_standard_output()
    place = "experiments" if "." in name else "commands"
    module = importlib.import_module(f"dynskip_jax.{place}.{name}")
    call(getattr(module, name.rpartition(".")[2]), prog, arguments)


def text_of(experiment: Experiment) -> str:
    """Return an experiment's text, which is a docstring: `python -OO` strips those."""
    return experiment.about or experiment.name


def read_training(experiment: Experiment, arguments: Sequence[str]) -> tuple[Resolved, Output]:
    """Read the command line of training: its settings, with their sources, and what is printed."""
    kind = experiment.settings
    preset = next(iter(experiment.presets))
    defaults = replace(kind(), **experiment.presets[preset])
    parameters = [(name, of, getattr(defaults, name)) for name, of in groups_of(kind).items()]
    parameters.append(("output", Output, Output()))
    values = parse(program(experiment.name), help_of(experiment), parameters, arguments)
    typed = {
        word.partition("=")[0].replace("_", "-") for word in arguments if word.startswith("--")
    }
    given = {
        name: getattr(values[group], name)
        for name, (group, _, _) in fields_of(kind).items()
        if typed & {flag(name), flag(f"no_{name}")}
    }
    if experiment.default_preset is not None:
        preset = experiment.default_preset(given)
    resolved = resolve(kind, experiment.presets, preset, given)
    return resolved, values["output"]


def help_of(experiment: Experiment) -> str:
    """Return the text of `--help`: what an experiment is, its commands and its presets."""
    commands = listed(["train (the default)", *(c.rpartition(".")[2] for c in experiment.commands)])
    presets = [
        f"{name}: {' '.join(_typed(*setting) for setting in values.items())}"
        for name, values in experiment.presets.items()
    ]
    parts = [text_of(experiment), f"Commands, each with --help: {commands}."]
    return "\n\n".join([*parts, "Presets, and what they set:", *presets])


def _typed(name: str, value: Any) -> str:
    """Return a setting as it is typed on the command line."""
    if isinstance(value, bool):
        return flag(name if value else f"no_{name}")
    return f"{flag(name)} {shown(value)}"


if __name__ == "__main__":
    start()
